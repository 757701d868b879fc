"""A Heliograph of a test's own: `heliograph up` in a short folder, its processes by name, and signals to them.

Everything is started, restarted and stopped by the command itself, so a scenario sees what an operator would see. It
signals only processes that this very `up` has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from heliograph_cli import record
from mesh.tokens import TokenSigner
from tests.support.wait import until

TENANT = "acme"
PRODUCER = "demo"
# Generous: two cores may be busy with other things.
START_LIMIT_S = 60.0
RESTART_LIMIT_S = 30.0
_STOP_LIMIT_S = 60.0
_PORT_SPAN = 400


class Installation:
    """One that runs.

    Attributes:
        direct: without sidecars and edge.
        folder: its state folder.
    """

    def __init__(self, folder: Path, *, direct: bool) -> None:
        self.direct = direct
        self.folder = folder
        self._signer = TokenSigner(folder / "certs" / "tokens" / "signing.pem")

    # ------------------------------------------------------------ what runs

    @property
    def up(self) -> record.UpRecord:
        """What runs now."""
        found = record.read(self.folder / "up.json")
        assert found is not None, f"nothing runs in {self.folder}"
        return found

    @property
    def nodes(self) -> list[str]:
        """The gateway nodes."""
        return [one.name for one in self.up.processes.values() if (one.kind, one.service) == ("service", "gateway")]

    def process(self, name: str) -> record.ProcessRecord:
        """Returns a process by its name; a gateway node also by "gateway-0"."""
        return self.up.processes[self.name_of(name)]

    def name_of(self, name: str) -> str:
        """Returns a process's name; "gateway-1" stands for the second node, whatever this machine is called."""
        word, _, number = name.partition("-")
        if word != "gateway":
            return name
        index, dash, rest = number.partition("-")
        return self.nodes[int(index)] + dash + rest

    def socket(self, process: str) -> Path:
        """Returns a process's own gRPC socket."""
        return Path(self.up.run_dir) / f"{self.name_of(process)}.sock"

    def output(self) -> str:
        """Returns what `up` has printed so far."""
        return (self.folder / "up.out").read_text(encoding="utf-8", errors="replace")

    # ------------------------------------------------------------ faults

    def send(self, name: str, number: signal.Signals) -> int:
        """Sends a signal to a process; returns the id it had."""
        pid = self.process(name).pid
        assert pid, f"{name} does not run"
        os.kill(pid, number)
        return pid

    async def kill(self, name: str) -> int:
        """Ends a process without notice and waits until it is gone; returns its id, as evidence."""
        pid = self.send(name, signal.SIGKILL)
        await until(lambda: self.process(name).pid != pid, 10.0, f"{name} ({pid}) is gone")
        return pid

    async def wait_restarted(self, name: str, old_pid: int) -> None:
        """Waits until another process of that name serves."""

        def serves() -> bool:
            found = self.process(name)
            return found.pid not in (0, old_pid) and found.state == "serving"

        await until(serves, RESTART_LIMIT_S, f"{name} serves again")

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Stops a process (SIGSTOP) while the context is open."""
        pid = self.send(name, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # ------------------------------------------------------------ identities and stores

    def token(self, subject: str, *, role: str = "recipient", lifetime: float = 3600.0) -> str:
        """Returns a token of tenant acme."""
        return self._signer.sign(subject, TENANT, role, lifetime, time.time())

    @property
    def roots_file(self) -> Path:
        """What clients of the edge trust."""
        return self.folder / "certs" / "ca" / "bundle.pem"

    def leaf_folder(self, path: str) -> Path:
        """Returns the folder of an identity's key and certificate."""
        return self.folder / "certs" / path / "current"

    def query(self, store: str, sql: str, *arguments: object) -> list[tuple[object, ...]]:
        """Reads an embedded store beside the process that writes it."""
        connection = sqlite3.connect(f"file:{self.folder / 'data' / store}?mode=ro", uri=True, timeout=5.0)
        try:
            return connection.execute(sql, arguments).fetchall()
        finally:
            connection.close()


@asynccontextmanager
async def installed(
    *, direct: bool, gateways: int = 2, trace: bool = False, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Installation]:
    """Starts an installation, waits until all of it serves, and stops it afterwards.

    Args:
        direct: without sidecars and edge.
        gateways: number of gateway nodes.
        trace: log every step of every event.
        settings: of the services, as environment variables: "GATEWAY_SESSION_AGE".
    """
    folder = Path(tempfile.mkdtemp(prefix="hg-"))
    flags = ["--direct"] if direct else []
    flags += ["--trace"] if trace else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")}
    environment |= {f"HELIOGRAPH_{name}": value for name, value in (settings or {}).items()}
    with (folder / "up.out").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "heliograph_cli", "up"),
            *("--state-dir", str(folder), "--base-port", str(_free_ports()), "--gateways", str(gateways), *flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            # Ctrl-C at the tests stops it through this context, in order.
            start_new_session=True,
        )
    try:
        await until(lambda: process.returncode is not None or _serves(folder), START_LIMIT_S, "the installation serves")
        output_text = (folder / "up.out").read_text(encoding="utf-8", errors="replace")
        assert process.returncode is None, f"the installation did not start:\n{output_text}"
        yield Installation(folder, direct=direct)
    finally:
        await _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def _serves(folder: Path) -> bool:
    found = record.read(folder / "up.json")
    return found is not None and found.state == "serving"


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_ports() -> int:
    """Returns a base with a run of free loopback ports above it."""
    # Below the range from which the system draws ports for outgoing connections; begun by process, so that
    # installations of tests that run side by side look at different ones.
    places = range(12_000, 20_000, _PORT_SPAN)
    first = os.getpid() % len(places)
    for base in [*places[first:], *places[:first]]:
        with contextlib.ExitStack() as held:
            try:
                for port in range(base, base + _PORT_SPAN):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise AssertionError("no run of free ports was found")

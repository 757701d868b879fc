"""A Heliograph of its own for a benchmark: `heliograph up` on free ports in a temporary folder, and ways into it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from deploy.engines.choices import default_folder
from deploy.engines.running import FILE
from heliograph_cli import record
from heliograph_cli.failures import USAGE, CommandFailed
from mesh.tokens import TokenSigner

_START_LIMIT = 60.0
# Topics, keyspace and schema are made first.
_START_LIMIT_ON_ENGINES = 180.0
_STOP_LIMIT = 60.0
# Ports of one installation lie this close together above its base, those of /metrics included.
_PORT_SPAN = 400


class Installation:
    """Runs while the context is open.

    Attributes:
        folder: state folder; data, certificates and logs are below.
        direct: without sidecars and edge.
        name: of what is its own at the engines.
    """

    def __init__(
        self,
        *,
        direct: bool,
        gateways: int = 2,
        trace: bool = False,
        folder: Path | None = None,
        base_port: int | None = None,
        environ: Mapping[str, str] | None = None,
        engines: Path | None = None,
        name: str = "",
    ) -> None:
        """Chooses where it will run.

        Args:
            direct: without sidecars and edge.
            gateways: number of gateway nodes.
            trace: log every step of every event.
            folder: state folder, which stays at the end; a temporary one if left out.
            base_port: first of its ports; free ones are looked for if left out.
            environ: settings for its services, added to the environment.
            engines: file that says where the engines are; its stores are embedded if left out.
            name: of its topics, keyspace and schema there, which are made where they are missing.
        """
        self._engines = engines
        self.name = name
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="hg-bench-")) if folder is None else folder
        self._base_port = base_port
        self.direct = direct
        self._gateways = gateways
        self._trace = trace
        self._environ = dict(environ or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # A benchmark that is told to end leaves nothing running.
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        command = [
            sys.executable,
            "-P",
            "-m",
            "heliograph_cli",
            "up",
            "--state-dir",
            str(self.folder),
            "--base-port",
            str(_free_ports() if self._base_port is None else self._base_port),
            "--gateways",
            str(self._gateways),
        ]
        command += ["--direct"] if self.direct else []
        command += ["--trace"] if self._trace else []
        if self._engines is not None:
            command += ["--engines", str(self._engines), "--name", self.name, "--create"]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "up.out").open("wb") as output:
            # A session of its own: Ctrl-C at the benchmark stops it through __exit__, in order.
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **self._environ},
            )
        try:
            self._wait_until_serving()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_LIMIT)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def stores(self) -> str:
        """What keeps its data: "embedded" or "engines"."""
        return "embedded" if self._engines is None else "engines"

    def leave_running(self) -> None:
        """Goes on when the context ends: `heliograph down` stops it."""
        self._process, self._temporary = None, False

    @property
    def up(self) -> record.UpRecord:
        """What runs now."""
        found = record.read(self.folder / "up.json")
        if found is None:
            raise RuntimeError(f"nothing runs in {self.folder}")
        return found

    def pids(self) -> dict[str, int]:
        """Returns every process by name."""
        return {name: process.pid for name, process in self.up.processes.items() if process.pid}

    def gateways(self) -> dict[str, int]:
        """Returns the processes of the gateway nodes by name, without their sidecars."""
        return {name: pid for name, pid in self.pids().items() if name.startswith("gw-") and not is_envoy(name)}

    def envoys(self) -> dict[str, int]:
        """Returns the sidecars and the edge by name."""
        return {name: pid for name, pid in self.pids().items() if is_envoy(name)}

    def metrics(self, name: str) -> dict[str, float]:
        """Returns the metrics of a process by their full names; those with labels are added up."""
        argv = self.up.processes[name].argv
        port = argv[argv.index("--metrics-port") + 1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            text = response.read().decode("utf-8")
        found: dict[str, float] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                metric, _, value = line.rpartition(" ")
                metric = metric.partition("{")[0]
                found[metric] = found.get(metric, 0.0) + float(value)
        return found

    def token(self, name: str, *, tenant: str = "acme", role: str = "recipient") -> str:
        """Returns a token for a recipient or a producer, good for an hour."""
        signer = TokenSigner(self.folder / "certs" / "tokens" / "signing.pem")
        return signer.sign(name, tenant, role, 3600.0, time.time())

    def live_targets(self) -> list[str]:
        """Returns "host:port" of every place where sessions connect."""
        return [url.partition("://")[2].partition("/")[0] for url in self.up.live_urls.values()]

    @property
    def live_name(self) -> str:
        """What the edge is called in TLS; empty where sessions connect to the nodes."""
        return "" if self.direct else "localhost"

    @property
    def ca_file(self) -> str:
        """The authority of the edge's certificate; empty where there is no edge."""
        return "" if self.direct else str(self.folder / "certs" / "ca" / "bundle.pem")

    def _wait_until_serving(self) -> None:
        assert self._process is not None
        end = time.monotonic() + (_START_LIMIT if self._engines is None else _START_LIMIT_ON_ENGINES)
        while time.monotonic() < end:
            found = record.read(self.folder / "up.json")
            # The file may be an earlier run's.
            if found is not None and found.state == "serving" and found.pid == self._process.pid:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        output = (self.folder / "up.out").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"the installation did not start:\n{output[-2000:]}")


def is_envoy(name: str) -> bool:
    """Says whether a process is a sidecar or the edge."""
    return name == "edge" or name.endswith("-envoy")


def chosen_engines(environ: Mapping[str, str]) -> Path | None:
    """Returns the file that says where the engines are; None when STORES does not ask for them.

    Raises:
        CommandFailed: they are asked for and not there.
    """
    stores = environ.get("STORES", "") or "embedded"
    if stores == "embedded":
        return None
    if stores != "engines":
        raise CommandFailed(f"STORES={stores}: must be embedded or engines", USAGE)
    named = environ.get("HELIOGRAPH_ENGINES", "")
    path = Path(named) if named else default_folder() / FILE
    if not path.is_file():
        raise CommandFailed(f"{path}: no such file; run `make engines` first", USAGE)
    return path


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM end what runs inside as Ctrl-C does, so that the mesh is stopped."""

    def stop(number: int, frame: FrameType | None) -> None:
        # The event loop ends its tasks in order at this one.
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_ports() -> int:
    """Returns a base with a run of free loopback ports above it."""
    for base in _bases():
        with contextlib.ExitStack() as held:
            try:
                for port in range(base, base + _PORT_SPAN):
                    one = held.enter_context(socket.socket())
                    one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise RuntimeError("no run of free ports was found")


def _bases() -> Iterator[int]:
    # Below the range from which the system draws ports for outgoing connections; two installations that start at the
    # same moment begin to look at different places.
    bases = range(20_000, 32_000, _PORT_SPAN)
    first = os.getpid() % len(bases)
    yield from (*bases[first:], *bases[:first])

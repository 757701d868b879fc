"""A PostgreSQL server of a test's own, on a port of its own: to be stopped, killed, stilled and set up wrongly.

It refuses to run as root: then another account runs it, in a folder that this account owns. It must not touch the
server that all tests share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.wait import until

_ACCOUNT = "postgres"
_LIMIT_S = 20.0


def _program(name: str) -> str:
    installed = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: path.parts[-3].zfill(3), reverse=True
    )
    found = shutil.which(name) or next(map(str, installed), None)
    if found is None:
        pytest.fail(f"{name} is not installed: bring PostgreSQL, as for `make engines`")
    return found


def _identity() -> dict[str, Any]:
    """Whose process it is, as arguments of subprocess: Any, as each of them has another type."""
    if os.geteuid():
        return {}
    entry = pwd.getpwnam(_ACCOUNT)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class PostgresServer:
    """One server; `postgres_server` makes it and takes it away."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self._data = folder / "data"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._options: Mapping[str, str] = {}

    def url(self, database: str = "postgres", **options: str) -> str:
        """Returns the URL of a database."""
        words = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://127.0.0.1:{self.port}/{database}" + (f"?{words}" if words else "")

    async def make(self, *, encoding: str = "UTF8") -> None:
        """Makes its data."""
        words = ("--username=postgres", "--auth=trust", f"--encoding={encoding}", "--locale=C", "--no-sync")
        await self._run("initdb", "-D", str(self._data), *words)

    async def copy(self, origin: PostgresServer) -> None:
        """Makes its data as a standby of another server that runs."""
        place = ("-h", "127.0.0.1", "-p", str(origin.port), "-U", "postgres")
        await self._run("pg_basebackup", "-D", str(self._data), *place, "--write-recovery-conf", "--checkpoint=fast")

    async def promote(self) -> None:
        """Makes a standby a primary, and waits until it is."""
        await self._run("pg_ctl", "-D", str(self._data), "-w", "promote")

    def write(self, name: str, text: str) -> Path:
        """Writes a file of its folder, readable for the server alone."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        self._own(path)
        return path

    async def start(self, **options: str) -> None:
        """Starts it and waits until it takes connections; options stay for later starts."""
        self._options = {**self._options, **options}
        self._process = self._spawn()
        await until(self._answers, _LIMIT_S, f"PostgreSQL answers at {self.port}; see {self._log}")

    async def stop(self) -> None:
        """Ends it in order; whoever is connected is thrown out."""
        await self._end(signal.SIGINT)

    async def kill(self) -> None:
        """Ends it with SIGKILL; its children notice and end too."""
        await self._end(signal.SIGKILL)

    def still(self) -> None:
        """Stops it in its tracks: connections stay, and nothing answers."""
        self._signal_all(signal.SIGSTOP)

    def wake(self) -> None:
        """Lets it go on."""
        self._signal_all(signal.SIGCONT)

    async def limit_files(self, size: int | None) -> None:
        """Lets no file of it grow beyond a size from now on, as a disk without room does; None takes that back."""
        most = "unlimited" if size is None else str(size)
        for pid in self._family():
            with contextlib.suppress(AssertionError):  # one that has ended meanwhile
                await self._run("prlimit", f"--pid={pid}", f"--fsize={most}:unlimited")

    async def reload(self, **options: str) -> None:
        """Changes settings while it runs; see `alter system`."""
        for name, value in options.items():
            await self.query(f"alter system set {name} = '{value}'")
        await self.query("select pg_reload_conf()")

    async def query(self, statement: str, database: str = "postgres") -> str:
        """Asks it something as its owner."""
        place = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", database)
        return await self._run("psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", *place, "-c", statement)

    # ---------------------------------------------------------------- inside

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            **self._options,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as out:
            return subprocess.Popen(
                [_program("postgres"), "-D", str(self._data), *words],
                cwd=self.folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
                **_identity(),
            )

    async def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PostgreSQL ended: see {self._log}"
        words = ("-h", "127.0.0.1", "-p", str(self.port), "-q", "-U", "postgres")
        probe = await asyncio.create_subprocess_exec(_program("pg_isready"), *words)
        return await probe.wait() == 0

    async def _end(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self.wake()
        family = self._family()
        self._process.send_signal(number)
        process = self._process
        await until(lambda: process.poll() is not None, _LIMIT_S, "PostgreSQL ends")
        # After a SIGKILL of the first process its children hold shared memory until they notice.
        await until(lambda: not any(_alive(pid) for pid in family), _LIMIT_S, "PostgreSQL's children end")

    def _family(self) -> Sequence[int]:
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return [pid, *map(int, children)]

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _own(self, path: Path) -> None:
        identity = _identity()
        if identity:
            os.chown(path, pwd.getpwnam(_ACCOUNT).pw_uid, pwd.getpwnam(_ACCOUNT).pw_gid)

    async def _run(self, program: str, *words: str) -> str:
        self._own(self.folder)
        process = await asyncio.create_subprocess_exec(
            _program(program),
            *words,
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            **_identity(),
        )
        said, errors = await process.communicate()
        assert process.returncode == 0, f"{program}: {errors.decode()}"
        return said.decode().strip()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


@asynccontextmanager
async def postgres_server() -> AsyncIterator[PostgresServer]:
    """A server that has no data yet: `make` or `copy`, then `start`; taken away at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hg-postgres-"))
    server = PostgresServer(folder, free_port())
    try:
        yield server
    finally:
        await server.kill()
        shutil.rmtree(folder, ignore_errors=True)

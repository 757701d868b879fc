"""PostgreSQL: one server, run by another account when root starts it, as it refuses root."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.engines import probes
from deploy.engines.choices import Choices
from deploy.engines.failures import EnginesFailed
from deploy.engines.server import Server, alive, identity

# For who takes containers; any from 13 on does.
IMAGE: Final = "postgres:15"
_MEMORY_MIB: Final = 80

# What a committed change rests on, said although it is the default: a test compares it.
PROMISES: Final[Mapping[str, str]] = {"fsync": "on", "synchronous_commit": "on"}
SMALL: Final[Mapping[str, str]] = {"max_connections": "100", "shared_buffers": "64MB"}
# How a new server is made; ids sort by their bytes.
INITDB: Final = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")


def settings(choices: Choices) -> dict[str, str]:
    """Returns the server's settings."""
    return {
        "listen_addresses": "127.0.0.1",
        "port": str(choices.port("postgresql")),
        # A path of a Unix socket has 107 bytes, a folder of tests may have more.
        "unix_socket_directories": "",
        **PROMISES,
        **SMALL,
    }


def servers(choices: Choices, programs: Path | None, account: str) -> list[Server]:
    """Returns the server."""
    folder, port = choices.folder / "postgresql", choices.port("postgresql")
    data, found = folder / "data", programs or Path()

    def prepare() -> None:
        if not (data / "PG_VERSION").exists():
            _initdb(found, data, account)
        unlock(data)

    def command() -> list[str]:
        options = (word for name, value in settings(choices).items() for word in ("-c", f"{name}={value}"))
        return [str(found / "postgres"), "-D", str(data), *options]

    server = Server(
        name="postgresql",
        engine="postgresql",
        host="127.0.0.1",
        port=port,
        inner_port=0,
        folder=folder,
        marker=str(data),
        memory_mib=_MEMORY_MIB,
        prepare=prepare,
        command=command,
        answers=lambda: probes.postgresql_answers("127.0.0.1", port),
        account=account,
        # Ends its sessions instead of waiting for them.
        stop_signal=signal.SIGINT,
    )
    return [server]


def unlock(data: Path) -> None:
    """Removes the lock of a server that was killed: until the system collects it, the next one takes it for alive."""
    lock = data / "postmaster.pid"
    try:
        pid = int(lock.read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return
    if not alive(pid):
        lock.unlink(missing_ok=True)


def _initdb(programs: Path, data: Path, account: str) -> None:
    who = identity(account)
    data.mkdir(mode=0o700, exist_ok=True)
    if who.user is not None and who.group is not None:
        os.chown(data, who.user, who.group)
    done = subprocess.run(
        [str(programs / "initdb"), "-D", str(data), *INITDB, "--no-sync"],
        cwd=data,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        user=who.user,
        group=who.group,
        extra_groups=who.extra_groups,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise EnginesFailed(f"postgresql: its data cannot be made: {said[0]}")

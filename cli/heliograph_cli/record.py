"""What runs: `up.json`, written by `heliograph up`, read by every other command.

Must not be taken for the truth about a process that died: `up` alone knows, and says so with its next write.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from heliograph_cli.failures import FAILED, UNAVAILABLE, CommandFailed

Kind = Literal["service", "sidecar", "edge"]
State = Literal["starting", "serving", "waiting", "stopping", "stopped"]


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process.

    Attributes:
        name: its name in sockets and logs.
        kind: a service, its sidecar, or the edge.
        service: the service it runs or stands beside.
        pid: 0 while it does not run.
        state: "waiting" is the pause before it is started again.
        restart_count: how often it was started again.
        argv: what it was started with.
        log: its log file.
    """

    name: str
    kind: Kind
    service: str
    pid: int
    state: State
    restart_count: int
    argv: tuple[str, ...]
    log: str


class UpRecord(msgspec.Struct, frozen=True):
    """One `heliograph up`.

    Attributes:
        pid: of the command itself.
        state: "serving" once everything was ready.
        direct: without sidecars.
        start_time: Unix seconds.
        run_dir: the folder with all sockets.
        trust_domain: of all identities.
        edge: "host:port" of the edge; empty in direct mode.
        live_urls: WebSocket addresses by gateway node; one entry "edge" with a mesh.
        inbound: "host:port" of each process's sidecar; empty in direct mode.
        producer_host: the name by which producers with a certificate call the edge; empty in direct mode.
        processes: by name, in the order of their start.
        version: of Heliograph; empty in a record of a version that did not say.
    """

    pid: int
    state: State
    direct: bool
    start_time: float
    run_dir: str
    trust_domain: str
    edge: str
    live_urls: dict[str, str]
    inbound: dict[str, str]
    producer_host: str
    processes: dict[str, ProcessRecord]
    version: str = ""


def installed_version() -> str:
    """Returns the version of Heliograph that is installed; empty where it runs from its sources alone."""
    from importlib import metadata

    try:
        return metadata.version("heliograph")
    except metadata.PackageNotFoundError:
        return ""


def write(path: Path, record: UpRecord) -> None:
    """Replaces the file as a whole."""
    handle, fresh = tempfile.mkstemp(prefix=".up-", dir=path.parent)
    with os.fdopen(handle, "wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    os.replace(fresh, path)


def read(path: Path) -> UpRecord | None:
    """Returns what the file says, or None when there is none.

    Raises:
        CommandFailed: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=UpRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise CommandFailed(f"{path}: {error}; stop what runs there and remove the file", FAILED) from None


def read_running(path: Path) -> UpRecord:
    """Returns what runs.

    Raises:
        CommandFailed: nothing runs with this state folder.
    """
    record = read(path)
    if record is None or not alive(record.pid):
        raise CommandFailed(
            f"nothing runs with the state folder {path.parent}; start it with `heliograph up`, or give --state-dir",
            UNAVAILABLE,
        )
    return record


def alive(pid: int) -> bool:
    """Says whether a process with this id exists."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

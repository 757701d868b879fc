"""One server as a process: start, wait for its answer, stop, kill. It must not know which engine it is.

The server outlives whoever starts it; its pid is in a file beside its log. Before a signal is sent, the command line
of that pid is read: a pid that was given to somebody else meanwhile is left alone.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from deploy.engines.choices import EngineName
from deploy.engines.failures import EnginesFailed

READY_LIMIT_S: Final = 180.0
STOP_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.05
_LOG_LINES: Final = 20

# Kept until they end: those that were started here would otherwise stay zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Server:
    """One server.

    Attributes:
        name: "kafka", "cassandra-2".
        engine: which engine it is of.
        host: the loopback address that it listens on.
        port: where clients come.
        inner_port: where its own nodes come; 0: there is none.
        folder: its own.
        marker: the argument by which its process is recognised.
        memory_mib: what it needs to start.
        prepare: writes its settings and makes its data where they are missing.
        command: program and arguments, of now.
        answers: asks it something.
        ended: called after it has ended in order.
        account: under which it runs; empty: ours.
        stop_signal: ends it in order.
    """

    name: str
    engine: EngineName
    host: str
    port: int
    inner_port: int
    folder: Path
    marker: str
    memory_mib: int
    prepare: Callable[[], None]
    command: Callable[[], Sequence[str]]
    answers: Callable[[], bool]
    ended: Callable[[], None] = field(default=lambda: None)
    account: str = ""
    stop_signal: signal.Signals = signal.SIGTERM

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "server.log"

    @property
    def pid_file(self) -> Path:
        """Its pid, while it runs."""
        return self.folder / "pid"

    def pid(self) -> int | None:
        """Returns its pid when it runs and is ours."""
        try:
            pid = int(self.pid_file.read_text(encoding="utf-8"))
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if self.marker.encode() in arguments else None

    def taken_ports(self) -> list[int]:
        """Returns those of its ports that somebody else listens on."""
        ports = (self.port, self.inner_port) if self.inner_port else (self.port,)
        return [port for port in ports if not _is_free(self.host, port)]

    def is_answering(self) -> bool:
        """Asks it; a refusal, a silence and nonsense are all no answer."""
        try:
            return self.answers()
        except (OSError, ValueError, ArithmeticError, LookupError):
            return False

    # ---------------------------------------------------------------- life

    def start(self, give_up: threading.Event, limit: float = READY_LIMIT_S) -> float:
        """Starts it, waits until it answers, and returns the seconds.

        Raises:
            EnginesFailed: it ends or does not answer in time; its last words are with it.
        """
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        pid = self._spawn()
        while not self.is_answering():
            if give_up.wait(_POLL_S):
                raise EnginesFailed(f"{self.name}: given up")
            if not alive(pid):
                self.pid_file.unlink(missing_ok=True)
                raise EnginesFailed(f"{self.name}: ended at once; {self.last_words()}")
            if time.monotonic() - began > limit:
                raise EnginesFailed(f"{self.name}: has no answer after {limit:g} s; {self.last_words()}")
        return time.monotonic() - began

    def stop(self, limit: float = STOP_LIMIT_S) -> bool:
        """Ends it in order and waits; False when it had to be killed. Stopped already is fine."""
        pid = self.pid()
        if pid is None:
            return True
        in_order = self._end(pid, self.stop_signal, limit)
        if in_order:
            self.ended()
        else:
            self._end(pid, signal.SIGKILL, STOP_LIMIT_S)
        self.pid_file.unlink(missing_ok=True)
        return in_order

    def kill(self) -> bool:
        """Ends it with SIGKILL and returns when its ports are free again; False when it did not run."""
        pid = self.pid()
        if pid is None:
            return False
        self._end(pid, signal.SIGKILL, STOP_LIMIT_S)
        self.pid_file.unlink(missing_ok=True)
        return True

    def last_words(self) -> str:
        """Returns the log's last line of weight and where the log is."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            lines = []
        weighty = [line for line in lines if any(word in line for word in ("ERROR", "FATAL", "Exception", "Error"))]
        said = (weighty or lines or ["it said nothing"])[-1].strip()
        return f"{said} (see {self.log})"

    def _spawn(self) -> int:
        who = identity(self.account)
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                list(self.command()),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=who.user,
                group=who.group,
                extra_groups=who.extra_groups,
            )
        _children[child.pid] = child
        self.pid_file.write_text(str(child.pid), encoding="utf-8")
        return child.pid

    def _end(self, pid: int, number: signal.Signals, limit: float) -> bool:
        # Those of PostgreSQL notice the end of their parent by themselves, and hold the port until then.
        family = (pid, *_children_of(pid))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        end = time.monotonic() + limit
        while any(alive(one) for one in family):
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True


def alive(pid: int) -> bool:
    """Tells whether a process runs; a zombie does not, but with threads left it still holds its ports."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        return state not in ("Z", "X") or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (OSError, IndexError):
        return False


def resident_mib(pid: int) -> int:
    """Returns the memory that a process holds; 0 when it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)


class Identity(NamedTuple):
    """Under which account a program runs; None: under ours."""

    user: int | None = None
    group: int | None = None
    extra_groups: tuple[int, ...] | None = None


def identity(account: str) -> Identity:
    """Looks an account up; none stands for ours."""
    if not account:
        return Identity()
    found = pwd.getpwnam(account)
    return Identity(found.pw_uid, found.pw_gid, ())


def _children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except (OSError, ValueError):
        return []


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True

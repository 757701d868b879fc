"""All servers together: start what does not run, stop, kill, restart, say how they are. One at a time in a folder."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from deploy.engines import cassandra, jars, kafka, machine, postgresql, probes, redis
from deploy.engines.choices import (
    ENGINES,
    KEYS,
    Choices,
    EngineName,
    cache_folder,
    own_folder,
    url,
)
from deploy.engines.failures import EnginesFailed
from deploy.engines.server import READY_LIMIT_S, Server, resident_mib

Say = Callable[[str], None]
FILE: Final = "engines.json"
_CHOICES: Final = "choices.json"
_POLL_S: Final = 0.05
_JARS: Final[Mapping[EngineName, jars.Jars]] = {"kafka": kafka.JARS, "cassandra": cassandra.JARS}


class State(msgspec.Struct, frozen=True):
    """How a server is: "serving", "silent" (it runs and has no answer) or "stopped"."""

    name: str
    state: str
    pid: int
    memory_mib: int
    address: str


class Engines:
    """The servers of one folder.

    Args:
        choices: what was asked for.
        environ: where programs and the cache are looked for.
        say: takes lines for whoever watches.
    """

    def __init__(self, choices: Choices, environ: Mapping[str, str], say: Say) -> None:
        self._choices = choices
        self._say = say
        self._cache = cache_folder(environ)
        self._machine = machine.look(environ, choices.folder)
        self._servers = (
            *kafka.servers(choices, self._cache, self._machine.java),
            *redis.servers(choices, self._machine.redis),
            *cassandra.servers(choices, self._cache, self._machine.java),
            *postgresql.servers(choices, self._machine.postgresql, self._machine.account),
        )
        self._give_up = threading.Event()

    # ---------------------------------------------------------------- commands

    def start(self, only: Sequence[str] = ()) -> dict[str, str | int]:
        """Starts what does not run yet and returns the content of engines.json.

        Args:
            only: names of servers or engines; empty: all.

        Raises:
            EnginesFailed: something is missing, or a server does not start; what this call started is stopped again.
        """
        own_folder(self._choices.folder)
        with self._alone():
            self._remember()
            chosen = self.named(only)
            absent = [server for server in chosen if server.pid() is None]
            lines = machine.missing(self._machine, absent, self._is_fetched(absent))
            if lines:
                raise EnginesFailed(*lines)
            try:
                self._fetch(absent)
                self._start(absent)
                self._settle(chosen)
            except BaseException:
                self._give_up.set()
                self._together(lambda server: server.stop(), absent)
                raise
            return self._publish()

    def stop(self, only: Sequence[str] = ()) -> None:
        """Stops what runs, in order, and waits."""
        with self._alone():
            running = [server for server in self.named(only) if server.pid() is not None]
            if not running:
                self._say("nothing runs")
            self._together(self._stop, running)
            if not any(server.pid() for server in self._servers):
                # Nobody shall be sent to addresses where nothing is.
                (self._choices.folder / FILE).unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """Ends servers with SIGKILL and returns when their ports are free."""
        with self._alone():
            for server in self.named([name]):
                self._say(f"{server.name}: killed" if server.kill() else f"{server.name}: does not run")

    def restart(self, name: str) -> None:
        """Stops servers in order, when they run, and starts them again."""
        with self._alone():
            chosen = self.named([name])
            self._together(self._stop, [server for server in chosen if server.pid() is not None])
            lines = machine.missing(self._machine, chosen, self._is_fetched(chosen))
            if lines:
                raise EnginesFailed(*lines)
            self._start(chosen)
            self._settle(chosen)

    def states(self) -> list[State]:
        """Asks every server how it is."""
        found = []
        for server in self._servers:
            pid = server.pid() or 0
            state = "stopped" if not pid else "serving" if server.is_answering() else "silent"
            found.append(State(server.name, state, pid, resident_mib(pid), f"{server.host}:{server.port}"))
        return found

    def taken_ports(self) -> list[int]:
        """Returns those of the ports that somebody listens on."""
        return [port for server in self._servers for port in server.taken_ports()]

    def named(self, names: Sequence[str]) -> list[Server]:
        """Returns the servers with these names, or of engines with them; all when none is given.

        Raises:
            EnginesFailed: there is none of a name.
        """
        for name in names:
            if not any(name in (server.name, server.engine) for server in self._servers):
                known = ", ".join(server.name for server in self._servers)
                raise EnginesFailed(f"{name}: no such server; there are {known}")
        return [server for server in self._servers if not names or {server.name, server.engine} & set(names)]

    # ---------------------------------------------------------------- steps

    def _is_fetched(self, servers: Sequence[Server]) -> bool:
        return all(jars.is_fetched(self._cache, one) for one in self._jars_of(servers))

    def _fetch(self, servers: Sequence[Server]) -> None:
        for one in self._jars_of(servers):
            began = time.monotonic()
            if jars.fetch(self._cache, one, self._machine.maven):
                self._say(f"{one.name}: fetched in {time.monotonic() - began:.1f} s")

    def _jars_of(self, servers: Sequence[Server]) -> list[jars.Jars]:
        engines = {server.engine for server in servers}
        return [one for engine, one in _JARS.items() if engine in engines]

    def _start(self, servers: Sequence[Server]) -> None:
        def start(server: Server) -> None:
            seconds = server.start(self._give_up)
            self._say(f"{server.name}: answers after {seconds:.1f} s (pid {server.pid()})")

        self._together(start, servers)

    def _stop(self, server: Server) -> None:
        began = time.monotonic()
        how = "stopped" if server.stop() else "had to be killed"
        self._say(f"{server.name}: {how} after {time.monotonic() - began:.1f} s")

    def _together(self, act: Callable[[Server], object], servers: Sequence[Server]) -> None:
        if not servers:
            return
        with ThreadPoolExecutor(max_workers=len(servers)) as pool:
            futures = [pool.submit(act, server) for server in servers]
            try:
                faults = [error for future in futures if (error := future.exception()) is not None]
            except BaseException:
                # A signal: those who wait for an answer stop to wait.
                self._give_up.set()
                raise
        for error in faults:
            if not isinstance(error, EnginesFailed):
                raise error
        if faults:
            raise EnginesFailed(*(line for error in faults if isinstance(error, EnginesFailed) for line in error.lines))

    def _settle(self, servers: Sequence[Server]) -> None:
        """Waits until the nodes of each engine see each other."""
        for engine, is_settled in _SETTLED.items():
            nodes = [server for server in servers if server.engine == engine]
            whole = [server for server in self._servers if server.engine == engine]
            if len(nodes) < 2 or len(nodes) != len(whole):
                continue
            if engine == "redis-cluster":
                redis.join(nodes)
            end = time.monotonic() + READY_LIMIT_S
            while not _holds(partial(is_settled, nodes)):
                if time.monotonic() > end:
                    raise EnginesFailed(f"{engine}: its nodes do not see each other; see {self._choices.folder}")
                time.sleep(_POLL_S)

    # ---------------------------------------------------------------- what is written down

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._choices.folder.is_dir():
            raise EnginesFailed(f"{self._choices.folder}: no engines were started here")
        with (self._choices.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _remember(self) -> None:
        path = self._choices.folder / _CHOICES
        earlier = recall(self._choices.folder)
        if earlier is not None and (earlier.base_port, earlier.nodes) != (self._choices.base_port, self._choices.nodes):
            other = Engines(earlier, os.environ, self._say)
            if any(server.pid() for server in other._servers):
                raise EnginesFailed(
                    f"{self._choices.folder}: {earlier.nodes} node(s) from port {earlier.base_port} run here; "
                    "stop those first, or give another --folder"
                )
            if earlier.base_port != self._choices.base_port:
                # Nodes keep each other's addresses in their data.
                raise EnginesFailed(
                    f"{self._choices.folder}: holds data of servers at port {earlier.base_port}; "
                    "give that --base-port, another --folder, or remove it"
                )
        _write(path, msgspec.json.encode(self._choices, enc_hook=str))

    def _publish(self) -> dict[str, str | int]:
        running = {server.engine for server in self._servers if server.pid() is not None}
        found: dict[str, str | int] = {
            KEYS[engine]: url(self._choices, engine) for engine in ENGINES if engine in running
        }
        found["replicas"] = self._choices.nodes
        _write(self._choices.folder / FILE, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        return found


def recall(folder: Path) -> Choices | None:
    """Returns what the servers of a folder were started with; None when none were."""
    try:
        return msgspec.json.decode(
            (folder / _CHOICES).read_bytes(), type=Choices, dec_hook=lambda kind, value: kind(value)
        )
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    os.replace(aside, path)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except (OSError, ValueError, ArithmeticError, LookupError):
        return False


def _brokers_see_all(nodes: list[Server]) -> bool:
    return all(len(probes.kafka_brokers(node.host, node.port)) == len(nodes) for node in nodes)


def _nodes_see_all(nodes: list[Server]) -> bool:
    return all(probes.cassandra_peers(node.host, node.port) == len(nodes) - 1 for node in nodes)


_SETTLED: Final[Mapping[EngineName, Callable[[list[Server]], bool]]] = {
    "kafka": _brokers_see_all,
    "redis-cluster": redis.is_joined,
    "cassandra": _nodes_see_all,
}

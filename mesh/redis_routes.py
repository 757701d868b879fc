"""Which Redis server takes a key now: the one that was named, the one Sentinel names, or a slot's primary in a Cluster.

Must not retry or wait: `mesh.redis` does. Reads and writes go to primaries alone.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from mesh.errors import StartError
from mesh.redis_connections import Access, Lost, Refusal, Reply, Server
from mesh.stores import EngineUrl, Host

SLOTS = 16_384


class Routes(Protocol):
    """Knows servers by slot."""

    @property
    def clustered(self) -> bool:
        """Keys of different slots are on different servers."""
        ...

    async def find(self, slot: int) -> Server:
        """Returns the primary of a slot as far as known; asks when nothing is known. Raises `Lost`."""
        ...

    async def refresh(self) -> None:
        """Asks anew who is primary. Raises `Lost` when nobody tells."""
        ...

    def at(self, host: Host) -> Server:
        """Returns the server at an address that another one pointed to."""
        ...

    async def primaries(self) -> Sequence[tuple[Server, range]]:
        """Returns every primary, with slots of its own. Raises `Lost`, also when a slot belongs to nobody."""
        ...

    async def close(self) -> None:
        """Closes all connections."""
        ...


class _Servers:
    """Servers by address, kept as long as the routes."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._servers: dict[Host, Server] = {}

    def at(self, host: Host) -> Server:
        """Returns the server at an address."""
        known = self._servers.get(host)
        if known is None:
            known = self._servers[host] = Server(host, self._access)
        return known

    async def keep(self, hosts: set[Host]) -> None:
        """Closes those that are not among these."""
        for host in [host for host in self._servers if host not in hosts]:
            await self._servers.pop(host).close()


class Single:
    """One server, whatever its role: it says itself when it is none that may be written to."""

    clustered = False

    def __init__(self, host: Host, access: Access) -> None:
        self._server = Server(host, access)

    async def find(self, slot: int) -> Server:
        """See `Routes`."""
        return self._server

    def at(self, host: Host) -> Server:
        """See `Routes`; nobody points elsewhere."""
        return self._server

    async def refresh(self) -> None:
        """There is nobody to ask."""

    async def primaries(self) -> Sequence[tuple[Server, range]]:
        """See `Routes`."""
        return [(self._server, range(SLOTS))]

    async def close(self) -> None:
        """See `Routes`."""
        await self._server.close()


class _Asked:
    """Answers that many want at once, and one fetches."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._lock = asyncio.Lock()
        self._count = 0

    async def fetch(self) -> None:
        """Asks, or takes the answer that somebody else gets meanwhile."""
        count = self._count
        async with self._lock:
            if self._count == count:
                await self._ask()
                self._count += 1


class Sentinel:
    """The primary of a service as the sentinels name it.

    Args:
        hosts: the sentinels.
        service: the name they know it by.
        access: how to enter the servers.
        sentinel_access: how to enter the sentinels.
    """

    clustered = False

    def __init__(self, hosts: Sequence[Host], service: str, access: Access, sentinel_access: Access) -> None:
        self._sentinels = [Server(host, sentinel_access) for host in hosts]
        self._service = service
        self._servers = _Servers(access)
        self._primary: Host | None = None
        self._asked = _Asked(self._ask)

    async def find(self, slot: int) -> Server:
        """See `Routes`."""
        if self._primary is None:
            await self.refresh()
        if self._primary is None:
            raise Lost(f"no sentinel knows the primary of {self._service!r}")
        return self._servers.at(self._primary)

    def at(self, host: Host) -> Server:
        """See `Routes`."""
        return self._servers.at(host)

    async def refresh(self) -> None:
        """See `Routes`."""
        await self._asked.fetch()

    async def primaries(self) -> Sequence[tuple[Server, range]]:
        """See `Routes`."""
        return [(await self.find(0), range(SLOTS))]

    async def close(self) -> None:
        """See `Routes`."""
        for sentinel in self._sentinels:
            await sentinel.close()
        await self._servers.keep(set())

    async def _ask(self) -> None:
        errors = []
        for sentinel in tuple(self._sentinels):
            try:
                (reply,) = await sentinel.run([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)])
            except Lost as error:
                errors.append(error)
                continue
            host = _address(reply)
            if host is None:
                said = str(reply) if isinstance(reply, Refusal) else f"does not know {self._service!r}"
                errors.append(Lost(f"{sentinel.host}: {said}", wrong=True))
                continue
            # Whoever answered is asked first from now on.
            self._sentinels.sort(key=lambda one: one is not sentinel)
            self._primary = host
            await self._servers.keep({host})
            return
        raise Lost("; ".join(str(error) for error in errors), wrong=any(error.wrong for error in errors))


class _Range(msgspec.Struct, frozen=True):
    first: int
    last: int
    host: Host


class Cluster:
    """The primaries of a Cluster by slot, as any of its servers knows them.

    Args:
        hosts: where to begin.
        access: how to enter the servers.
    """

    clustered = True

    def __init__(self, hosts: Sequence[Host], access: Access) -> None:
        self._first = tuple(hosts)
        self._servers = _Servers(access)
        self._ranges: list[_Range] = []
        self._firsts: list[int] = []
        self._asked = _Asked(self._ask)
        # Who failed to tell is asked last.
        self._silent: set[Host] = set()

    async def find(self, slot: int) -> Server:
        """See `Routes`."""
        if not self._ranges:
            await self.refresh()
        index = bisect.bisect_right(self._firsts, slot) - 1
        if index < 0 or self._ranges[index].last < slot:
            raise Lost(f"slot {slot} belongs to no server of the cluster")
        return self._servers.at(self._ranges[index].host)

    def at(self, host: Host) -> Server:
        """See `Routes`."""
        return self._servers.at(host)

    async def refresh(self) -> None:
        """See `Routes`."""
        await self._asked.fetch()

    async def primaries(self) -> Sequence[tuple[Server, range]]:
        """See `Routes`."""
        if not self._ranges:
            await self.refresh()
        covered = sum(one.last - one.first + 1 for one in self._ranges)
        if covered < SLOTS:
            raise Lost(f"{SLOTS - covered} of {SLOTS} slots belong to no server of the cluster")
        found = {one.host: range(one.first, one.last + 1) for one in self._ranges}
        return [(self._servers.at(host), slots) for host, slots in found.items()]

    async def close(self) -> None:
        """See `Routes`."""
        await self._servers.keep(set())

    async def _ask(self) -> None:
        known = dict.fromkeys((*(one.host for one in self._ranges), *self._first))
        errors = []
        for host in sorted(known, key=lambda one: one in self._silent):
            try:
                (reply,) = await self._servers.at(host).run([("CLUSTER", "SLOTS")])
            except Lost as error:
                self._silent.add(host)
                errors.append(error)
                continue
            if not isinstance(reply, list):
                errors.append(Lost(f"{host}: {reply!s}", wrong=True))
                continue
            self._silent.discard(host)
            self._ranges = sorted((_range(one, host) for one in reply), key=lambda one: one.first)
            self._firsts = [one.first for one in self._ranges]
            await self._servers.keep({*(one.host for one in self._ranges), *self._first})
            return
        raise Lost("; ".join(str(error) for error in errors), wrong=any(error.wrong for error in errors))


def _range(reply: Reply, asked: Host) -> _Range:
    """Reads one entry of CLUSTER SLOTS: first, last, primary, replicas. A server without a name is the asked one."""
    if isinstance(reply, list) and len(reply) > 2:
        first, last, primary = reply[:3]
        if isinstance(first, int) and isinstance(last, int) and isinstance(primary, list):
            name, port = primary[:2]
            if isinstance(port, int):
                text = name.decode() if isinstance(name, bytes) else ""
                return _Range(first, last, Host(text if text not in ("", "?") else asked.name, port))
    raise Lost(f"{asked}: CLUSTER SLOTS answers {reply!r}")


def _address(reply: Reply) -> Host | None:
    if isinstance(reply, list) and len(reply) == 2:
        name, port = reply
        if isinstance(name, bytes) and isinstance(port, bytes):
            return Host(name.decode(), int(port))
    return None


def routes_of(setting: str, url: EngineUrl, access: Access) -> Routes:
    """Returns the routes that a URL asks for.

    Raises:
        StartError: the path does not fit the scheme; the line begins with the setting.
    """
    match url.scheme:
        case "redis+cluster":
            if url.name:
                raise StartError(f"{setting}: {url.text!r}: a cluster has no databases: leave out /{url.name}")
            return Cluster(url.hosts, access)
        case "redis+sentinel":
            if not url.name:
                raise StartError(f"{setting}: {url.text!r} names no service: redis+sentinel://HOST:PORT/SERVICE")
            file = url.options.get("sentinel_credentials", "")
            options = {**url.options, "credentials": file}
            credentials = msgspec.structs.replace(url, options=options).credentials()
            return Sentinel(url.hosts, url.name, access, Access(credentials=credentials, tls=access.tls))
        case _:
            if len(url.hosts) > 1:
                raise StartError(f"{setting}: {url.text!r} names several hosts: redis+cluster://, or redis+sentinel://")
            if url.name and not url.name.isdecimal():
                raise StartError(f"{setting}: {url.text!r}: the database must be a number, not {url.name!r}")
            return Single(url.hosts[0], msgspec.structs.replace(access, database=int(url.name or 0)))


def parts_of_slots(count: int) -> list[range]:
    """Returns the slots in `count` ranges of about the same size."""
    return [range(SLOTS * index // count, SLOTS * (index + 1) // count) for index in range(count)]

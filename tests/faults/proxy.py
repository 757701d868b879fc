"""A proxy between any two ends, with the ways in which networks fail: slow, silent, reset, in crumbs, cut off.

Ends are `host:port` or a path of a Unix socket. Toxics change at once, for connections that are open too. What they
did is counted: a fault without evidence did not happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

Way = Literal["up", "down"]

_CHUNK = 64 * 1024


class Toxics(msgspec.Struct, frozen=True):
    """What is wrong with a link; the default is nothing.

    Attributes:
        refuse: new connections are reset.
        latency: seconds that every chunk waits.
        bandwidth: bytes a second of each connection and way; None: as it comes.
        slice: bytes of a chunk at most; None: as it comes.
        silent: the ways that swallow what they get, without closing: "up" is towards the server.
        held: the ways that read nothing more: the sender's socket fills.
        cut_after: a connection is reset after so many bytes from the server; None: never.
    """

    refuse: bool = False
    latency: float = 0.0
    bandwidth: float | None = None
    slice: int | None = None
    silent: frozenset[Way] = frozenset()
    held: frozenset[Way] = frozenset()
    cut_after: int | None = None


HEALTHY = Toxics()
BLACK_HOLE = Toxics(silent=frozenset({"up", "down"}))


class Evidence(msgspec.Struct):
    """What a proxy did since it was asked last.

    Attributes:
        connections: opened.
        refused: reset before they began.
        bytes: that went through, both ways.
        swallowed: bytes that did not.
        resets: connections that were reset.
        delayed: chunks that waited.
    """

    connections: int = 0
    refused: int = 0
    bytes: int = 0
    swallowed: int = 0
    resets: int = 0
    delayed: int = 0

    def __str__(self) -> str:
        """Names what is not zero."""
        return ", ".join(f"{name} {value}" for name, value in msgspec.structs.asdict(self).items() if value)


class Proxy:
    """One proxied link; `proxied` opens it.

    Attributes:
        address: where it listens.
        evidence: what it did.
    """

    def __init__(self, target: str) -> None:
        self.address = ""
        self.evidence = Evidence()
        self._target = target
        self._toxics = HEALTHY
        self._changed = asyncio.Event()
        self._pairs: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def open_connections(self) -> int:
        """How many connections go through it."""
        return len(self._pairs)

    async def start(self, address: str) -> None:
        """Listens: at a Unix socket, or at a port; port 0 takes a free one."""
        if "/" in address:
            self._server = await asyncio.start_unix_server(self._take, address)
            self.address = address
            return
        host, _, port = address.rpartition(":")
        self._server = await asyncio.start_server(self._take, host, int(port))
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Ends everything that goes through it."""
        if self._server is not None:
            self._server.close()
        for pair in list(self._pairs):
            pair.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    def apply(self, toxics: Toxics) -> None:
        """Changes what is wrong, from now on, and starts the evidence anew."""
        self._toxics = toxics
        self.evidence = Evidence()
        self._changed.set()
        self._changed = asyncio.Event()

    def reset_all(self) -> int:
        """Resets every open connection, and returns how many there were."""
        count = len(self._pairs)
        self.evidence.resets += count
        for pair in list(self._pairs):
            pair.cancel()
        return count

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = asyncio.current_task()
        assert pair is not None
        self._pairs.add(pair)
        try:
            await self._serve(reader, writer)
        except (asyncio.CancelledError, OSError):
            # Reset by us or by an end: the other end hears it at once.
            _reset(writer)
        finally:
            self._pairs.discard(pair)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._toxics.refuse:
            self.evidence.refused += 1
            _reset(writer)
            return
        self.evidence.connections += 1
        far_reader, far_writer = await _connect(self._target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump("up", reader, far_writer))
                group.create_task(self._pump("down", far_reader, writer))
        except* (OSError, _CutOff):
            _reset(writer)
        finally:
            _reset(far_writer)

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while True:
            while way in self._toxics.held:
                await self._changed.wait()
            chunk = await reader.read(self._toxics.slice or _CHUNK)
            if not chunk:
                with contextlib.suppress(OSError, NotImplementedError):
                    writer.write_eof()
                return
            await self._slow(len(chunk))
            if way in self._toxics.silent:
                self.evidence.swallowed += len(chunk)
                continue
            limit = self._toxics.cut_after
            if way == "down" and limit is not None and passed + len(chunk) > limit:
                writer.write(chunk[: limit - passed])
                await writer.drain()
                self.evidence.resets += 1
                raise _CutOff
            writer.write(chunk)
            await writer.drain()
            passed += len(chunk)
            self.evidence.bytes += len(chunk)

    async def _slow(self, size: int) -> None:
        toxics = self._toxics
        pause = toxics.latency + (size / toxics.bandwidth if toxics.bandwidth else 0.0)
        if pause:
            self.evidence.delayed += 1
            changed = self._changed
            # A heal ends the wait: what was slow is not slow any more.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await changed.wait()


class _CutOff(Exception):
    """A connection reached the byte at which it is cut."""


@asynccontextmanager
async def proxied(target: str, address: str = "127.0.0.1:0") -> AsyncIterator[Proxy]:
    """Opens a proxy to an end; healthy until told otherwise."""
    proxy = Proxy(target)
    await proxy.start(address)
    try:
        yield proxy
    finally:
        await proxy.stop()


async def _connect(target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if "/" in target:
        return await asyncio.open_unix_connection(target)
    host, _, port = target.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with a reset rather than a goodbye."""
    plain = writer.get_extra_info("socket")
    if plain is not None and plain.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

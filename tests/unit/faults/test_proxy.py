"""The proxy fails in the ways it is told to, heals, and says what it did."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.faults.proxy import BLACK_HOLE, HEALTHY, Proxy, Toxics, proxied
from tests.support.wait import until

_LIMIT_S = 5.0


@asynccontextmanager
async def _echo(address: str = "") -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = (
        await asyncio.start_unix_server(serve, address)
        if address
        else await asyncio.start_server(serve, "127.0.0.1", 0)
    )
    try:
        yield address or f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, text: bytes) -> None:
        self.writer.write(text)
        await self.writer.drain()

    async def hears(self, text: bytes) -> None:
        async with asyncio.timeout(_LIMIT_S):
            assert await self.reader.readexactly(len(text)) == text

    async def is_reset(self, after: bytes = b"") -> None:
        got = b""
        # A reset, or an end where the socket cannot tell one from the other.
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(_LIMIT_S):
                while chunk := await self.reader.read(100):
                    got += chunk
        assert got == after


@asynccontextmanager
async def _client(proxy: Proxy) -> AsyncIterator[_Client]:
    if "/" in proxy.address:
        reader, writer = await asyncio.open_unix_connection(proxy.address)
    else:
        host, _, port = proxy.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield _Client(reader, writer)
    finally:
        writer.transport.abort()


async def test_a_healthy_link_passes_everything_on() -> None:
    """Both ways, and counted."""
    async with _echo() as target, proxied(target) as proxy, _client(proxy) as client:
        await client.say(b"hello")
        await client.hears(b"hello")
        assert (proxy.evidence.connections, proxy.evidence.bytes) == (1, 10)


async def test_unix_sockets_are_links_too(run_dir: Path) -> None:
    """What services listen on can be stood before."""
    near = str(run_dir / "near")
    async with _echo(str(run_dir / "far")) as target, proxied(target, near) as proxy, _client(proxy) as client:
        await client.say(b"hello")
        await client.hears(b"hello")


async def test_a_black_hole_swallows_and_closes_nothing() -> None:
    """An open connection falls silent; after the heal new bytes pass, swallowed ones do not come back."""
    async with _echo() as target, proxied(target) as proxy, _client(proxy) as client:
        await client.say(b"a")
        await client.hears(b"a")
        proxy.apply(BLACK_HOLE)
        await client.say(b"lost")
        await until(lambda: proxy.evidence.swallowed == 4, _LIMIT_S, "it is swallowed")
        proxy.apply(HEALTHY)
        await client.say(b"b")
        await client.hears(b"b")


async def test_one_way_can_be_silent_alone() -> None:
    """The server hears the request, its answer does not come."""
    async with _echo() as target, proxied(target) as proxy, _client(proxy) as client:
        proxy.apply(Toxics(silent=frozenset({"down"})))
        await client.say(b"asked")
        await until(lambda: (proxy.evidence.bytes, proxy.evidence.swallowed) == (5, 5), _LIMIT_S, "it was answered")


async def test_a_held_way_goes_on_after_the_heal() -> None:
    """Nothing is lost: it is only late."""
    async with _echo() as target, proxied(target) as proxy, _client(proxy) as client:
        proxy.apply(Toxics(held=frozenset({"down"})))
        await client.say(b"x" * 10)
        await until(lambda: proxy.evidence.bytes >= 10, _LIMIT_S, "the server has it")
        proxy.apply(HEALTHY)
        await client.hears(b"x" * 10)


async def test_a_connection_is_cut_after_so_many_bytes() -> None:
    """The first bytes arrive, then it is reset."""
    async with _echo() as target, proxied(target) as proxy, _client(proxy) as client:
        proxy.apply(Toxics(cut_after=3))
        await client.say(b"hello")
        await client.is_reset(after=b"hel")
        assert proxy.evidence.resets == 1


async def test_new_connections_are_refused_and_open_ones_stay() -> None:
    """Like a listener whose queue is full."""
    async with _echo() as target, proxied(target) as proxy, _client(proxy) as old:
        await old.say(b"a")
        await old.hears(b"a")
        proxy.apply(Toxics(refuse=True))
        async with _client(proxy) as new:
            await new.is_reset()
        await old.say(b"b")
        await old.hears(b"b")
        assert proxy.evidence.refused == 1


async def test_all_connections_are_reset_at_once() -> None:
    """Each client hears it."""
    async with _echo() as target, proxied(target) as proxy, _client(proxy) as one, _client(proxy) as two:
        for client in (one, two):
            await client.say(b"a")
            await client.hears(b"a")
        assert proxy.reset_all() == 2
        await one.is_reset()
        await two.is_reset()
        await until(lambda: proxy.open_connections == 0, _LIMIT_S, "none is open")


async def test_slow_links_are_slow_until_they_heal() -> None:
    """A chunk waits; the heal ends the wait at once."""
    async with _echo() as target, proxied(target) as proxy, _client(proxy) as client:
        proxy.apply(Toxics(latency=3600.0, slice=1))
        await client.say(b"ab")
        await until(lambda: proxy.evidence.delayed == 1, _LIMIT_S, "the first byte waits")
        assert proxy.evidence.bytes == 0
        proxy.apply(HEALTHY)
        await client.hears(b"ab")


async def test_a_dead_end_is_a_reset() -> None:
    """Whoever connects to nothing hears it."""
    async with _echo() as target:
        pass
    async with proxied(target) as proxy, _client(proxy) as client:
        await client.is_reset()


def test_evidence_names_what_happened() -> None:
    """Only what is not zero."""
    proxy = Proxy("127.0.0.1:1")
    proxy.evidence.resets = 2
    assert str(proxy.evidence) == "resets 2"

"""Abuse of HTTP/2 at the edge: streams reset at once, headers without an end, streams that never go on.

Each ends on the abuser's own connection, while a second client's calls are answered and a neighbour's frames come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hyperframe.frame import SettingsFrame

from mesh.identity import TOKEN_HEADER
from tests.support.http2 import Fields, Http2, http2
from tests.support.site import IN_A_MESH, Site
from tests.support.wait import until

pytestmark = IN_A_MESH
LIST_INBOX = "/heliograph.delivery.v1.InboxService/ListInbox"
_LIMIT_S = 20.0


def _call(site: Site, path: str = LIST_INBOX) -> Fields:
    return (
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        (TOKEN_HEADER, f"Bearer {site.cluster.token('mallory')}"),
    )


@asynccontextmanager
async def _attacker(site: Site) -> AsyncIterator[Http2]:
    context = site.tls()
    assert context is not None
    host, _, port = site.cluster.running.edge.rpartition(":")
    async with http2(host, int(port), context) as client:
        yield client


@asynccontextmanager
async def _served(site: Site) -> AsyncIterator[None]:
    """Checks that every call of a second client is answered meanwhile, and that there were some."""
    headers = {TOKEN_HEADER: f"Bearer {site.cluster.token('carol')}"}
    over = asyncio.Event()

    async def ask() -> list[int]:
        statuses: list[int] = []
        async with site.rest() as client:
            while not over.is_set() or len(statuses) < 5:
                statuses.append((await client.get("/v1/inbox/unread", headers=headers)).status_code)
        return statuses

    async with site.undisturbed():
        asking = asyncio.create_task(ask())
        try:
            yield
        finally:
            over.set()
            statuses = await asking
        assert set(statuses) == {200}


async def test_streams_that_are_reset_at_once_end_the_connection(site: Site) -> None:
    """A thousand calls that nobody wants to hear the answer of are not carried out to the end."""
    async with _served(site), _attacker(site) as attacker:
        fields = _call(site)
        # A few are what impatient clients do: a call after them is answered.
        await attacker.send(b"".join(attacker.opened_and_reset(fields) for _ in range(20)))
        number, head = attacker.request(_call(site, "/v1/nothing"), ends=True)
        await attacker.send(head)
        await until(lambda: number in attacker.answered, _LIMIT_S, "the edge answers")
        for _ in range(50):
            if not await attacker.send(b"".join(attacker.opened_and_reset(fields) for _ in range(20))):
                break
        await until(lambda: attacker.gone, _LIMIT_S, "the edge ends the connection")
        assert attacker.answered == {number}


def _large(number: int) -> Fields:
    return ((f"x-filler-{number}", "a" * 8_000),)


def _small(number: int) -> Fields:
    return ((f"x-filler-{number}", "a"),)


def _nothing(_: int) -> Fields:
    return ()


@pytest.mark.parametrize("more", [_large, _small, _nothing], ids=["large", "small", "empty"])
async def test_headers_without_an_end_are_cut_off(site: Site, more: Callable[[int], Fields]) -> None:
    """Whether the limit of bytes, of headers or of empty frames is met first; nothing waits for the last one."""
    async with _served(site), _attacker(site) as attacker:
        number, head = attacker.unfinished(_call(site))
        assert await attacker.send(head)
        for index in range(5_000):
            if not await attacker.send(attacker.more(number, more(index))):
                break
            if number in attacker.reset | attacker.answered:
                break
            await asyncio.sleep(0)
        await until(
            lambda: attacker.gone or number in attacker.reset | attacker.answered, _LIMIT_S, "the edge refuses them"
        )


async def test_streams_that_never_go_on_are_few_and_end(site: Site) -> None:
    """One connection has a hundred at most, and none of them outlives the longest call."""
    async with _served(site), _attacker(site) as attacker:
        await until(lambda: bool(attacker.settings), _LIMIT_S, "the edge announces its limits")
        limit = attacker.settings[SettingsFrame.MAX_CONCURRENT_STREAMS]
        assert limit == 100
        numbers: set[int] = set()
        for _ in range(limit):
            number, head = attacker.request(_call(site))
            numbers.add(number)
            assert await attacker.send(head)
        await until(lambda: numbers <= attacker.answered | attacker.reset, _LIMIT_S, "every stream is over")
        assert not attacker.gone


async def test_a_stream_too_many_is_refused(site: Site) -> None:
    """Who does not keep to what was announced loses the stream or the connection."""
    async with _served(site), _attacker(site) as attacker:
        await until(lambda: bool(attacker.settings), _LIMIT_S, "the edge announces its limits")
        limit = attacker.settings[SettingsFrame.MAX_CONCURRENT_STREAMS]
        opened = [attacker.request(_call(site)) for _ in range(limit + 1)]
        await attacker.send(b"".join(head for _, head in opened))
        last = opened[-1][0]
        await until(lambda: attacker.gone or last in attacker.reset, _LIMIT_S, "the last one is refused")

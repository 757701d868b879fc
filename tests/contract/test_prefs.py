"""What every preference store promises; see `svc_prefs.ports.PrefsStore`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_prefs.ports import PrefsStore, Stored
from tests.support.backends import Opener, prefs_backends


@pytest.fixture(params=prefs_backends())
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[PrefsStore]:
    """Opens the same store again and again."""
    opened: Opener[PrefsStore] = request.param(tmp_path)
    return opened


@pytest.fixture
async def store(opener: Opener[PrefsStore]) -> AsyncIterator[PrefsStore]:
    """An empty store of each kind."""
    async with opener() as opened:
        yield opened


def stored(recipient_id: str = "alice", version: int = 1, tenant_id: str = "acme") -> Stored:
    """Some choices."""
    return Stored(tenant_id, recipient_id, version, b"choices %d" % version)


async def get(store: PrefsStore, *recipient_ids: str, tenant_id: str = "acme") -> set[Stored]:
    """What is stored of some recipients."""
    return set(await store.get_many(tenant_id, recipient_ids))


async def test_what_was_replaced_is_read(store: PrefsStore) -> None:
    """A read sees every write that returned before it."""
    assert await store.replace(stored())
    assert await get(store, "alice") == {stored()}
    assert await store.replace(stored(version=2))
    assert await get(store, "alice") == {stored(version=2)}


async def test_only_those_who_chose_are_answered(store: PrefsStore) -> None:
    """Recipients without choices are simply missing."""
    await store.replace(stored())
    assert await get(store, "alice", "bob") == {stored()}
    assert await get(store) == set()


async def test_a_page_of_a_thousand_recipients_is_one_call(store: PrefsStore) -> None:
    """Large pages are answered whole."""
    await asyncio.gather(*(store.replace(stored(f"r{index}")) for index in range(0, 1000, 2)))
    assert len(await get(store, *(f"r{index}" for index in range(1000)))) == 500


async def test_tenants_do_not_meet(store: PrefsStore) -> None:
    """The same recipient id in two tenants is two recipients."""
    await store.replace(stored())
    assert await get(store, "alice", tenant_id="globex") == set()
    assert await store.replace(stored(tenant_id="globex"))
    assert await get(store, "alice") == {stored()}


async def test_a_change_that_came_second_is_refused(store: PrefsStore) -> None:
    """Of two changes of one version exactly one is written."""
    assert not await store.replace(stored(version=2))
    results = await asyncio.gather(store.replace(stored()), store.replace(stored()))
    assert sorted(results) == [False, True]
    assert not await store.replace(stored(version=3))
    assert await get(store, "alice") == {stored()}


async def test_odd_ids_are_only_ids(store: PrefsStore) -> None:
    """Quotes, percent signs and JSON in an id mean nothing."""
    odd = ["a'b", 'a"b', "a%b", '["x"]', "a;drop table preferences"]
    for recipient_id in odd:
        assert await store.replace(stored(recipient_id))
    assert await get(store, *odd) == {stored(recipient_id) for recipient_id in odd}


async def test_choices_survive_a_restart(opener: Opener[PrefsStore]) -> None:
    """What returned True is there after the store was closed and opened again."""
    async with opener() as first:
        await first.replace(stored())
    async with opener() as second:
        assert await get(second, "alice") == {stored()}

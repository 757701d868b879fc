"""What every preference store promises; see `svc_prefs.ports.PrefsStore`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from svc_prefs.ports import Changes, LogLimits, PrefsStore, Stored
from svc_prefs.store import WishStore
from tests.support.backends import Opener, wish_backends

NOW_US = 1_700_000_000_000_000
DAY_US = 24 * 3600 * 1_000_000


@pytest.fixture(params=wish_backends())
def backend(request: pytest.FixtureRequest) -> Callable[..., Opener[WishStore]]:
    """Each kind of store."""
    made: Callable[..., Opener[WishStore]] = request.param
    return made


@pytest.fixture
def opener(backend: Callable[..., Opener[WishStore]], tmp_path: Path) -> Opener[WishStore]:
    """Opens the same store again and again; it remembers five changes, for a day."""
    return backend(tmp_path, LogLimits(count=5, age_us=DAY_US))


@pytest.fixture
async def store(opener: Opener[WishStore]) -> AsyncIterator[PrefsStore]:
    """An empty store of each kind."""
    async with opener() as opened:
        yield opened.prefs


def stored(recipient_id: str = "alice", version: int = 1, tenant_id: str = "acme") -> Stored:
    """Some choices."""
    return Stored(tenant_id, recipient_id, version, b"choices %d" % version)


async def get(store: PrefsStore, *recipient_ids: str, tenant_id: str = "acme") -> set[Stored]:
    """What is stored of some recipients."""
    return set((await store.get_many(tenant_id, recipient_ids)).rows)


async def put(store: PrefsStore, *recipient_ids: str, tenant_id: str = "acme", now_us: int = NOW_US) -> None:
    """Changes the choices of recipients, one after the other."""
    for recipient_id in recipient_ids:
        before = await get(store, recipient_id, tenant_id=tenant_id)
        version = max((one.version for one in before), default=0) + 1
        assert await store.replace(stored(recipient_id, version, tenant_id), now_us)


async def newest(store: PrefsStore) -> int:
    """The number of the newest change."""
    return (await store.get_many("acme", [])).change_number


async def changes(store: PrefsStore, number: int, limit: int = 100) -> Changes:
    """Who changed since."""
    return await store.list_changes(number, limit)


async def test_what_was_replaced_is_read(store: PrefsStore) -> None:
    """A read sees every write that returned before it."""
    assert await store.replace(stored(), NOW_US)
    assert await get(store, "alice") == {stored()}
    assert await store.replace(stored(version=2), NOW_US)
    assert await get(store, "alice") == {stored(version=2)}


async def test_only_those_who_chose_are_answered(store: PrefsStore) -> None:
    """Recipients without choices are simply missing."""
    await store.replace(stored(), NOW_US)
    assert await get(store, "alice", "bob") == {stored()}
    assert await get(store) == set()


async def test_a_page_of_a_thousand_recipients_is_one_call(store: PrefsStore) -> None:
    """Large pages are answered whole."""
    # Some at a time: a call that waits too long for its turn is refused.
    for begin in range(0, 1000, 100):
        some = range(begin, begin + 100, 2)
        await asyncio.gather(*(store.replace(stored(f"r{index}"), NOW_US) for index in some))
    assert len(await get(store, *(f"r{index}" for index in range(1000)))) == 500


async def test_tenants_do_not_meet(store: PrefsStore) -> None:
    """The same recipient id in two tenants is two recipients."""
    await store.replace(stored(), NOW_US)
    assert await get(store, "alice", tenant_id="globex") == set()
    assert await store.replace(stored(tenant_id="globex"), NOW_US)
    assert await get(store, "alice") == {stored()}


async def test_a_change_that_came_second_is_refused(store: PrefsStore) -> None:
    """Of two changes of one version exactly one is written."""
    assert not await store.replace(stored(version=2), NOW_US)
    results = await asyncio.gather(store.replace(stored(), NOW_US), store.replace(stored(), NOW_US))
    assert sorted(results) == [False, True]
    assert not await store.replace(stored(version=3), NOW_US)
    assert await get(store, "alice") == {stored()}


async def test_odd_ids_are_only_ids(store: PrefsStore) -> None:
    """Quotes, percent signs and JSON in an id mean nothing."""
    odd = ["a'b", 'a"b', "a%b", '["x"]', "a;drop table preferences"]
    for recipient_id in odd:
        assert await store.replace(stored(recipient_id), NOW_US)
    assert await get(store, *odd) == {stored(recipient_id) for recipient_id in odd}


async def test_choices_survive_a_restart(opener: Opener[WishStore]) -> None:
    """What returned True is there after the store was closed and opened again."""
    async with opener() as first:
        await first.prefs.replace(stored(), NOW_US)
    async with opener() as second:
        assert await get(second.prefs, "alice") == {stored()}


async def test_changes_are_listed_once_each_in_order(store: PrefsStore) -> None:
    """Whoever changed twice stands where the second change is."""
    begin = await newest(store)
    await put(store, "alice", "bob", "alice")
    found = await changes(store, begin)
    assert found.owners == [("acme", "bob"), ("acme", "alice")]
    assert (found.change_number, found.more, found.reset) == (await newest(store), False, False)
    assert (await changes(store, found.change_number)).owners == []


async def test_changes_come_in_pages(store: PrefsStore) -> None:
    """Asking again from each answer's number finds everybody, and the last page says that it is the last."""
    begin = await newest(store)
    await put(store, "a", "b", "c", "d", "e")
    first = await changes(store, begin, 2)
    assert (first.owners, first.more) == ([("acme", "a"), ("acme", "b")], True)
    # Changes between two pages are on a later one.
    await put(store, "b")
    second = await changes(store, first.change_number, 2)
    third = await changes(store, second.change_number, 2)
    assert [*second.owners, *third.owners] == [("acme", "c"), ("acme", "d"), ("acme", "e"), ("acme", "b")]
    assert (second.more, third.more) == (True, False)
    assert third.change_number == await newest(store)


async def test_changes_of_all_tenants_are_listed(store: PrefsStore) -> None:
    """The same recipient id in two tenants is two changes."""
    begin = await newest(store)
    await put(store, "alice")
    await put(store, "alice", tenant_id="globex")
    assert (await changes(store, begin)).owners == [("acme", "alice"), ("globex", "alice")]


async def test_a_refused_change_is_not_listed(store: PrefsStore) -> None:
    """What was not written did not change anybody's wishes."""
    begin = await newest(store)
    assert not await store.replace(stored(version=7), NOW_US)
    assert await changes(store, begin) == Changes([], begin)


async def test_a_number_never_promises_more_than_the_rows_know(store: PrefsStore) -> None:
    """While choices change, each read's number names no change that its rows lack: none is ever missed."""
    begin = await newest(store)
    done = asyncio.Event()

    async def change() -> None:
        for version in range(1, 101):
            assert await store.replace(stored(version=version), NOW_US)
        done.set()

    async def read() -> int:
        count = 0
        while not done.is_set():
            found = await store.get_many("acme", ["alice"])
            version = max((one.version for one in found.rows), default=0)
            assert version >= found.change_number - begin
            count += 1
        return count

    async with asyncio.TaskGroup() as group:
        group.create_task(change())
        reads = group.create_task(read())
    assert reads.result() > 1


async def test_what_is_forgotten_is_said(store: PrefsStore) -> None:
    """Only the newest changes are remembered; older numbers, and numbers that are not there yet, reset the asker."""
    begin = await newest(store)
    await put(store, *(f"r{number}" for number in range(7)))
    end = await newest(store)
    for number in (0, begin, begin + 1, end + 1):
        assert await changes(store, number) == Changes((), end, reset=True), number
    found = await changes(store, begin + 2)
    assert (found.owners, found.reset) == ([("acme", f"r{number}") for number in range(2, 7)], False)


async def test_old_changes_are_forgotten_when_others_come(store: PrefsStore) -> None:
    """A day later only what changed since is remembered."""
    begin = await newest(store)
    await put(store, "alice", "bob")
    await put(store, "carol", now_us=NOW_US + DAY_US + 1)
    assert (await changes(store, begin)).reset
    assert (await changes(store, begin + 1)).reset
    assert (await changes(store, begin + 2)).owners == [("acme", "carol")]


async def test_one_who_changes_all_the_time_ages_the_changes_of_others(store: PrefsStore) -> None:
    """What counts is how many changes came since, not how many recipients changed."""
    begin = await newest(store)
    await put(store, "bob", *["alice"] * 9)
    end = await newest(store)
    assert (await changes(store, begin)).reset
    assert (await changes(store, end - 4)).owners == [("acme", "alice")]


async def test_changes_survive_a_restart(opener: Opener[WishStore]) -> None:
    """Numbers go on, and what changed before is still listed."""
    async with opener() as first:
        begin = await newest(first.prefs)
        await put(first.prefs, "alice")
    async with opener() as second:
        await put(second.prefs, "bob")
        assert (await changes(second.prefs, begin)).owners == [("acme", "alice"), ("acme", "bob")]


async def test_numbers_of_another_store_mean_nothing(backend: Callable[..., Opener[WishStore]], tmp_path: Path) -> None:
    """A store that is made anew resets whoever still has a number of the old one."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    async with backend(tmp_path / "old")() as old:
        begin = await newest(old.prefs)
        await put(old.prefs, "alice", "bob")
        end = await newest(old.prefs)
    async with backend(tmp_path / "new")() as new:
        for number in (begin, end):
            assert (await changes(new.prefs, number)).reset
        await put(new.prefs, "carol")
        assert (await changes(new.prefs, begin)).reset

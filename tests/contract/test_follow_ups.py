"""What every store of follow-ups promises; see `svc_delivery.ports.FollowUps`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from heliograph.type.v1.notification_pb2 import PRIORITY_BULK as BULK
from heliograph.type.v1.notification_pb2 import PRIORITY_HIGH as HIGH
from heliograph.type.v1.notification_pb2 import PRIORITY_NORMAL as NORMAL
from svc_delivery.ports import FollowUpRecord, FollowUps, FollowUpWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.store import InboxStore
from tests.support.backends import Opener
from tests.support.follow_ups import follow_up_backends
from tests.support.inbox import ALICE, NOW_US, make_row
from tests.support.wait import until


@pytest.fixture(params=follow_up_backends())
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[InboxStore]:
    """Opens the same store again and again."""
    opened: Opener[InboxStore] = request.param(tmp_path)
    return opened


@pytest.fixture
async def store(opener: Opener[InboxStore]) -> AsyncIterator[InboxStore]:
    """An empty store of each kind."""
    async with opener() as opened:
        yield opened


async def append(store: InboxStore, *dues: int) -> None:
    """Writes follow-ups that are due then; each one's bytes tell its due time."""
    for due in dues:
        follow_up = FollowUpWrite(NOW_US + due, b"due %d" % due)
        await store.inbox.write([make_row(due)], stamp=NOW_US, follow_up=follow_up)


async def due(follow_ups: FollowUps, now: int, limit: int = 100) -> list[bytes]:
    """The bytes of what is due."""
    return [record.record for record in await follow_ups.due(NOW_US + now, limit)]


async def taken_up(store: InboxStore, count: int) -> Sequence[FollowUpRecord]:
    """All records, once there are so many: what is appended may take a moment to arrive."""

    async def are_there() -> bool:
        return await store.follow_ups.backlog(NOW_US + 1_000) == count

    await until(are_there)
    return await store.follow_ups.due(NOW_US + 1_000, count)


async def test_a_follow_up_is_due_at_its_time(store: InboxStore) -> None:
    """Nothing comes before its time, and what comes is in the order of due times, not of writes."""
    await append(store, 30, 10, 20)
    await taken_up(store, 3)
    assert await due(store.follow_ups, 9) == []
    assert await due(store.follow_ups, 10) == [b"due 10"]
    assert await due(store.follow_ups, 99) == [b"due 10", b"due 20", b"due 30"]
    assert await due(store.follow_ups, 99, limit=2) == [b"due 10", b"due 20"]


async def test_what_is_over_comes_first_and_then_what_is_urgent(store: InboxStore) -> None:
    """Expired as a whole, high, normal, bulk, each the longest due first; what is not due yet overtakes nothing."""
    for number, (priority, expire) in enumerate(
        [(BULK, None), (NORMAL, 25), (HIGH, None), (BULK, 15), (HIGH, 99), (NORMAL, None), (HIGH, None), (0, None)]
    ):
        due_us = NOW_US + (30 if number == 6 else number)
        expire_us = None if expire is None else NOW_US + expire
        follow_up = FollowUpWrite(due_us, b"%d" % number, priority, expire_us)
        await store.inbox.write([make_row(number)], stamp=NOW_US, follow_up=follow_up)
    await taken_up(store, 8)
    assert await due(store.follow_ups, 20) == [b"3", b"2", b"4", b"1", b"5", b"7", b"0"]
    assert await due(store.follow_ups, 20, limit=3) == [b"3", b"2", b"4"]
    expired = [record.is_expired(NOW_US + 20) for record in await store.follow_ups.due(NOW_US + 20, 3)]
    assert expired == [True, False, False]


async def test_what_is_not_finished_stays(opener: Opener[InboxStore]) -> None:
    """Reading takes nothing away: after a restart the same records are due."""
    async with opener() as store:
        await append(store, 10)
        await taken_up(store, 1)
        assert await due(store.follow_ups, 10) == [b"due 10"]
    async with opener() as store:
        await taken_up(store, 1)
        assert await due(store.follow_ups, 10) == [b"due 10"]
        assert await store.follow_ups.next_due() == NOW_US + 10


async def test_finishing_replaces_records_by_what_is_left(store: InboxStore) -> None:
    """Finished records are gone and their successors are there; finishing again is no error."""
    await append(store, 10, 20)
    first, second = await taken_up(store, 2)
    await store.follow_ups.finish([first.record_id], [FollowUpWrite(NOW_US + 50, b"again")])
    await store.follow_ups.finish([first.record_id])
    await taken_up(store, 2)
    assert await due(store.follow_ups, 60) == [b"due 20", b"again"]
    await store.follow_ups.finish([second.record_id])
    assert await due(store.follow_ups, 60) == [b"again"]


async def test_a_finished_record_id_is_not_given_again(store: InboxStore) -> None:
    """A late finish of an old record cannot hit a new one."""
    await append(store, 10)
    (first,) = await taken_up(store, 1)
    await store.follow_ups.finish([first.record_id], [FollowUpWrite(NOW_US, b"again")])
    await taken_up(store, 1)
    await store.follow_ups.finish([first.record_id])
    assert await due(store.follow_ups, 60) == [b"again"]


async def test_the_next_due_time_is_the_earliest(store: InboxStore) -> None:
    """None without records, and it looks ahead, not only at what is due."""
    assert await store.follow_ups.next_due() is None
    await append(store, 30, 10)
    await taken_up(store, 2)
    assert await store.follow_ups.next_due() == NOW_US + 10
    assert [await store.follow_ups.backlog(NOW_US + now) for now in (9, 10, 30)] == [0, 1, 2]


async def test_a_repeated_batch_has_a_second_follow_up(store: InboxStore) -> None:
    """Two records for the same rows are harmless, one too few would not be."""
    await asyncio.gather(append(store, 10), append(store, 10))
    await taken_up(store, 2)
    assert await due(store.follow_ups, 10) == [b"due 10", b"due 10"]


async def test_a_record_and_its_dead_letter_change_places_at_once(opener: Opener[InboxStore]) -> None:
    """What is given up is gone from the lane and buried by the same call; doing it again changes nothing."""
    letter = DeadLetterRecord(b"0123456789abcdef", 1, "acme", ALICE, b"", NOW_US, b"letter", b"due 10")
    async with opener() as store:
        await append(store, 10, 20)
        record, _ = await taken_up(store, 2)
        for _ in range(2):
            await store.follow_ups.finish([record.record_id], [FollowUpWrite(NOW_US + 50, b"again")], [letter])
    async with opener() as store:
        await taken_up(store, 3)
        assert await due(store.follow_ups, 99) == [b"due 20", b"again", b"again"]
        assert await store.dead_letters.get([letter.letter_id]) == [letter]


async def test_records_are_found_by_bytes_that_they_contain(store: InboxStore) -> None:
    """Whatever their time, the earliest first."""
    await append(store, 31, 13, 20)
    found = await store.follow_ups.containing(b"3", 10)
    assert [record.record for record in found] == [b"due 13", b"due 31"]
    assert len(await store.follow_ups.containing(b"due", 2)) == 2
    assert await store.follow_ups.containing(b"4", 10) == []

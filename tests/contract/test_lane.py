"""What every lane promises of what is in it; see `mesh.lanes.LaneWriter` and `mesh.lanes.LaneReader`.

What goes or might go is in `test_lane_losses.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.lanes import Backlog, Lag, Record, Stored, partition_of
from tests.support.backends import lane_backends
from tests.support.lanes import LONG, LaneCase, read_all, records, values


@pytest.fixture(params=lane_backends())
async def lane(request: pytest.FixtureRequest, tmp_path: Path, run_dir: Path) -> AsyncIterator[LaneCase]:
    """An empty lane of each kind."""
    async with request.param(tmp_path, run_dir) as case:
        yield case


async def test_records_come_in_the_order_of_their_appends(lane: LaneCase) -> None:
    """A reader gets keys, values and times as appended, in order, each once, in pages of the size it asked for."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    lane.clock.advance(5.0)
    await writer.append(records(10, 19))
    found = await read_all(reader, 20)
    assert values(found) == list(range(20))
    assert [record.key for record in found] == [record.key for record in records(0, 19)]
    positions = [record.position for record in found]
    assert positions == sorted(set(positions))
    assert found[10].append_time - found[9].append_time == 5.0
    assert len(await reader.read(100, 0.0)) == 0


async def test_a_page_has_the_size_that_was_asked_for(lane: LaneCase) -> None:
    """Never more than the limit; the next read goes on behind it."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 4))
    assert values(await reader.read(3, LONG)) == [0, 1, 2]
    assert values(await reader.read(3, LONG)) == [3, 4]


async def test_any_bytes_are_carried(lane: LaneCase) -> None:
    """Empty, binary and large values and keys come back unchanged."""
    writer, reader = await lane.writer(), await lane.reader()
    odd = [Record(b"", b""), Record(b"\0\xff", bytes(range(256))), Record("ключ".encode(), b"x" * 300_000)]
    await writer.append(odd)
    await writer.append([])
    assert [Record(one.key, one.value) for one in await read_all(reader, 3)] == odd


async def test_a_record_goes_to_the_partition_that_it_names(lane: LaneCase) -> None:
    """A reader that is alone has them all; what names one of them lies there, whatever its key."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    await read_all(reader, 10)
    for partition in sorted(reader.partitions):
        await writer.append([Record(b"key-%d" % number, b"%d" % number, partition) for number in range(5)])
        assert {partition_of(record.position) for record in await read_all(reader, 5)} == {partition}
    assert reader.partitions


async def test_appends_outlive_both_ends(lane: LaneCase) -> None:
    """What append returned for is there after the writer was opened again, and new records come behind it."""
    writer = await lane.writer()
    await writer.append(records(0, 4))
    writer = await lane.writer()
    await writer.append(records(5, 9))
    assert values(await read_all(await lane.reader(), 10)) == list(range(10))


async def test_records_of_one_append_stay_together(lane: LaneCase) -> None:
    """Many callers at once: nothing is lost or doubled, and each call's records are next to each other, in order."""
    writer, reader = await lane.writer(), await lane.reader()
    calls = [records(10 * n, 10 * n + n % 7) for n in range(200)]
    await asyncio.gather(*(writer.append(call) for call in calls))
    found = values(await read_all(reader, sum(map(len, calls))))
    expected = {int(call[0].value): [int(record.value) for record in call] for call in calls}
    while found:
        call = expected.pop(found[0])
        assert found[: len(call)] == call
        found = found[len(call) :]
    assert not expected


async def test_an_append_wakes_the_reader(lane: LaneCase) -> None:
    """A reader that waits gets each record when it is appended, long before its time is over."""
    writer, reader = await lane.writer(), await lane.reader()
    for number in range(20):
        waiting = asyncio.ensure_future(reader.read(10, LONG))
        # One turn of the loop: the read has begun, however far it got.
        await asyncio.sleep(0)
        await writer.append(records(number, number))
        assert values(await waiting) == [number]


async def test_a_reader_may_come_before_the_lane(lane: LaneCase) -> None:
    """Reading a lane that nobody made yet finds nothing, and finds the first record once it is there."""
    reader = await lane.reader()
    assert list(await reader.read(10, 0.0)) == []
    assert await reader.lag() == Lag(0, 0.0)
    waiting = asyncio.ensure_future(reader.read(10, LONG))
    # As above: begun, however far it got.
    await asyncio.sleep(0)
    await (await lane.writer()).append(records(0, 0))
    assert values(await waiting) == [0]


async def test_an_empty_read_ends_in_time(lane: LaneCase) -> None:
    """Without records a read returns nothing once its wait is over, not before."""
    await lane.writer()
    reader = await lane.reader()
    start = time.monotonic()
    assert list(await reader.read(10, 0.3)) == []
    assert time.monotonic() - start >= 0.3


async def test_a_cancelled_read_loses_nothing(lane: LaneCase) -> None:
    """Whenever a read is given up, the next one returns the same records."""
    writer, reader = await lane.writer(), await lane.reader()
    found: list[Stored] = []
    for number in range(30):
        waiting = asyncio.ensure_future(reader.read(10, LONG))
        appending = asyncio.ensure_future(writer.append(records(number, number)))
        # Given up after none to five turns of the loop.
        for _ in range(number % 6):
            await asyncio.sleep(0)
        waiting.cancel()
        await appending
        if (result := (await asyncio.gather(waiting, return_exceptions=True))[0]) and isinstance(result, list):
            found += result
    while len(found) < 30:
        found += await reader.read(10, LONG)
    assert values(found) == list(range(30))


async def test_a_committed_position_is_where_the_next_reader_starts(lane: LaneCase) -> None:
    """What was committed is not read again; what was only read is."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    found = await read_all(reader, 10)
    await reader.commit(found[3].position)
    reader = await lane.reader()
    assert values(await read_all(reader, 6)) == [4, 5, 6, 7, 8, 9]


async def test_nothing_committed_is_read_again(lane: LaneCase) -> None:
    """Without a commit the next reader starts at the first record."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 4))
    await read_all(reader, 5)
    assert values(await read_all(await lane.reader(), 5)) == [0, 1, 2, 3, 4]


async def test_a_commit_never_moves_back(lane: LaneCase) -> None:
    """Commits in any order, at once or late, leave the largest."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    found = await read_all(reader, 10)
    await asyncio.gather(*(reader.commit(found[index].position) for index in (2, 7, 4, 0, 7)))
    await reader.commit(found[1].position)
    assert (await reader.lag()).record_count == 2
    reader = await lane.reader()
    assert values(await read_all(reader, 2)) == [8, 9]
    await reader.commit(found[8].position)
    await reader.commit(found[5].position)
    assert values(await (await lane.reader()).read(10, LONG)) == [9]


async def test_what_was_not_read_cannot_be_committed(lane: LaneCase) -> None:
    """A position ahead of what was read is a mistake, and would lose records."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    last = (await reader.read(3, LONG))[-1].position
    with pytest.raises(ValueError, match="was not read"):
        await reader.commit(last + 1)
    assert values(await (await lane.reader()).read(1, LONG)) == [0]


async def test_lag_counts_what_is_not_committed(lane: LaneCase) -> None:
    """The count and the age are those of the records above the committed position, read or not."""
    writer, reader = await lane.writer(), await lane.reader()
    assert await reader.lag() == Lag(0, 0.0)
    await writer.append(records(0, 3))
    lane.clock.advance(10.0)
    await writer.append(records(4, 5))
    lane.clock.advance(2.0)
    assert await reader.lag() == Lag(6, 12.0)
    found = await read_all(reader, 6)
    assert await reader.lag() == Lag(6, 12.0)
    await reader.commit(found[3].position)
    assert await reader.lag() == Lag(2, 2.0)
    await reader.commit(found[5].position)
    assert await reader.lag() == Lag(0, 0.0)


async def test_what_is_not_committed_can_be_searched(lane: LaneCase) -> None:
    """Records whose key or value contains the bytes are found, in order, read or not; committed ones are not."""
    writer, reader = await lane.writer(), await lane.reader()
    assert list(await reader.containing(b"2", 10)) == []
    await writer.append([*records(0, 4), Record(b"odd \0\xff key", b""), *records(20, 24)])
    assert values(await reader.containing(b"2", 10)) == [2, 20, 21, 22, 23, 24]
    assert values(await reader.containing(b"2", 3)) == [2, 20, 21]
    (odd,) = await reader.containing(b"\0\xff", 10)
    found = await read_all(reader, 11)
    assert odd == found[5]
    await reader.commit(found[6].position)
    assert values(await reader.containing(b"2", 10)) == [21, 22, 23, 24]
    assert list(await reader.containing(b"\0\xff", 10)) == []
    assert values(await (await lane.reader()).containing(b"4", 10)) == [24]


async def test_the_writer_sees_how_far_its_reader_is(lane: LaneCase) -> None:
    """Count and age are those of the records that the reader did not commit, and what it finished adds up."""
    writer = await lane.writer()
    assert await writer.backlog() == Backlog(0, 0.0, 0)
    await writer.append(records(0, 3))
    lane.clock.advance(10.0)
    # Nobody ever read.
    assert await writer.backlog() == Backlog(4, 10.0, 0)
    reader = await lane.reader()
    await writer.append(records(4, 5))
    lane.clock.advance(2.0)
    found = await read_all(reader, 6)
    # Read is not finished.
    assert await writer.backlog() == Backlog(6, 12.0, 0)
    await reader.commit(found[3].position)
    assert await writer.backlog() == Backlog(2, 2.0, 4)
    await reader.commit(found[5].position)
    assert await writer.backlog() == Backlog(0, 0.0, 6)


async def test_a_new_writer_sees_where_the_reader_was(lane: LaneCase) -> None:
    """After both ends were opened again, and of a lane made anew everything counts."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    await reader.commit((await read_all(reader, 10))[6].position)
    writer = await lane.writer()
    assert (await writer.backlog()).record_count == 3
    await lane.remake()
    writer = await lane.writer()
    await writer.append(records(0, 1))
    assert await writer.backlog() == Backlog(2, 0.0, 0)


async def test_parked_records_are_kept(lane: LaneCase) -> None:
    """A parked record outlives a restart with its bytes, position, reason and time; parking again changes nothing."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 2))
    found = await read_all(reader, 3)
    await reader.park(found[2], "unknown kind 7")
    lane.clock.advance(60.0)
    await reader.park(found[0], "cut short")
    await reader.park(found[2], "another word")
    await reader.commit(found[2].position)
    reader = await lane.reader()
    kept = await reader.parked(10)
    assert [(one.position, one.key, one.value, one.reason) for one in kept] == [
        (found[0].position, found[0].key, found[0].value, "cut short"),
        (found[2].position, found[2].key, found[2].value, "unknown kind 7"),
    ]
    assert kept[0].park_time - kept[1].park_time == 60.0
    assert await reader.parked(1) == kept[:1]


async def test_a_parked_record_can_be_forgotten(lane: LaneCase) -> None:
    """It alone is gone, also after a restart; what was forgotten may be parked again."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 1))
    found = await read_all(reader, 2)
    for one in found:
        await reader.park(one, "cut short")
    first, second = await reader.parked(10)
    await reader.unpark(first)
    await reader.unpark(first)
    assert await reader.parked(10) == [second]
    reader = await lane.reader()
    assert await reader.parked(10) == [second]
    assert [one.position for one in await read_all(reader, 2)] == [one.position for one in found]
    lane.clock.advance(1.0)
    await reader.park(found[0], "once more")
    assert [one.reason for one in await reader.parked(10)] == ["once more", "cut short"]
    # The one that was forgotten had another time.
    await reader.unpark(first)
    assert len(await reader.parked(10)) == 2

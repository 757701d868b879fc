"""What every lane promises; see `mesh.lanes.LaneWriter` and `mesh.lanes.LaneReader`."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from mesh.lanes import Backlog, Lag, LaneReader, LaneUnavailable, PositionLost, Record, Stored, partition_of
from tests.support.backends import lane_backends
from tests.support.lanes import NAME, LaneCase

# Long enough for any machine; no test waits for it to pass.
LONG = 20.0


@pytest.fixture(params=lane_backends())
async def lane(request: pytest.FixtureRequest, tmp_path: Path, run_dir: Path) -> AsyncIterator[LaneCase]:
    """An empty lane of each kind."""
    async with request.param(tmp_path, run_dir) as case:
        yield case


def records(first: int, last: int) -> list[Record]:
    """Records named by their number, both ends included."""
    return [Record(b"key-%d" % (number % 3), b"%d" % number) for number in range(first, last + 1)]


def values(stored: Sequence[Stored]) -> list[int]:
    """The numbers of records that were read."""
    return [int(record.value) for record in stored]


async def read_all(reader: LaneReader, count: int) -> list[Stored]:
    """Reads until so many records are there."""
    found: list[Stored] = []
    while len(found) < count:
        page = await reader.read(7, LONG)
        assert page, f"only {len(found)} of {count} records came"
        found += page
    return found


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
        await asyncio.sleep(0)
        await writer.append(records(number, number))
        assert values(await waiting) == [number]


async def test_a_reader_may_come_before_the_lane(lane: LaneCase) -> None:
    """Reading a lane that nobody made yet finds nothing, and finds the first record once it is there."""
    reader = await lane.reader()
    assert list(await reader.read(10, 0.0)) == []
    assert await reader.lag() == Lag(0, 0.0)
    waiting = asyncio.ensure_future(reader.read(10, LONG))
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


async def test_a_trim_leaves_the_rest_of_the_backlog(lane: LaneCase) -> None:
    """Records that retention took before they were read wait for nobody any more."""
    writer = await lane.writer()
    await writer.append(records(0, 9))
    lane.clock.advance(100.0)
    await writer.append(records(10, 11))
    await writer.trim(lane.clock.wall() - 50.0)
    assert await writer.backlog() == Backlog(2, 0.0, 10)


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


async def test_trim_removes_old_records_from_the_start(lane: LaneCase) -> None:
    """Records older than the time go, the others and the newest one stay, and numbers are not used again."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 1199))
    lane.clock.advance(100.0)
    await writer.append(records(1200, 1201))
    assert await writer.trim(lane.clock.wall() - 200.0) == 0
    assert await writer.trim(lane.clock.wall() - 50.0) == 1200
    found = await read_all(reader, 2)
    assert values(found) == [1200, 1201]
    lane.clock.advance(100.0)
    assert await writer.trim(lane.clock.wall()) == 1
    writer = await lane.writer()
    await writer.append(records(1202, 1202))
    (newest,) = await reader.read(10, LONG)
    assert newest.position > found[1].position


async def test_trim_lets_appends_through(lane: LaneCase) -> None:
    """Appends finish while a long trim goes on, and none of their records is trimmed."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 19_999))
    lane.clock.advance(100.0)
    trimming = asyncio.ensure_future(writer.trim(lane.clock.wall() - 50.0))
    appended = 0
    while not trimming.done():
        await writer.append(records(20_000 + appended, 20_000 + appended))
        appended += 1
    # What was the newest record when it looked may be left for the next call.
    assert await trimming + await writer.trim(lane.clock.wall() - 50.0) == 20_000
    # A lane that cuts its start off at once has no time for more.
    assert appended >= (1 if lane.trims_at_once else 5)
    assert values(await read_all(reader, appended)) == list(range(20_000, 20_000 + appended))


@pytest.mark.parametrize("reopened", [False, True])
async def test_an_overtaken_reader_is_told(lane: LaneCase, *, reopened: bool) -> None:
    """When retention removed records that a reader did not finish, it is told at every read, and never jumps.

    What it had fetched ahead before they went may still come, in order.
    """
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    found = list(await reader.read(4, LONG))
    await reader.commit(found[-1].position)
    for number in range(10, 30):
        await writer.append(records(number, number))
    lane.clock.advance(100.0)
    await writer.append(records(30, 31))
    assert await writer.trim(lane.clock.wall()) == 30
    if reopened:
        reader = await lane.reader()

    async def read_on() -> None:
        while page := await reader.read(10, LONG):
            found.extend(page)

    for _ in range(2):
        with pytest.raises(PositionLost) as caught:
            await read_on()
        assert caught.value.reason == "POSITION_LOST"
    assert values(found) == list(range(len(found)))
    assert len(found) < 30
    assert await reader.lag() == Lag(2, 0.0)
    await reader.restart()
    assert values(await reader.read(10, LONG)) == [30, 31]
    assert values(await (await lane.reader()).read(10, LONG)) == [30, 31]


async def test_a_reader_that_only_started_is_told_too(lane: LaneCase) -> None:
    """A reader that saw the lane once and committed nothing has a position that can be lost."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 0))
    await reader.read(10, LONG)
    lane.clock.advance(100.0)
    await writer.append(records(1, 1))
    await writer.trim(lane.clock.wall())
    with pytest.raises(PositionLost):
        await (await lane.reader()).read(10, LONG)


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_trim_of_finished_records_is_no_loss(lane: LaneCase, *, reopened: bool) -> None:
    """A reader whose finished records are removed goes on."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    await reader.commit((await read_all(reader, 10))[-1].position)
    lane.clock.advance(100.0)
    await writer.trim(lane.clock.wall())
    await writer.append(records(10, 10))
    await writer.trim(lane.clock.wall())
    if reopened:
        reader = await lane.reader()
    assert values(await reader.read(10, LONG)) == [10]


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("count", [2, 20])
async def test_a_lane_made_anew_is_told(lane: LaneCase, count: int, *, reopened: bool) -> None:
    """The position of a lane that is gone is never taken for one of its successor, be that shorter or longer."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 9))
    await reader.commit((await read_all(reader, 10))[4].position)
    await lane.remake()
    writer = await lane.writer()
    await writer.append(records(100, 99 + count))
    if reopened:
        reader = await lane.reader()
    with pytest.raises(PositionLost):
        await reader.read(10, LONG)
    await reader.restart()
    assert values(await read_all(reader, count)) == list(range(100, 100 + count))


async def test_a_full_disk_appends_nothing_and_passes(lane: LaneCase) -> None:
    """An append that finds no room is refused whole; with room again the lane goes on, and its reader sees no gap."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append(records(0, 4))
    await lane.fill_disk()
    large = [Record(b"k", b"9" * 30_000) for _ in range(4)]
    results = await asyncio.gather(
        writer.append(records(5, 5)), writer.append(large), writer.append(records(6, 6)), return_exceptions=True
    )
    failure = results[1]
    assert isinstance(failure, LaneUnavailable)
    assert (failure.reason, failure.retriable, failure.unknown) == ("LANE_UNAVAILABLE", True, False)
    done = [number for number, result in zip((5, 6), (results[0], results[2]), strict=True) if result is None]
    with pytest.raises(LaneUnavailable):
        await writer.append(large)
    await lane.free_disk()
    await writer.append(records(7, 7))
    assert values(await read_all(reader, 6 + len(done))) == [0, 1, 2, 3, 4, *done, 7]


async def test_sigkill_loses_no_append_that_returned(lane: LaneCase) -> None:
    """A process killed while many callers append has kept every append that it reported, whole and in order."""
    program = """
        import asyncio, sys
        from pathlib import Path
        from mesh.clock import SystemClock
        from mesh.lanes import Record, open_writer

        async def main() -> None:
            url, name, data_dir, run_dir = sys.argv[1:]
            writer = open_writer(
                url, name, data_dir=Path(data_dir), run_dir=Path(run_dir), clock=SystemClock())
            await writer.open()

            async def write(caller: int) -> None:
                for n in range(1_000_000):
                    await writer.append([Record(b"%d" % caller, b"%d.%d" % (n, part)) for part in range(3)])
                    print(caller, n, flush=True)

            await asyncio.gather(*(write(caller) for caller in range(16)))

        asyncio.run(main())
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(program),
        lane.url,
        NAME,
        str(lane.data_dir),
        str(lane.run_dir),
        stdout=PIPE,
    )
    assert process.stdout is not None
    reader = await lane.reader()
    lines = [await process.stdout.readline() for _ in range(600)]
    process.kill()
    lines += (await process.stdout.read()).split(b"\n")[:-1]
    await process.wait()
    reported: dict[bytes, int] = {}
    for caller, number in (line.split() for line in lines):
        reported[caller] = int(number)
    await (await lane.writer()).append([Record(b"end", b"")])
    found: dict[bytes, list[bytes]] = {}
    while b"end" not in found:
        for record in await reader.read(500, LONG):
            found.setdefault(record.key, []).append(record.value)
    for caller, last in reported.items():
        kept = found[caller]
        assert len(kept) >= 3 * (last + 1)
        assert kept == [b"%d.%d" % (index // 3, index % 3) for index in range(len(kept))]
        assert len(kept) % 3 == 0

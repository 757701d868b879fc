"""What every lane promises when records go, or might: retention, lost positions, a full disk, a killed process."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.lanes import Backlog, Lag, LaneUnavailable, PositionLost, Record
from tests.support.backends import lane_backends
from tests.support.lanes import LONG, NAME, LaneCase, read_all, records, values


@pytest.fixture(params=lane_backends())
async def lane(request: pytest.FixtureRequest, tmp_path: Path, run_dir: Path) -> AsyncIterator[LaneCase]:
    """An empty lane of each kind."""
    async with request.param(tmp_path, run_dir) as case:
        yield case


async def test_a_trim_leaves_the_rest_of_the_backlog(lane: LaneCase) -> None:
    """Records that retention took before they were read wait for nobody any more."""
    writer = await lane.writer()
    await writer.append(records(0, 9))
    lane.clock.advance(100.0)
    await writer.append(records(10, 11))
    await writer.trim(lane.clock.wall() - 50.0)
    assert await writer.backlog() == Backlog(2, 0.0, 10)


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

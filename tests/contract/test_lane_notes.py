"""What every lane promises about notes: how far the work on a record has come. See `mesh.lanes.LaneReader`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.lanes import Record
from tests.support.backends import lane_backends
from tests.support.lanes import LaneCase

LONG = 20.0


@pytest.fixture(params=lane_backends())
async def lane(request: pytest.FixtureRequest, tmp_path: Path, run_dir: Path) -> AsyncIterator[LaneCase]:
    """A lane of each kind with five records."""
    async with request.param(tmp_path, run_dir) as case:
        await (await case.writer()).append([Record(b"", b"%d" % number) for number in range(5)])
        yield case


async def test_a_note_outlives_its_process(lane: LaneCase) -> None:
    """The last note of each record is there after a restart, beside the position and without moving it."""
    reader = await lane.reader()
    assert await reader.notes() == {}
    first, second, *_ = [one.position for one in await reader.read(5, LONG)]
    await reader.note(first, b"one")
    await reader.note(second, b"")
    await reader.note(first, b"two")
    assert await reader.notes() == {first: b"two", second: b""}
    reader = await lane.reader()
    assert await reader.notes() == {first: b"two", second: b""}
    assert [one.position for one in await reader.read(1, LONG)] == [first]


async def test_a_committed_position_needs_no_note(lane: LaneCase) -> None:
    """Notes at and below the committed position are forgotten, the others stay."""
    reader = await lane.reader()
    first, second, third, *_ = [one.position for one in await reader.read(5, LONG)]
    for position in (first, second, third):
        await reader.note(position, b"here")
    await reader.commit(second)
    assert await reader.notes() == {third: b"here"}
    assert await (await lane.reader()).notes() == {third: b"here"}


async def test_only_what_is_worked_on_has_a_note(lane: LaneCase) -> None:
    """Neither what is committed nor what was not read can be noted."""
    reader = await lane.reader()
    first, second = [one.position for one in await reader.read(2, LONG)]
    await reader.commit(first)
    for position in (first, second + 1):
        with pytest.raises(ValueError, match="not being worked on"):
            await reader.note(position, b"no")
    assert await reader.notes() == {}


async def test_a_restart_and_another_lane_have_no_notes(lane: LaneCase) -> None:
    """Notes belong to the lane they were made in, and to a position that is not forgotten."""
    reader = await lane.reader()
    first = (await reader.read(1, LONG))[0].position
    await reader.note(first, b"old")
    await reader.restart()
    assert await reader.notes() == {}
    await reader.note((await reader.read(1, LONG))[0].position, b"new")
    await lane.remake()
    await (await lane.writer()).append([Record(b"", b"%d" % number) for number in range(5)])
    reader = await lane.reader()
    await reader.restart()
    await reader.read(1, LONG)
    assert await reader.notes() == {}


async def test_processes_that_do_not_end_in_order_are_counted(lane: LaneCase) -> None:
    """Closing is no order: only who says so ends well, and the next one counts from zero."""
    assert await (await lane.reader()).begin_life() == 0
    assert await (await lane.reader()).begin_life() == 1
    reader = await lane.reader()
    assert await reader.begin_life() == 2
    await reader.end_life()
    reader = await lane.reader()
    assert await reader.begin_life() == 0
    # Said by a process that goes on: what harms it later is counted again.
    await reader.end_life()
    assert await reader.begin_life() == 0
    assert await (await lane.reader()).begin_life() == 1

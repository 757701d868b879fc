"""What of a lane with several partitions is unfinished, and up to where each may be committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.clock import ManualClock, SteadyClock
from mesh.lanes import Stored, position_of
from mesh.telemetry import Telemetry
from svc_fanout.flight import Flight
from svc_fanout.metrics import Metrics
from tests.support.dispatching import InProcessDelivery
from tests.support.fanning import UnsteadyLane, fanning
from tests.support.wait import until


class SharedLane(UnsteadyLane):
    """A lane that remembers what it was told to commit."""

    commits: list[int]

    async def commit(self, position: int) -> None:
        """See the port."""
        self._check("commit")
        self.commits.append(position)


@pytest.fixture
async def lane(tmp_path: Path, run_dir: Path) -> AsyncIterator[SharedLane]:
    """A lane whose records are made by the tests."""
    async with fanning(tmp_path, run_dir) as fanout:
        made = SharedLane(fanout.lane.reader, fanout.lane.writer)
        made.commits = []
        yield made


@pytest.fixture
def advanced() -> list[int]:
    """Positions of traced events that the commit passed, in order."""
    return []


@pytest.fixture
def flight(lane: SharedLane, advanced: list[int]) -> Flight:
    """Its flight; three records may be kept above those that do not end."""

    def trace(step: str, **fields: object) -> None:
        if step == "advanced":
            advanced.append(int(str(fields["position"])))

    return Flight(
        lane="normal",
        reader=lane,
        delivery=InProcessDelivery(),
        clock=ManualClock(),
        metrics=Metrics(Telemetry("fanout")),
        batches_in_flight=8,
        commit_interval=60.0,
        trace=trace,
        largest_span=3,
    )


def stored(partition: int, offset: int) -> Stored:
    """A record at a place."""
    return Stored(position_of(partition, offset), b"", b"", 0.0)


def begin(flight: Flight, partition: int, *offsets: int) -> list[bool]:
    """Takes records on."""
    return [flight.begin(stored(partition, offset), f"{partition}.{offset}") for offset in offsets]


def close(flight: Flight, partition: int, *offsets: int) -> None:
    """Finishes records."""
    flight.close([position_of(partition, offset) for offset in offsets])


async def test_each_partition_is_committed_by_itself(flight: Flight, lane: SharedLane, advanced: list[int]) -> None:
    """What does not end in one holds nothing back in another; a point is committed once."""
    begin(flight, 1, 5, 6)
    begin(flight, 2, 5, 6)
    close(flight, 1, 5, 6)
    close(flight, 2, 6)
    assert not await flight.commit(position_of(2, 6))
    assert await flight.commit(position_of(1, 6))
    assert lane.commits == [position_of(1, 6)]
    assert advanced == [position_of(1, 5), position_of(1, 6)]
    close(flight, 2, 5)
    assert await flight.commit(position_of(2, 6))
    assert lane.commits == [position_of(1, 6), position_of(2, 6)]
    assert advanced[2:] == [position_of(2, 6), position_of(2, 5)]


async def test_a_record_that_comes_again_is_not_begun_twice(flight: Flight, lane: SharedLane) -> None:
    """Its partition went away and came back while it was worked on: that work ends it, and its end is committed."""
    assert begin(flight, 1, 5, 6) == [True, True]
    close(flight, 1, 6)
    assert begin(flight, 1, 5, 6) == [False, True]
    close(flight, 1, 6)
    await flight.commit(position_of(1, 6))
    assert lane.commits == []
    close(flight, 1, 5)
    assert await flight.commit(position_of(1, 6))
    assert lane.commits == [position_of(1, 6)]


async def test_the_span_is_that_of_all_partitions(flight: Flight) -> None:
    """What is kept in memory counts, wherever it lies."""
    seen: list[bool] = []
    begin(flight, 1, 1, 2)
    begin(flight, 2, 1_000_000)
    seen.append(flight.span_is_full)
    begin(flight, 3, 7)
    seen.append(flight.span_is_full)
    close(flight, 1, 1)
    seen.append(flight.span_is_full)
    assert seen == [False, True, False]


async def test_what_is_done_is_committed_before_partitions_leave(
    flight: Flight, lane: SharedLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is given a commit to await."""
    given: list[object] = []
    monkeypatch.setattr(lane, "on_leave", given.append)
    again = Flight(
        lane="normal",
        reader=lane,
        delivery=InProcessDelivery(),
        clock=ManualClock(),
        metrics=Metrics(Telemetry("fanout")),
        batches_in_flight=8,
        commit_interval=60.0,
        trace=None,
    )
    begin(again, 1, 5)
    close(again, 1, 5)
    (finish,) = given
    assert callable(finish)
    await finish()
    assert lane.commits == [position_of(1, 5)]


def on_machine(lane: SharedLane, machine: ManualClock) -> Flight:
    """A flight on a machine whose clock may be set; reading the lane is refused."""
    lane.refuses.add("read")
    return Flight(
        lane="normal",
        reader=lane,
        delivery=InProcessDelivery(),
        clock=SteadyClock(machine),
        metrics=Metrics(Telemetry("fanout")),
        batches_in_flight=8,
        commit_interval=60.0,
        trace=None,
        read_wait=0.01,
        first_retry=0.001,
    )


async def test_nothing_is_read_while_the_clock_is_doubtful(lane: SharedLane) -> None:
    """What is over would be judged by a wrong time; a drain ends the wait."""
    machine = ManualClock()
    flight = on_machine(lane, machine)
    machine.step_wall(3_600.0)
    reading = asyncio.create_task(flight.read(1))
    await asyncio.sleep(0)
    await flight.drain()
    assert (list(await reading), lane.refused) == ([], 0)


async def test_reading_goes_on_when_the_clock_is_right_again(lane: SharedLane) -> None:
    """Nobody has to start anything."""
    machine = ManualClock()
    flight = on_machine(lane, machine)
    machine.step_wall(-3_600.0)
    reading = asyncio.create_task(flight.read(1))
    await asyncio.sleep(0)
    machine.step_wall(3_600.0)
    await until(lambda: lane.refused > 0)
    await flight.drain()
    assert list(await reading) == []

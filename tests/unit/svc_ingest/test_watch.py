"""The watch on real embedded lanes and a real servicer: what the reader leaves undone reaches the producers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mesh.clock import ManualClock
from mesh.lanes import Backlog, LaneReader, LaneUnavailable, LaneWriter, Record, open_reader, position_migrations
from mesh.server import CallCount
from mesh.sqlite import Writer
from svc_ingest.overload import Level
from svc_ingest.store import open_store
from svc_ingest.watch import Watch
from tests.support.publishing import NOW, Ingest, open_lanes, publish_request

CATEGORIES = {"high": "security", "normal": "general", "bulk": "newsletter"}
TICK = 0.2


def watch(
    ingest: Ingest, lanes: dict[str, LaneWriter], count_calls: Callable[[], CallCount] = lambda: CallCount(0, 0)
) -> Watch:
    """A watch over an ingest."""
    return Watch(gate=ingest.gate, lanes=lanes, count_calls=count_calls, clock=ingest.clock, metrics=ingest.metrics)


class Site:
    """An ingest, and a reader of each lane that finishes as much as a test says."""

    def __init__(self, ingest: Ingest, lanes: dict[str, LaneWriter], readers: dict[str, LaneReader]) -> None:
        self.ingest = ingest
        self.calls = CallCount(0, 0)
        self.watch = watch(ingest, lanes, lambda: self.calls)
        self.accepted = dict.fromkeys(CATEGORIES, 0)
        self.refused = dict.fromkeys(CATEGORIES, 0)
        self._readers = readers

    async def go_on(self, *, offered: dict[str, int], finished: int, lag: float = 0.0) -> None:
        """A fifth of a second: publishes, lets the readers finish so many records in all, and looks."""
        lanes = [lane for lane, count in offered.items() for _ in range(count)]
        results = await self.ingest.batch(*(publish_request(category=CATEGORIES[lane]) for lane in lanes))
        for lane, result in zip(lanes, results, strict=True):
            if result.HasField("accepted"):
                self.accepted[lane] += 1
            else:
                assert (result.refused.reason, result.refused.code) == ("OVERLOADED", 8)
                assert result.refused.HasField("retry_delay")
                self.refused[lane] += 1
        self.ingest.clock.advance(TICK)
        for lane in ("high", "normal", "bulk"):
            stored = await self._readers[lane].read(finished, 0.0) if finished else ()
            if stored:
                await self._readers[lane].commit(stored[-1].position)
                finished -= len(stored)
        await self.watch.look(lag)

    def shown(self, name: str) -> dict[str, float]:
        """A metric of each lane."""
        return {lane: self.ingest.metric(name, lane=lane) for lane in CATEGORIES}


@pytest.fixture
async def site(run_dir: Path) -> AsyncIterator[Site]:
    """Everything open, nothing read yet."""
    clock = ManualClock(NOW)
    async with AsyncExitStack() as stack:
        log = open_store("sqlite:///requests.db", run_dir)
        await log.open()
        stack.push_async_callback(log.close)
        lanes = await stack.enter_async_context(open_lanes(run_dir, clock))
        positions = Writer(run_dir / "positions.db", migrations=position_migrations())
        await positions.open()
        stack.push_async_callback(positions.close)
        readers = {}
        for name in lanes:
            readers[name] = open_reader(
                "sqlite:///lanes", name, data_dir=run_dir, run_dir=run_dir, clock=clock, positions=positions
            )
            await readers[name].open()
            stack.push_async_callback(readers[name].close)
        ingest = Ingest(log=log, lanes=lanes, clock=clock, folder=run_dir)
        yield Site(ingest, lanes, readers)


async def test_five_times_too_much_and_back(site: Site) -> None:
    """A minute of it: bulk is refused, then normal, high never; then at 0.8 all are let in within 30 s, no restart."""
    small, large = {"high": 1, "normal": 5, "bulk": 2}, {"high": 5, "normal": 30, "bulk": 15}
    for _ in range(25):
        await site.go_on(offered=small, finished=10)
    assert not any(site.refused.values())
    levels = set()
    for _ in range(300):
        await site.go_on(offered=large, finished=10)
        levels.add(site.ingest.gate.level)
    assert levels == {Level.NOBODY, Level.BULK, Level.NORMAL}
    assert site.refused["high"] == 0
    assert site.refused["bulk"] > 0.8 * 300 * large["bulk"]
    assert site.refused["normal"] > 0.5 * 300 * large["normal"]
    # The readers never ran dry: what was accepted is what they could do, and the little that waits.
    assert sum(site.shown("lane_backlog_records").values()) < 1_500
    assert sum(site.accepted.values()) > 300 * 10
    for _ in range(150):
        await site.go_on(offered=small, finished=10)
    assert site.ingest.gate.level is Level.NOBODY
    before = dict(site.refused)
    for _ in range(25):
        await site.go_on(offered=small, finished=10)
    assert site.refused == before
    assert sum(site.shown("lane_backlog_records").values()) < 20
    assert site.ingest.metric("shed_events_total", priority="normal") == site.refused["normal"]
    assert site.ingest.metric("overload_level") == 0


async def test_while_the_reader_is_away_events_are_accepted(site: Site) -> None:
    """A minute without fanout at a steady pace: the lane holds it, nobody is refused; nor when it comes back."""
    for _ in range(25):
        await site.go_on(offered={"normal": 5}, finished=10)
    for _ in range(300):
        await site.go_on(offered={"normal": 5}, finished=0)
    assert site.shown("lane_backlog_records")["normal"] == 1_500
    for _ in range(10):
        await site.go_on(offered={"normal": 5}, finished=500)
    assert site.shown("lane_backlog_records")["normal"] == 0
    assert not any(site.refused.values())


async def test_one_late_round_is_no_load(site: Site) -> None:
    """Three in a row are, and how late the best of them was counts."""
    levels = []
    for lag in (3.0, 0.0, 3.0, 3.0, 0.0, 3.0, 0.3, 3.0, 0.3, 0.3, 0.3):
        await site.go_on(offered={"high": 1}, finished=10, lag=lag)
        levels.append(site.ingest.gate.level)
    assert levels == [Level.NOBODY] * 10 + [Level.NORMAL]


async def test_calls_that_queue_up_are_load(site: Site) -> None:
    """Hundreds that nobody has taken up yet, ended at a pace that means seconds; a few slow ones mean nothing."""
    site.calls = CallCount(10, 0)
    for _ in range(20):
        await site.go_on(offered={"bulk": 1}, finished=10)
    assert site.refused["bulk"] == 0
    for number in range(20):
        site.calls = CallCount(500 + number * 100, number * 100)
        await site.go_on(offered={"high": 1, "bulk": 1}, finished=10)
    levels = [site.ingest.gate.level]
    assert site.ingest.gate.cause == "calls queue up"
    assert site.ingest.metric("open_calls") == 500
    assert site.refused["high"] == 0
    site.calls = CallCount(2_000, 2_000)
    for _ in range(20):
        await site.go_on(offered={"high": 1}, finished=10)
    levels.append(site.ingest.gate.level)
    assert levels == [Level.NORMAL, Level.NOBODY]


class HiddenLane:
    """A lane whose backlog cannot be seen for a while."""

    def __init__(self, lane: LaneWriter) -> None:
        self._lane = lane
        self.hidden = True

    async def open(self) -> None:
        await self._lane.open()

    async def append(self, records: Sequence[Record]) -> None:
        await self._lane.append(records)

    async def backlog(self) -> Backlog:
        if self.hidden:
            raise LaneUnavailable("the file of positions is damaged")
        return await self._lane.backlog()

    async def trim(self, before_time: float) -> int:
        return await self._lane.trim(before_time)

    async def close(self) -> None:
        await self._lane.close()


async def test_a_backlog_that_cannot_be_seen_stops_nobody(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is said once, the other lanes are watched on, and it is seen again when it can be."""
    clock = ManualClock(NOW)
    log = open_store("sqlite:///requests.db", run_dir)
    await log.open()
    async with open_lanes(run_dir, clock) as lanes:
        hidden = HiddenLane(lanes["normal"])
        watched: dict[str, LaneWriter] = {**lanes, "normal": hidden}
        ingest = Ingest(log=log, lanes=watched, clock=clock, folder=run_dir)
        watching = watch(ingest, watched)
        for _ in range(5):
            await ingest.batch(publish_request(), publish_request(category="security"))
            await watching.look(0.0)
        lines = [line for line in "".join(capfd.readouterr()).splitlines() if "backlog_not_seen" in line]
        assert len(lines) == 1
        assert ingest.metric("lane_backlog_records", lane="high") == 5
        hidden.hidden = False
        await watching.look(0.0)
        assert ingest.metric("lane_backlog_records", lane="normal") == 5
    await log.close()

"""The controller: high is last, no trembling, and back by itself; a simulated lane for the way there and back."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_ingest.overload import AppendTimes, CallTime, Controller, Level, Limits, Signals, Wait, demand

LANES = ("high", "normal", "bulk")
LIMITS = Limits(wait=5.0, backlog=1_000_000, append=0.5, loop_lag=0.2, call=0.5, in_flight=10_000)
numbers = st.floats(0.0, 1e7)
signals = st.builds(
    Signals,
    waits=st.fixed_dictionaries(dict.fromkeys(LANES, numbers)),
    backlogs=st.fixed_dictionaries({lane: st.integers(0, 10_000_000) for lane in LANES}),
    append=numbers,
    loop_lag=numbers,
    call=numbers,
)
TICK = 0.2


def calm(controller: Controller, seconds: float, start: float) -> float:
    """Quiet readings for a while; returns the time after them."""
    for number in range(round(seconds / TICK)):
        controller.take(Signals(), start + number * TICK)
    return start + seconds


@given(st.lists(st.tuples(signals, st.floats(0.0, 3.0)), max_size=30), st.integers(0, 20_000))
def test_who_matters_more_is_refused_later(readings: list[tuple[Signals, float]], in_flight: int) -> None:
    """Whatever is read: when high is refused so are normal and bulk, when normal is, so is bulk."""
    controller, now = Controller(LIMITS), 0.0
    for reading, pause in readings:
        now += pause
        controller.take(reading, now)
        refused = [bool(controller.refuses(level, in_flight)) for level in (Level.BULK, Level.NORMAL, Level.HIGH)]
        assert refused == sorted(refused, reverse=True)


@given(signals)
def test_half_of_what_is_asked_for_asks_for_no_more(reading: Signals) -> None:
    """A level that readings ask for is one that they keep up at half the limits: the way down is longer."""
    assert demand(reading, LIMITS, 0.5).level >= demand(reading, LIMITS).level


@given(st.lists(st.tuples(signals, st.floats(0.0, 3.0)), max_size=30))
def test_it_always_comes_back(readings: list[tuple[Signals, float]]) -> None:
    """After anything, a few quiet seconds let everybody in."""
    controller, now = Controller(LIMITS), 0.0
    for reading, pause in readings:
        now += pause
        controller.take(reading, now)
    calm(controller, 5.0, now)
    assert controller.level is Level.NOBODY


@pytest.mark.parametrize(
    ("reading", "level"),
    [
        (Signals(waits={"normal": 1.9}), Level.NOBODY),
        (Signals(waits={"normal": 2.0}), Level.BULK),
        (Signals(waits={"normal": 5.0}), Level.NORMAL),
        (Signals(waits={"normal": 1e6}), Level.NORMAL),
        (Signals(waits={"high": 2.0}), Level.NORMAL),
        (Signals(waits={"high": 10.0}), Level.HIGH),
        (Signals(waits={"bulk": 59.0}), Level.NOBODY),
        (Signals(waits={"bulk": 1e6}), Level.BULK),
        (Signals(backlogs={"bulk": 10_000_000}), Level.BULK),
        (Signals(backlogs={"normal": 1_000_000}), Level.NORMAL),
        (Signals(backlogs={"high": 1_000_000}), Level.HIGH),
        (Signals(append=0.25), Level.BULK),
        (Signals(append=2.0), Level.HIGH),
        (Signals(loop_lag=0.2), Level.NORMAL),
        (Signals(loop_lag=1.0), Level.HIGH),
        (Signals(call=0.25), Level.BULK),
        (Signals(call=1.9), Level.NORMAL),
    ],
)
def test_each_signal_asks_for_its_level(reading: Signals, level: Level) -> None:
    """From the shares of the limits."""
    assert demand(reading, LIMITS).level is level


def test_a_moment_changes_nothing() -> None:
    """Only what lasts half a second raises the level, and the cause is named."""
    controller = Controller(LIMITS)
    high = Signals(waits={"normal": 9.0})
    controller.take(high, 0.0)
    controller.take(Signals(), 0.2)
    controller.take(high, 0.4)
    controller.take(high, 0.8)
    assert controller.level is Level.NOBODY
    controller.take(high, 0.9)
    assert (controller.level, controller.refuses(Level.BULK, 0)) == (Level.NORMAL, "wait in lane normal")
    assert not controller.refuses(Level.HIGH, 0)


def test_it_rises_no_further_than_what_lasted() -> None:
    """A peak in the middle does not count."""
    controller = Controller(LIMITS)
    for now, lag in ((0.0, 0.1), (0.2, 5.0), (0.4, 0.1), (0.6, 5.0)):
        controller.take(Signals(loop_lag=lag), now)
    assert controller.level is Level.BULK


def test_between_half_and_whole_it_stays() -> None:
    """No trembling around a limit."""
    controller = Controller(LIMITS)
    levels = []
    for number in range(300):
        wait = 5.0 if number < 10 else 2.6 if number < 100 else 2.4
        controller.take(Signals(waits={"normal": wait}), number * TICK)
        levels.append(controller.level)
    assert set(levels[10:100]) == {Level.NORMAL}
    assert set(levels[106:]) == {Level.BULK}


def test_it_falls_step_by_step() -> None:
    """A second each, so that what comes back does not come back at once."""
    controller = Controller(LIMITS)
    for number in range(4):
        controller.take(Signals(loop_lag=1.0), number * TICK)
    levels = []
    for number in range(4, 24):
        controller.take(Signals(), number * TICK)
        levels.append(int(controller.level))
    assert levels == [3] * 5 + [2] * 5 + [1] * 5 + [0] * 5


def test_what_is_in_flight_counts_at_once() -> None:
    """Bulk may fill half, normal four fifths, high all of it."""
    controller = Controller(Limits(in_flight=10))
    refused = [
        sum(bool(controller.refuses(level, count)) for count in range(11))
        for level in (Level.BULK, Level.NORMAL, Level.HIGH)
    ]
    assert refused == [6, 3, 1]
    assert [controller.refuses_nobody(count) for count in (0, 5, 6)] == [True, True, False]


# ---------------------------------------------------------------- wait


def look(wait: Wait, now: float, *, count: int, age: float, finished: int) -> float:
    """Takes one look and returns the estimate."""
    wait.take(record_count=count, oldest_age=age, finished=finished, now=now)
    return wait.seconds


def test_a_wait_is_the_backlog_over_the_rate() -> None:
    """A reader that finishes 100 a second has five seconds before it with 500."""
    wait = Wait()
    for number in range(100):
        look(wait, number * TICK, count=500, age=4.0, finished=number * 20)
    assert wait.seconds == pytest.approx(5.0, rel=0.01)


def test_a_reader_that_keeps_up_has_no_wait() -> None:
    """A burst on a quiet lane is none: its records are young."""
    wait = Wait()
    for number in range(100):
        look(wait, number * TICK, count=0, age=0.0, finished=number // 10)
    assert look(wait, 100 * TICK, count=10_000, age=0.1, finished=10) == 0.0


def test_a_reader_that_stands_still_is_not_slow() -> None:
    """While fanout is away the lane holds what comes; when it is back, its pace counts, not its absence."""
    wait = Wait()
    for number in range(50):
        look(wait, number * TICK, count=5, age=0.2, finished=number * 20)
    start = 50 * TICK
    for number in range(150):
        assert look(wait, start + number * TICK, count=number * 20, age=number * TICK, finished=1_000) == 0.0
    back = start + 150 * TICK
    assert look(wait, back, count=2_000, age=20.0, finished=2_000) == pytest.approx(2_000 * TICK / 1_000)


def test_a_lane_made_anew_starts_anew() -> None:
    """Numbers that go back belong to another lane."""
    wait = Wait()
    for number in range(50):
        look(wait, number * TICK, count=500, age=4.0, finished=number * 20)
    assert wait.seconds
    assert look(wait, 50 * TICK, count=500, age=9.0, finished=0) == 0.0


# ---------------------------------------------------------------- appends


def test_the_median_of_the_last_appends() -> None:
    """Old ones are forgotten: what was refused for them is let in again."""
    times = AppendTimes()
    assert times.median(0.0) == 0.0
    for number, seconds in enumerate((0.9, 0.1, 0.2, 9.0, 0.3)):
        times.add(seconds, float(number))
    assert times.median(4.0) == 0.3
    assert times.median(8.5) == 0.3
    assert times.median(20.0) == 0.0


# ---------------------------------------------------------------- calls


def test_a_call_takes_as_long_as_those_before_it() -> None:
    """Two hundred open calls, ended at a hundred a second, are two seconds."""
    times = CallTime()
    for number in range(50):
        times.take(arrived=number * 20 + 200, ended=number * 20, now=number * TICK)
    assert times.seconds == pytest.approx(2.0, rel=0.01)
    times.take(arrived=1_180, ended=1_180, now=50 * TICK)
    assert times.seconds == 0.0


def test_a_few_slow_calls_are_no_queue() -> None:
    """Nor is one that never ends."""
    times = CallTime()
    for number in range(50):
        times.take(arrived=number + 19, ended=number, now=float(number))
        assert times.seconds == 0.0


# ---------------------------------------------------------------- simulation


class Chain:
    """A lane a priority behind one reading process that finishes `capacity` events a second, shared by its lanes.

    The position is committed five times a second, as fanout does.
    """

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self.controller = Controller(LIMITS)
        self._waits = {lane: Wait() for lane in LANES}
        self._lanes: dict[str, deque[float]] = {lane: deque() for lane in LANES}
        self._finished = dict.fromkeys(LANES, 0)
        self._owed = dict.fromkeys(LANES, 0.0)
        self.offered = dict.fromkeys(LANES, 0)
        self.accepted = dict.fromkeys(LANES, 0)
        self.delays: dict[str, list[float]] = {lane: [] for lane in LANES}
        self.done = 0
        self.now = 0.0

    def run(self, seconds: float, load: float, *, reading: bool = True) -> None:
        """Offers a load, in parts of the capacity: a tenth high, three tenths bulk."""
        for _ in range(round(seconds / TICK)):
            for lane, share in (("high", 0.1), ("normal", 0.6), ("bulk", 0.3)):
                self._offer(lane, load * share * self._capacity * TICK)
            if reading:
                self._read()
            self.now += TICK
            self._look()

    @property
    def unfinished(self) -> int:
        """What waits in all lanes."""
        return sum(map(len, self._lanes.values()))

    def _offer(self, lane: str, count: float) -> None:
        for _ in range(round(count)):
            self.offered[lane] += 1
            if not self.controller.refuses(Level[lane.upper()], 0):
                self.accepted[lane] += 1
                self._lanes[lane].append(self.now)

    def _read(self) -> None:
        left = self._capacity * TICK
        while left >= 1 and (busy := [lane for lane in LANES if self._lanes[lane]]):
            part = max(1.0, left / len(busy))
            for lane in busy:
                count = min(len(self._lanes[lane]), int(part), int(left))
                left -= count
                for _ in range(count):
                    self.delays[lane].append(self.now - self._lanes[lane].popleft())
                self._finished[lane] += count
                self.done += count

    def _look(self) -> None:
        for lane, records in self._lanes.items():
            age = self.now - records[0] if records else 0.0
            self._waits[lane].take(
                record_count=len(records), oldest_age=age, finished=self._finished[lane], now=self.now
            )
        waits = {lane: wait.seconds for lane, wait in self._waits.items()}
        backlogs = {lane: len(records) for lane, records in self._lanes.items()}
        self.controller.take(Signals(waits=waits, backlogs=backlogs), self.now)


def test_five_times_the_capacity_for_a_minute() -> None:
    """Goodput stays, high is never refused, waits are bounded; at 0.8 all is normal within 30 s, by itself."""
    chain = Chain(1_000.0)
    chain.run(10.0, 0.8)
    assert chain.accepted == chain.offered
    before = chain.done
    chain.run(60.0, 5.0)
    assert chain.done - before >= 0.95 * 60_000
    assert chain.accepted["high"] == chain.offered["high"]
    assert chain.accepted["bulk"] < 0.2 * chain.offered["bulk"]
    assert chain.accepted["normal"] < 0.5 * chain.offered["normal"]
    assert max(chain.delays["high"]) < 5.0
    assert max(chain.delays["normal"]) < 15.0
    chain.run(30.0, 0.8)
    accepted, offered = dict(chain.accepted), dict(chain.offered)
    chain.delays = {lane: [] for lane in LANES}
    chain.run(30.0, 0.8)
    assert chain.controller.level is Level.NOBODY
    assert {lane: chain.accepted[lane] - accepted[lane] for lane in LANES} == {
        lane: chain.offered[lane] - offered[lane] for lane in LANES
    }
    assert max(delay for delays in chain.delays.values() for delay in delays) < 0.5
    assert chain.unfinished < 1_000


def test_below_the_capacity_nobody_is_refused() -> None:
    """At 95 % for five minutes, and after a stand-still of half a minute behind the lanes."""
    chain = Chain(1_000.0)
    chain.run(300.0, 0.95)
    assert chain.accepted == chain.offered
    chain.run(30.0, 0.3, reading=False)
    assert chain.accepted == chain.offered
    chain.run(60.0, 0.3)
    assert chain.accepted["high"] == chain.offered["high"]
    assert chain.unfinished < 500
    assert chain.controller.level is Level.NOBODY

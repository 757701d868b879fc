"""Clocks, and stamps that never repeat whatever the wall clock does."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.clock import ManualClock, Stamper, SteadyClock, SystemClock, require_agreement
from mesh.errors import Unavailable

_MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.floats(min_value=0.0, max_value=10.0)),
        st.tuples(st.just("step"), st.floats(min_value=-1e6, max_value=1e6)),
        st.tuples(st.just("stamp"), st.just(0.0)),
    ),
    max_size=60,
)


def test_the_system_clock_is_the_systems() -> None:
    """Wall time is Unix time, and monotonic time never goes back."""
    clock = SystemClock()
    assert abs(clock.wall() - time.time()) < 5.0
    times = [clock.monotonic() for _ in range(100)]
    assert times == sorted(times)


def test_a_manual_clock_moves_only_when_told() -> None:
    """Advancing moves both clocks, stepping moves the wall clock alone."""
    clock = ManualClock(wall=100.0, monotonic=5.0)
    clock.advance(2.5)
    clock.step_wall(-50.0)
    assert (clock.wall(), clock.monotonic()) == (52.5, 7.5)
    with pytest.raises(ValueError, match="positive"):
        clock.advance(-0.1)


@given(_MOVES)
def test_stamps_never_repeat_and_never_go_back(moves: list[tuple[str, float]]) -> None:
    """Whatever steps the wall clock makes, each stamp is larger than the one before."""
    clock = ManualClock()
    stamper = Stamper(clock)
    stamps = [stamper.next()]
    for kind, amount in moves:
        if kind == "advance":
            clock.advance(amount)
        elif kind == "step":
            clock.step_wall(amount)
        stamps.append(stamper.next())
    assert all(earlier < later for earlier, later in itertools.pairwise(stamps))


def test_stamps_start_at_the_wall_clock_and_follow_the_monotonic_one() -> None:
    """The wall clock is read once; a later step of it does not move stamps."""
    clock = ManualClock(wall=1_700_000_000.25)
    stamper = Stamper(clock)
    assert stamper.next() == 1_700_000_000_250_000
    clock.step_wall(3_600.0)
    clock.advance(1.5)
    assert stamper.next() == 1_700_000_001_750_000


def test_a_burst_within_one_microsecond_counts_on() -> None:
    """Writes faster than the clock's grain still get stamps of their own."""
    stamper = Stamper(ManualClock(wall=1.0))
    assert [stamper.next() for _ in range(4)] == [1_000_000, 1_000_001, 1_000_002, 1_000_003]


@pytest.mark.parametrize(("step", "age"), [(0.0, 2.0), (5.0, 7.0), (-5.0, 2.0)])
def test_age_is_the_larger_of_monotonic_and_wall_time(step: float, age: float) -> None:
    """A write counts as late when either clock says so."""
    clock = ManualClock()
    stamper = Stamper(clock)
    stamp = stamper.next()
    clock.advance(2.0)
    clock.step_wall(step)
    assert stamper.age(stamp) == pytest.approx(age, abs=1e-5)


@pytest.mark.parametrize("step", [3_600.0, -3_600.0])
def test_no_step_moves_a_steady_clock(step: float) -> None:
    """It goes on with the time since it began, refuses work meanwhile, and is good again when both agree."""
    machine = ManualClock(wall=1_000.0)
    clock = SteadyClock(machine)
    machine.advance(1.5)
    assert (clock.wall(), clock.agrees()) == (1_001.5, True)
    machine.step_wall(step)
    machine.advance(1.0)
    assert (clock.wall(), clock.monotonic(), clock.agrees()) == (1_002.5, 2.5, False)
    assert clock.apart() == step
    with pytest.raises(Unavailable) as caught:
        require_agreement(clock)
    assert (caught.value.reason, caught.value.retry_delay) == ("CLOCK_SET", 1.0)
    with pytest.raises(Unavailable):
        Stamper(clock).check()
    machine.step_wall(-step)
    require_agreement(clock)


def test_a_clock_that_a_peer_contradicts_from_the_start_is_not_gone_by() -> None:
    """Either of the two is wrong; the one that can wait does, until the other one confirms it."""
    clock = SteadyClock(ManualClock(wall=1_000.0))
    assert clock.agrees()
    clock.compare(1_060.0, asked=1_000.0, answered=1_000.2)
    assert not clock.agrees()
    assert clock.peer_apart() == pytest.approx(59.9)
    clock.compare(1_000.6, asked=1_000.0, answered=1_000.2)
    assert clock.agrees()


def test_a_clock_that_was_confirmed_is_doubted_when_all_contradict_it() -> None:
    """One of several peers may be wrong: three answers in turn must say so."""
    clock = SteadyClock(ManualClock(wall=1_000.0))
    for peer, good in ((1_000.0, True), (990.0, True), (990.0, True), (1_000.0, True), *[(990.0, True)] * 2):
        clock.compare(peer, asked=1_000.0, answered=1_000.0)
        assert clock.agrees() is good
    clock.compare(990.0, asked=1_000.0, answered=1_000.0)
    with pytest.raises(Unavailable) as caught:
        require_agreement(clock)
    assert caught.value.reason == "CLOCK_SET"


@pytest.mark.parametrize(("peer", "good"), [(1_001.5, True), (1_001.51, False), (998.49, False)])
def test_what_an_answer_took_is_no_difference(peer: float, good: bool) -> None:
    """The peer may have looked at any moment of the two seconds; half a second is allowed beyond."""
    clock = SteadyClock(ManualClock(wall=1_000.0))
    clock.compare(peer, asked=999.0, answered=1_001.0)
    assert clock.agrees() is good


def test_the_clocks_below_compare_themselves_with_nothing() -> None:
    """Only a steady clock knows a time of its own."""
    assert SystemClock().agrees()
    assert ManualClock().agrees()

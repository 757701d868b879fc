"""When a process takes work."""

from __future__ import annotations

from mesh.readiness import Readiness


def test_it_is_ready_while_it_is_open_and_knows_the_time() -> None:
    """Each change is told once; a clock that is right again opens nothing that drains."""
    readiness = Readiness()
    told: list[bool] = []
    readiness.on_change(told.append)
    readiness.see_clock(False)
    readiness.open(True)
    assert told == []
    readiness.see_clock(True)
    readiness.see_clock(False)
    readiness.see_clock(True)
    assert told == [True, False, True]
    readiness.open(False)
    readiness.see_clock(False)
    readiness.see_clock(True)
    assert told == [True, False, True, False]


def test_who_needs_no_wall_clock_stays_ready() -> None:
    """Setting it changes nothing there."""
    readiness = Readiness()
    told: list[bool] = []
    readiness.on_change(told.append)
    readiness.bear_steps()
    readiness.open(True)
    readiness.see_clock(False)
    assert told == [True]

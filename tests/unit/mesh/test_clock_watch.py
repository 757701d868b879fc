"""A clock that is set is noticed once, and so is its return."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from mesh.clock import ManualClock, SteadyClock
from mesh.clock_watch import ClockWatch
from mesh.telemetry import Telemetry


@pytest.mark.parametrize("step", [300.0, -300.0, 0.6, -0.6])
def test_a_step_and_the_way_back_have_one_line_each(step: float) -> None:
    """In both directions; the gauge says how far, and how long it lasted is logged."""
    machine, telemetry = ManualClock(), Telemetry("frame")
    watch = ClockWatch(clock=SteadyClock(machine), telemetry=telemetry, log=structlog.get_logger())
    told: list[bool] = []
    watch.on_change(told.append)
    with capture_logs() as lines:
        watch.look()
        machine.step_wall(step)
        for _ in range(3):
            watch.look()
        gauge = telemetry.registry.get_sample_value("heliograph_frame_clock_apart_seconds")
        assert gauge == pytest.approx(step, abs=1e-6)
        machine.advance(7.5)
        machine.step_wall(-step)
        for _ in range(2):
            watch.look()
    assert told == [False, True]
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("clock_set", "error"),
        ("clock_agrees", "warning"),
    ]
    assert (lines[0]["apart_s"], lines[1]["gone_s"]) == (pytest.approx(step), 7.5)


def test_a_peer_that_contradicts_is_told_of_like_a_step() -> None:
    """With how far it is ahead, in the line and in a gauge of its own."""
    telemetry, clock = Telemetry("frame"), SteadyClock(ManualClock(wall=1_000.0))
    watch = ClockWatch(clock=clock, telemetry=telemetry, log=structlog.get_logger())
    told: list[bool] = []
    watch.on_change(told.append)
    with capture_logs() as lines:
        for peer in (1_060.0, 1_060.0, 1_000.0):
            clock.compare(peer, asked=1_000.0, answered=1_000.0)
            watch.look()
            gauge = telemetry.registry.get_sample_value("heliograph_frame_clock_peer_apart_seconds")
            assert gauge == peer - 1_000.0
    assert told == [False, True]
    assert [(line["event"], line["peer_apart_s"]) for line in lines] == [("clock_set", 60.0), ("clock_agrees", 0.0)]


def test_what_a_time_service_does_every_day_is_no_step() -> None:
    """Clocks of two processes may differ by twice as much."""
    machine = ManualClock()
    watch = ClockWatch(clock=SteadyClock(machine), telemetry=Telemetry("frame"), log=structlog.get_logger())
    told: list[bool] = []
    watch.on_change(told.append)
    for step in (0.4, -0.8, 0.4):
        machine.step_wall(step)
        watch.look()
    assert told == []

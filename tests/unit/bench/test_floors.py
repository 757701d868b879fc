"""What the table of targets says of a figure."""

from __future__ import annotations

import pytest

from bench.floors import Row, growth, show, to_topic
from bench.measures import spread
from bench.push_topic import Event, Topic
from bench.scale import Course, Point


def _row(measured: float, *, more: bool) -> Row:
    floor, goal = (10.0, 100.0) if more else (100.0, 10.0)
    return Row("it", "µs", floor, goal, measured, more, "")


@pytest.mark.parametrize(
    ("measured", "more", "verdict"),
    [
        (100.0, True, "goal"),
        (99.0, True, "floor"),
        (10.0, True, "floor"),
        (9.0, True, "MISSED"),
        (10.0, False, "goal"),
        (11.0, False, "floor"),
        (100.0, False, "floor"),
        (101.0, False, "MISSED"),
        (float("inf"), False, "MISSED"),
    ],
)
def test_a_figure_reaches_the_goal_the_floor_or_neither(measured: float, more: bool, verdict: str) -> None:
    """Also where less is better, and where something never happened."""
    assert _row(measured, more=more).verdict == verdict


def test_every_target_is_a_line() -> None:
    """Under one head, with its unit behind each number."""
    lines = show([_row(5.0, more=False), _row(5.0, more=True)]).splitlines()
    assert len(lines) == 4
    assert "10 µs" in lines[2]


def _course(*micros: float, missing: int = 0) -> Course:
    points = [Point("rows", 10**number, 10**number, each, 100, missing) for number, each in enumerate(micros)]
    return Course("rows", points)


def test_cost_is_judged_at_each_larger_size() -> None:
    """One that is dear in the middle is not flat, whatever comes after it."""
    middle, last = growth([_course(100.0, 130.0, 90.0)], direct=True)
    assert (middle.what, middle.measured, middle.verdict) == ("cost as rows grow ×10, direct", 1.3, "MISSED")
    assert (last.what, last.measured, last.verdict) == ("cost as rows grow ×100, direct", 0.9, "goal")


def test_what_did_not_arrive_did_not_cost_little() -> None:
    """No size of it counts."""
    assert {row.verdict for row in growth([_course(100.0, 50.0, missing=1)], direct=False)} == {"MISSED"}


def test_an_event_to_a_topic_is_judged_by_the_slowest() -> None:
    """From the publish to the last subscriber of any event; never, where one was left out."""
    events = [Event(2, spread([2_500_000, 1_000]), 50.0), Event(2, spread([1_000_000]), 50.0)]
    row = to_topic(Topic(direct=False, subscribers=2, nodes=2, events=events))
    assert (row.what, row.verdict) == ("one event to a topic of 2 connected, mesh", "MISSED")
    assert row.measured == pytest.approx(2.5, rel=0.01)
    assert to_topic(Topic(direct=True, subscribers=2, nodes=2, events=events[1:])).verdict == "floor"
    assert to_topic(Topic(direct=True, subscribers=3, nodes=2, events=events[1:])).measured == float("inf")

"""What the table of targets says of a figure."""

from __future__ import annotations

import pytest

from bench.floors import Row, show


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

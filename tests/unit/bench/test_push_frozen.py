"""What healthy sessions saw beside some that do not read."""

from __future__ import annotations

import pytest

from bench.floors import beside_frozen
from bench.measures import spread
from bench.push_frozen import Frozen, show


def _frozen(*, behind: int = 50, missing: int = 0) -> Frozen:
    return Frozen(
        direct=False,
        healthy=spread([4_000] * 100),
        beside=spread([5_000] * 100),
        share=0.05,
        stuck=50,
        behind=behind,
        missing=missing,
    )


def test_the_slowest_of_the_healthy_are_compared() -> None:
    """In a line of the table of targets, and in one of its own."""
    row = beside_frozen(_frozen())
    assert (row.what, row.measured, row.verdict) == ("p99 beside 5 % frozen readers, mesh", 1.25, "floor")
    assert "1.25" in show(_frozen()).splitlines()[-1]


@pytest.mark.parametrize("frozen", [_frozen(behind=0), _frozen(missing=1)])
def test_nothing_is_said_of_a_run_that_shows_nothing(frozen: Frozen) -> None:
    """No reader was in the way of anybody, or a healthy session did not get everything."""
    assert beside_frozen(frozen).verdict == "MISSED"

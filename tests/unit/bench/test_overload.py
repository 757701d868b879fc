"""What is said of an installation that had more than there is room for."""

from __future__ import annotations

import pytest

from bench.measures import spread
from bench.overload import BULK, HIGH, BulkAgainstHigh, Heard, Overload, Phase, beside, show_bulk, show_overload


def test_high_is_looked_at_while_bulk_lasts() -> None:
    """From the publish of bulk to its last receipt; what high had before and after is not asked for."""
    heard = Heard({HIGH: [(0, 9_000), (100, 2_000), (5_000, 4_000), (9_000, 80_000)], BULK: [(50, 1_000), (50, 8_000)]})
    found = beside("one event", 2_000, heard, 3)
    assert (found.high.count, found.refused) == (2, 3)
    assert found.high.largest == pytest.approx(4.0, rel=0.01)
    assert show_bulk(BulkAgainstHigh(100.0, found.high, [found])).splitlines()[-1].startswith("one event")


def test_bulk_of_which_nothing_arrived_is_no_figure() -> None:
    """It would be the best of all."""
    with pytest.raises(RuntimeError, match="2 events were refused"):
        beside("one event", 2_000, Heard({HIGH: [(0, 9_000)]}), 2)


def test_sessions_that_ended_are_said() -> None:
    """With those that came back."""
    none = spread([])
    phase = Phase("5×", 5_000.0, 1_000.0, {"high": 1.0, "normal": 0.2, "bulk": 0.0}, {}, 900.0, none, none)
    text = show_overload(Overload(1_000.0, 5.0, [phase], 2.0, [], ended=7, returned=6))
    assert "7 sessions ended, 6 came back" in text

"""What several processes of sessions see together."""

from __future__ import annotations

from bench.listeners import Report
from bench.sessions import together


def test_reports_are_added_up() -> None:
    """Every count, and all times of return."""
    one = Report(open=1, received=2, confirmed=3, lost=4, lost_again=5, tries=6, turned_away=7, returns=[8])
    other = Report(open=10, received=20, confirmed=30, lost=40, lost_again=50, tries=60, turned_away=70, returns=[80])
    both = Report(open=11, received=22, confirmed=33, lost=44, lost_again=55, tries=66, turned_away=77, returns=[8, 80])
    assert together([one, other]) == both

"""Spans of time on the command line."""

from __future__ import annotations

import pytest

from heliograph_cli.failures import USAGE, CommandFailed
from heliograph_cli.wishes import span_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1.5h", 5_400), ("7d", 604_800), ("0s", 0)]
)
def test_a_span_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    """Seconds, minutes, hours or days; fractions too."""
    assert span_of(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-1h", "2 h", "2w", "1e3s", "2h30m", ".5h", "9" * 400 + "d", "40000d"])
def test_what_is_no_span_is_wrong_usage(text: str) -> None:
    """One line says what to write; nothing is sent."""
    with pytest.raises(CommandFailed) as caught:
        span_of(text)
    assert caught.value.code == USAGE

"""Waits stay within their bounds, whatever the attempt and the random number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import backoff

_RANDOM = st.floats(min_value=0.0, max_value=1.0, exclude_max=True)


@given(st.integers(min_value=0, max_value=10_000), _RANDOM)
def test_full_jitter_is_below_the_growing_bound_and_the_cap(attempt: int, random: float) -> None:
    """The wait is never negative, never above the cap, never above base doubled once per attempt."""
    wait = backoff.full_jitter(attempt, base=0.1, cap=5.0, random=random)
    assert 0.0 <= wait <= 5.0
    if attempt < 6:
        assert wait <= 0.1 * 2**attempt


@pytest.mark.parametrize(("attempt", "bound"), [(0, 0.1), (1, 0.2), (5, 3.2), (6, 5.0), (1_000, 5.0)])
def test_the_bound_doubles_up_to_the_cap(attempt: int, bound: float) -> None:
    """With the middle of the random range the wait is half the bound, so the bound is what it should be."""
    assert backoff.full_jitter(attempt, base=0.1, cap=5.0, random=0.5) == pytest.approx(bound / 2)


def test_jitter_is_full() -> None:
    """The smallest random number gives no wait at all: waits spread over the whole range."""
    assert backoff.full_jitter(4, base=0.1, cap=5.0, random=0.0) == 0.0


@given(st.floats(min_value=0.001, max_value=1e6), st.floats(min_value=0.0, max_value=1.0), _RANDOM)
def test_dither_stays_within_its_spread(value: float, spread: float, random: float) -> None:
    """A dithered value differs from the nominal one by at most the spread."""
    dithered = backoff.dither(value, spread=spread, random=random)
    # Floating point rounds by parts of the value, however small the spread is.
    assert abs(dithered - value) <= value * (spread + 1e-12)


@pytest.mark.parametrize(("random", "expected"), [(0.0, 8.0), (0.25, 9.0), (0.5, 10.0), (0.75, 11.0)])
def test_dither_uses_both_sides(random: float, expected: float) -> None:
    """Small random numbers shorten, large ones lengthen."""
    assert backoff.dither(10.0, spread=0.2, random=random) == pytest.approx(expected)

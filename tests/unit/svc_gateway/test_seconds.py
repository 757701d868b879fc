"""Times that many sessions share."""

from __future__ import annotations

from svc_gateway.seconds import shared


def test_a_time_becomes_the_next_whole_second() -> None:
    """Never earlier, and a whole second stays what it is."""
    assert (shared(10.0), shared(10.001), shared(10.999)) == (10.0, 11.0, 11.0)


def test_the_same_second_is_the_same_object() -> None:
    """Thousands of sessions keep one number."""
    assert shared(5_000.1) is shared(5_000.9)

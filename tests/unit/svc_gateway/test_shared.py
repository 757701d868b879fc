"""Values that many sessions share."""

from __future__ import annotations

from svc_gateway import shared


def test_a_time_becomes_the_next_whole_second() -> None:
    """Never earlier, and a whole second stays what it is."""
    assert (shared.second(10.0), shared.second(10.001), shared.second(10.999)) == (10.0, 11.0, 11.0)


def test_what_is_alike_is_the_same_object() -> None:
    """Thousands of sessions keep one number and one text."""
    assert shared.second(5_000.1) is shared.second(5_000.9)
    first, second = (str(b"epoch-1", "ascii") for _ in range(2))
    assert first is not second
    assert shared.text(first) is shared.text(second)

"""What growth costs."""

from __future__ import annotations

from bench.scale import Course, Point, show


def test_every_size_is_compared_with_the_first() -> None:
    """Flat is 1, and what did not arrive is said."""
    points = [
        Point("rows", size, size // 10, micros, 100, 1) for size, micros in ((10, 50.0), (100, 55.0), (1_000, 60.0))
    ]
    course = Course("rows", points)
    assert course.ratios == [1.1, 1.2]
    assert show([course]).splitlines()[-1].split()[-3:] == ["1.10", "1.20", "3"]

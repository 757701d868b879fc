"""Protobuf times to numbers and back."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from mesh import times

# The range of a protobuf timestamp: years 1 to 9999.
_MICROS = st.integers(min_value=-62_135_596_800_000_000, max_value=253_402_300_799_999_999)


@given(_MICROS)
def test_microseconds_come_back(micros: int) -> None:
    """Any time a timestamp can hold survives, also before the epoch, and agrees with protobuf's own reading."""
    timestamp = times.timestamp_of(micros)
    assert times.micros_of(timestamp) == micros
    assert timestamp.ToMicroseconds() == micros
    assert 0 <= timestamp.nanos < 1_000_000_000


def test_nanoseconds_are_cut_off() -> None:
    """A later reader never sees a time later than the one that was sent."""
    assert times.micros_of(Timestamp(seconds=1, nanos=999_999_999)) == 1_999_999


@given(st.floats(min_value=-1e8, max_value=1e8))
def test_seconds_come_back(seconds: float) -> None:
    """A span survives to the nanosecond, and both parts have its sign."""
    duration = times.duration_of(seconds)
    assert times.seconds_of(duration) == pytest.approx(seconds, abs=2e-8)
    assert duration.seconds * duration.nanos >= 0
    assert abs(duration.nanos) < 1_000_000_000


def test_rounding_carries_into_the_seconds() -> None:
    """A span a hair below a second becomes one second, not a billion nanoseconds."""
    assert times.duration_of(0.9999999999) == Duration(seconds=1)

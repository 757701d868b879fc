"""Conversions between protobuf's time messages and plain numbers.

Must not read a clock. Stamps and times are microseconds since the epoch, spans are seconds.
"""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

_MICROS = 1_000_000
_NANOS = 1_000_000_000
_NANOS_A_MICRO = 1_000


def micros_of(timestamp: Timestamp) -> int:
    """Returns a timestamp as microseconds since the epoch, cut off (towards the past), not rounded."""
    return timestamp.seconds * _MICROS + timestamp.nanos // _NANOS_A_MICRO


def set_micros(timestamp: Timestamp, micros: int) -> None:
    """Sets a timestamp to microseconds since the epoch; it is present afterwards, also at the epoch itself."""
    seconds, rest = divmod(micros, _MICROS)
    timestamp.seconds = seconds
    timestamp.nanos = rest * _NANOS_A_MICRO
    timestamp.SetInParent()


def timestamp_of(micros: int) -> Timestamp:
    """Returns microseconds since the epoch as a new timestamp."""
    timestamp = Timestamp()
    set_micros(timestamp, micros)
    return timestamp


def seconds_of(duration: Duration) -> float:
    """Returns a duration as seconds."""
    return duration.seconds + duration.nanos / _NANOS


def duration_of(seconds: float) -> Duration:
    """Returns seconds as a duration, rounded to nanoseconds; both parts carry the sign, as the format demands."""
    nanos = round(abs(seconds) * _NANOS)
    sign = -1 if seconds < 0 else 1
    return Duration(seconds=sign * (nanos // _NANOS), nanos=sign * (nanos % _NANOS))

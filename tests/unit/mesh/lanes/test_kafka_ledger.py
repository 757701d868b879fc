"""What is kept of a parked record on Kafka."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest

from mesh.lanes import Parked, Stored
from mesh.lanes.kafka_ledger import LARGEST_PARKED, encode
from mesh.lanes.kafka_topics import LARGEST_BATCH_BYTES


def parked(record: Stored, reason: str = "not understood") -> Parked:
    """What is read back of a record that was parked; it is no larger than what is taken."""
    encoded = encode(record, reason, 8.5)
    assert len(encoded) <= LARGEST_PARKED
    return msgspec.msgpack.decode(encoded, type=Parked)


def test_a_record_is_kept_whole_up_to_the_largest_size() -> None:
    """The next byte costs it its value: the reason says the size and hash, which stays below what a topic takes."""
    beside = (
        len(encode(Stored(7, b"key", b"x" * (LARGEST_PARKED // 2), 1.0), "not understood", 8.5)) - LARGEST_PARKED // 2
    )
    value = b"x" * (LARGEST_PARKED - beside)
    assert parked(Stored(7, b"key", value, 1.0)) == Parked(7, b"key", value, "not understood", 8.5)
    large = value + b"x"
    said = f"its {len(large)} bytes were too large to be kept (SHA-256 {sha256(large).hexdigest()})"
    assert parked(Stored(7, b"key", large, 1.0)) == Parked(
        7, b"key", b"", f"not understood; {said}: it cannot be redriven", 8.5, left_out=len(large)
    )


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"k", b"x" * LARGEST_BATCH_BYTES, "not understood"),
        (b"k" * LARGEST_BATCH_BYTES, b"x", "not understood"),
        (b"k", b"x", "ü" * LARGEST_BATCH_BYTES),
    ],
    ids=["value", "key", "reason"],
)
def test_whatever_is_too_large_is_bounded(key: bytes, value: bytes, reason: str) -> None:
    """Also where a stranger wrote the key, or a peer the reason."""
    found = parked(Stored(7, key, value, 1.0), reason)
    assert (found.position, found.value, found.left_out) == (7, b"", len(value))


def test_what_was_parked_before_is_read() -> None:
    """Marks of a version that left nothing out have no number of bytes."""
    old = {"position": 7, "key": b"k", "value": b"v", "reason": "no", "park_time": 8.5}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Parked) == Parked(7, b"k", b"v", "no", 8.5)

"""What the load writes by hand is what the contract would write."""

from __future__ import annotations

from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]  # not in the stubs
from hypothesis import given
from hypothesis import strategies as st

from bench.publishers import RequestWriter, wire_field
from heliograph.ingest.v1 import ingest_service_pb2
from heliograph.type.v1 import event_pb2


@given(st.binary(max_size=70_000), st.integers(1, 15))
def test_a_field_has_its_tag_and_its_length(value: bytes, number: int) -> None:
    """Of any length, also one that takes several bytes."""
    assert wire_field(number, value) == bytes([number << 3 | 2]) + _VarintBytes(len(value)) + value


def test_a_request_says_what_it_should() -> None:
    """Read as a message, with nothing twice and nothing unknown in it."""
    ids = [f"r{number}" for number in range(300)]
    audience = [wire_field(event_pb2.Audience.RECIPIENT_IDS_FIELD_NUMBER, one.encode()) for one in ids]
    written = RequestWriter().request("newsletter", audience, 123_456_789)
    request = ingest_service_pb2.PublishRequest.FromString(written)
    assert request.ByteSize() == len(written)
    assert list(request.event.audience.recipient_ids) == ids
    assert (request.event.category, request.event.content.body) == ("newsletter", "123456789")
    assert len(request.request_id) == 36

"""Events in keyword form, and what is frozen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.ingest.v1.ingest_service_pb2 import BatchPublishRequest, PublishRequest
from heliograph.type.v1.notification_pb2 import Priority
from heliograph_client.events import PreparedEvent, batch_request, build_event, prepare_event
from mesh.errors import InvalidArgument

TIME = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)


def test_every_keyword_has_its_field() -> None:
    """What is said in Python is what the contract says."""
    event = build_event(
        category="deploy",
        to=["alice", "bob"],
        title="t",
        body="b",
        link="/l",
        data={"n": 1, "text": "ü"},
        priority="bulk",
        expire_time=TIME.astimezone(timezone(timedelta(hours=2))),
        event_time=TIME,
        ordering_key="k",
    )
    assert list(event.audience.recipient_ids) == ["alice", "bob"]
    assert (event.category, event.content.title, event.content.body, event.content.link) == ("deploy", "t", "b", "/l")
    assert event.content.data_json == '{"n":1,"text":"ü"}'
    assert (event.priority, event.ordering_key) == (Priority.PRIORITY_BULK, "k")
    assert event.expire_time.ToDatetime(tzinfo=UTC) == event.event_time.ToDatetime(tzinfo=UTC) == TIME


def test_what_is_not_said_is_absent() -> None:
    """Defaults are the server's: no priority, no time, no expiry."""
    event = build_event(category="c", to="alice", title="t", data={})
    assert list(event.audience.recipient_ids) == ["alice"]
    assert event.WhichOneof("expiration") is None
    assert not event.HasField("event_time")
    assert (event.priority, event.content.data_json) == (Priority.PRIORITY_UNSPECIFIED, "")


def test_a_span_may_be_a_number_of_seconds() -> None:
    """Both ways of writing it give the same event."""
    long = build_event(category="c", to="a", title="t", ttl=timedelta(minutes=1.5))
    assert long == build_event(category="c", to="a", title="t", ttl=90)


def test_what_is_ambiguous_is_refused() -> None:
    """A time without a zone, two ends of usefulness."""
    with pytest.raises(InvalidArgument, match="event_time needs a time zone"):
        build_event(category="c", to="a", title="t", event_time=TIME.replace(tzinfo=None))
    with pytest.raises(InvalidArgument, match="exclude each other"):
        build_event(category="c", to="a", title="t", ttl=1, expire_time=TIME)


@given(st.lists(st.binary(max_size=300)))
def test_a_batch_holds_the_frozen_bytes(payloads: list[bytes]) -> None:
    """Put together by hand, read by protobuf: each item is what was frozen."""
    prepared = []
    for number, payload in enumerate(payloads):
        event = build_event(category="c", to="a", title=payload.hex())
        prepared.append(prepare_event(event, request_id=None, wall=float(number), entropy=b"0123456789"))
    batch = BatchPublishRequest.FromString(batch_request(prepared))
    assert list(batch.requests) == [PublishRequest.FromString(item.request) for item in prepared]


def test_a_request_id_of_ones_own_is_checked() -> None:
    """It is UUID text in its canonical form; a frozen event carries it."""
    event = build_event(category="c", to="a", title="t")
    own = "01890000-0000-7000-8000-0000000000ab"
    prepared = prepare_event(event, request_id=own, wall=0.0, entropy=b"0123456789", validate_only=True)
    request = PublishRequest.FromString(prepared.request)
    assert prepared == PreparedEvent(own, prepared.request)
    assert (request.request_id, request.validate_only, request.event) == (own, True, event)
    with pytest.raises(InvalidArgument, match="request_id"):
        prepare_event(event, request_id=own.upper(), wall=0.0, entropy=b"0123456789")

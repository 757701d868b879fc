"""What is appended for an event, and what its producer is told."""

from __future__ import annotations

import pytest

from heliograph.ingest.v1 import event_record_pb2, ingest_service_pb2
from heliograph.type.v1 import envelope_pb2, event_pb2, notification_pb2
from mesh import ids
from mesh.times import timestamp_of
from svc_ingest import core, record
from svc_ingest.repeats import VALIDATED, Receipt
from tests.support.publishing import NOW, NOW_NS, REGISTRIES, publish_request, request_id, timestamp

EVENT_ID = bytes(range(16))
EVENT_TEXT = ids.to_text(EVENT_ID)
ORIGIN = record.Origin("acme", "demo", "00-trace", timestamp_of(NOW * 1_000_000 + 5))


def draft_of(request: ingest_service_pb2.PublishRequest) -> core.Draft:
    """The draft of a right request."""
    judged = core.check(request, REGISTRIES.grants["acme", "demo"], REGISTRIES, NOW_NS)
    assert isinstance(judged, core.Draft), judged
    return judged


def build(
    request: ingest_service_pb2.PublishRequest, id_time_ms: int = NOW * 1_000
) -> tuple[bytes, event_record_pb2.EventRecord, notification_pb2.Notification]:
    """The key, the record, and the notification inside."""
    built = record.build_record(draft_of(request), ORIGIN, EVENT_ID, id_time_ms)
    decoded = event_record_pb2.EventRecord.FromString(built.value)
    return built.key, decoded, notification_pb2.Notification.FromString(decoded.envelope.notification)


def test_a_record_has_everything_that_travels_on() -> None:
    """Every field of the envelope and of the notification, for a request that uses all of them."""
    request = publish_request(
        "Door open",
        to=["alice", "bob"],
        category="security",
        id_=request_id(time_s=NOW - 1),
        body="Since noon",
        link="/doors/7",
        data_json='{"door":7}',
        ordering_key="door/7",
        event_time=NOW - 2.5,
    )
    request.event.ttl.seconds = 60
    key, decoded, notification = build(request, (NOW - 1) * 1_000)
    expected = notification_pb2.Notification(
        notification_id=EVENT_TEXT,
        revision=1,
        category="security",
        priority=notification_pb2.PRIORITY_HIGH,
        event_time=timestamp(NOW - 2.5),
        expire_time=timestamp(NOW + 57.5),
        content=request.event.content,
        producer_id="demo",
    )
    assert notification == expected
    assert decoded == event_record_pb2.EventRecord(
        envelope=envelope_pb2.Envelope(
            kind=envelope_pb2.ENVELOPE_KIND_NOTIFY,
            notification_id=EVENT_TEXT,
            revision=1,
            tenant_id="acme",
            producer_id="demo",
            category="security",
            priority=notification_pb2.PRIORITY_HIGH,
            event_time=timestamp(NOW - 2.5),
            expire_time=timestamp(NOW + 57.5),
            notification=expected.SerializeToString(),
            traceparent="00-trace",
            event_id=EVENT_TEXT,
            ordering_key="door/7",
            accept_time=timestamp_of(NOW * 1_000_000 + 5),
        ),
        audience=event_pb2.Audience(recipient_ids=["alice", "bob"]),
        request_digest=draft_of(request).digest,
        digest_version=1,
    )
    assert key == b"acme/door%2F7"


def test_without_a_time_the_event_happened_at_the_ids() -> None:
    """The id's time is ingest's clock at the first try, and the ttl counts from it."""
    request = publish_request()
    request.event.ttl.seconds = 10
    _, decoded, notification = build(request, (NOW - 3) * 1_000)
    assert notification.event_time == timestamp(NOW - 3)
    assert decoded.envelope.expire_time == notification.expire_time == timestamp(NOW + 7)


def test_an_expire_time_is_passed_on_to_the_nanosecond() -> None:
    """Times are carried as they were sent."""
    request = publish_request()
    request.event.expire_time.seconds, request.event.expire_time.nanos = NOW + 5, 123_456_789
    assert build(request)[2].expire_time == request.event.expire_time


def test_without_an_expiry_there_is_none() -> None:
    """Absent stays absent."""
    _, decoded, notification = build(publish_request())
    assert not decoded.envelope.HasField("expire_time")
    assert not notification.HasField("expire_time")


def test_repeated_recipients_count_once() -> None:
    """In the order of their first mention."""
    key, decoded, _ = build(publish_request(to=["bob", "alice", "bob"]))
    assert list(decoded.audience.recipient_ids) == ["bob", "alice"]
    assert key == EVENT_TEXT.encode()
    assert build(publish_request(to=["bob", "bob"]))[0] == b"acme/bob"


@pytest.mark.parametrize(
    ("ordering_key", "to", "topics", "key"),
    [
        ("k", ["alice"], [], b"acme/k"),
        ("k", [], ["all"], b"acme/k"),
        ("", ["alice"], [], b"acme/alice"),
        ("", ["alice", "bob"], [], EVENT_TEXT.encode()),
        ("", ["alice"], ["all"], EVENT_TEXT.encode()),
        ("", [], ["all"], EVENT_TEXT.encode()),
    ],
)
def test_the_lane_key(ordering_key: str, to: list[str], topics: list[str], key: bytes) -> None:
    """Ordering key, else the sole recipient, else the event itself."""
    assert build(publish_request(ordering_key=ordering_key, to=to, topics=topics))[0] == key


def test_an_audience_travels_unresolved() -> None:
    """Topics and exclusions as they were sent, repeated ones once."""
    request = publish_request(to=["alice"], topics=["b/c", "a", "b/c"], excluded=["bob", "bob"])
    _, decoded, notification = build(request)
    assert decoded.audience == event_pb2.Audience(
        recipient_ids=["alice"], topic_ids=["b/c", "a"], excluded_recipient_ids=["bob"]
    )
    assert notification.topic_id == ""


@pytest.mark.parametrize("topics", [["team-a"], ["team-a", "team-a"]])
def test_the_sole_topic_is_shown(topics: list[str]) -> None:
    """A notification says which topic it came by where the audience names exactly one."""
    assert build(publish_request(to=["alice"], topics=topics))[2].topic_id == "team-a"


def test_unknown_fields_do_not_travel_on() -> None:
    """What this version does not know is not checked, so it is not carried to anybody."""
    sent = publish_request()
    # Field 999, a varint, in the request, the event, the content and the audience.
    unknown = b"\xb8\x3e\x01"
    event = sent.event
    event.content.MergeFromString(unknown)
    event.audience.MergeFromString(unknown)
    event.MergeFromString(unknown)
    sent.MergeFromString(unknown)
    assert event.content.SerializeToString().endswith(unknown)
    plain = record.build_record(draft_of(publish_request()), ORIGIN, EVENT_ID, NOW * 1_000)
    assert record.build_record(draft_of(sent), ORIGIN, EVENT_ID, NOW * 1_000) == plain


def test_every_priority_has_a_lane() -> None:
    """A priority that is added to the contract needs one."""
    known = {value for value in notification_pb2.Priority.values() if value}
    assert set(record.LANES) == known


def test_the_answer() -> None:
    """Id text, time in microseconds, and whether it is a repeat; nothing for what was only judged."""
    answer = ingest_service_pb2.PublishResponse()
    record.fill_answer(answer, Receipt(EVENT_ID, NOW * 1_000_000 + 5, replayed=True))
    assert answer == ingest_service_pb2.PublishResponse(
        event_id=EVENT_TEXT, accept_time=timestamp_of(NOW * 1_000_000 + 5), replayed=True
    )
    judged = ingest_service_pb2.PublishResponse()
    record.fill_answer(judged, VALIDATED)
    assert judged == ingest_service_pb2.PublishResponse()

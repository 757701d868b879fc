"""The digest: fixed vectors, and that every field is in it."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from heliograph.ingest.v1 import ingest_service_pb2
from heliograph.type.v1 import event_pb2, notification_pb2
from svc_ingest.digest import DIGEST_VERSION, digest_of
from tests.support.publishing import publish_request

TIMES = st.none() | st.tuples(st.integers(-(2**40), 2**40), st.integers(-999_999_999, 999_999_999))
TEXTS = st.text(max_size=6)
RECIPIENTS = st.lists(st.text("ab@", min_size=1, max_size=3), max_size=3)


@st.composite
def events(draw: st.DrawFn) -> event_pb2.Event:
    """Events of every shape; texts are short, so that neighbours differ by little."""
    event = event_pb2.Event(
        category=draw(st.text("gh", max_size=2)),
        audience=event_pb2.Audience(
            recipient_ids=draw(RECIPIENTS), topic_ids=draw(RECIPIENTS), excluded_recipient_ids=draw(RECIPIENTS)
        ),
        content=notification_pb2.Content(title=draw(TEXTS), body=draw(TEXTS), link=draw(TEXTS), data_json=draw(TEXTS)),
        priority=draw(st.sampled_from(notification_pb2.Priority.values())),
        ordering_key=draw(TEXTS),
    )
    if expiration := draw(TIMES):
        span = event.ttl if draw(st.booleans()) else event.expire_time
        span.seconds, span.nanos = expiration
        span.SetInParent()
    if event_time := draw(TIMES):
        event.event_time.seconds, event.event_time.nanos = event_time
        event.event_time.SetInParent()
    return event


def test_the_digest_never_changes() -> None:
    """Fixed vectors: repeats across releases rely on them; another encoding is another version."""
    assert DIGEST_VERSION == 1
    small = publish_request("Deployed").event
    assert digest_of(small).hex() == "639969a43f04d63da74bfed6f7353520616c25aa33a9532ccfeae9b5c744e0bb"
    full = publish_request(
        "Türe offen 🚪",
        to=["alice", "bob", "alice"],
        category="security",
        body="Zeile 1\nZeile 2",
        link="/doors/7",
        data_json='{"door":7}',
        priority=notification_pb2.PRIORITY_BULK,
        ordering_key="door-7",
        event_time=1_700_000_000.25,
    ).event
    full.ttl.seconds = 3_600
    assert digest_of(full).hex() == "942d1b638c8606bb090f4aa07dfbdbaac5e4288b97029fa118fc6a6712a958b5"
    wide = publish_request("Deployed", topics=["team-a", "all"], excluded=["bob"]).event
    assert digest_of(wide).hex() == "807b54e0c6d380888dadca80356564071dfe98672d9370ed9ab04216cae48a83"


def test_every_field_of_an_event_is_in_the_digest() -> None:
    """A field that is added to the contract must be added here, with a new version, or be left out knowingly."""
    assert {field.name for field in event_pb2.Event.DESCRIPTOR.fields} == {
        "category",
        "audience",
        "content",
        "priority",
        "expire_time",
        "ttl",
        "event_time",
        "ordering_key",
    }
    assert {field.name for field in event_pb2.Audience.DESCRIPTOR.fields} == {
        "recipient_ids",
        "topic_ids",
        "excluded_recipient_ids",
    }
    assert {field.name for field in notification_pb2.Content.DESCRIPTOR.fields} == {
        "title",
        "body",
        "link",
        "data_json",
    }
    assert {field.name for field in ingest_service_pb2.PublishRequest.DESCRIPTOR.fields} == {
        "event",
        "request_id",
        "validate_only",
    }


@given(events(), events())
def test_other_events_have_other_digests(one: event_pb2.Event, other: event_pb2.Event) -> None:
    """Any difference shows."""
    assume(one != other)
    assert digest_of(one) != digest_of(other)


@given(events())
def test_the_same_event_has_the_same_digest(event: event_pb2.Event) -> None:
    """However it came: a copy over the wire, or one with fields that this version does not know."""
    assert digest_of(event_pb2.Event.FromString(event.SerializeToString())) == digest_of(event)
    # Field 999, a varint.
    assert digest_of(event_pb2.Event.FromString(event.SerializeToString() + b"\xb8\x3e\x01")) == digest_of(event)


def test_text_does_not_move_between_fields() -> None:
    """The end of one text and the beginning of the next are told apart; so are the recipients."""
    variants = [
        publish_request("ab", body="c"),
        publish_request("a", body="bc"),
        publish_request("ab", link="c"),
        publish_request("ab", body="c", to=["alice", "bob"]),
        publish_request("ab", body="c", to=["alicebob"]),
        publish_request("ab", body="c", to=["bob", "alice"]),
        publish_request("ab", body="c", to=["alice", "alice"]),
        publish_request("ab", body="c", topics=["alice"]),
        publish_request("ab", body="c", topics=["alice", "bob"]),
        publish_request("ab", body="c", excluded=["alice"]),
        publish_request("ab", body="c", topics=["alice"], excluded=["bob"]),
    ]
    assert len({digest_of(variant.event) for variant in variants}) == len(variants)


def test_a_time_of_zero_is_not_an_absent_one() -> None:
    """Presence counts."""
    absent, epoch, expiring, lasting = (publish_request() for _ in range(4))
    epoch.event.event_time.SetInParent()
    expiring.event.expire_time.SetInParent()
    lasting.event.ttl.SetInParent()
    assert len({digest_of(request.event) for request in (absent, epoch, expiring, lasting)}) == 4

"""What a request is judged by: every rule, at its boundary."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.ingest.v1 import ingest_service_pb2
from heliograph.type.v1 import notification_pb2, refusal_pb2
from mesh import ids
from mesh.errors import Failure, InvalidArgument, PermissionDenied
from svc_ingest import core, limits
from tests.support.publishing import NOW, NOW_NS, REGISTRIES, publish_request, random_id, request_id, timestamp

Request = ingest_service_pb2.PublishRequest
DAY = 24 * 3600


def check(request: Request, producer: str = "demo") -> core.Draft | Failure:
    """Judges a request of a producer of acme, now."""
    return core.check(request, core.find_grant(REGISTRIES, "acme", producer), REGISTRIES, NOW_NS)


def draft_of(request: Request) -> core.Draft:
    """The draft of a request that must be right."""
    draft = check(request)
    assert isinstance(draft, core.Draft), draft
    return draft


def refusal_of(request: Request, producer: str = "demo") -> Failure:
    """The failure of a request that must be wrong."""
    failure = check(request, producer)
    assert isinstance(failure, Failure), failure
    return failure


def expiring(*, seconds: int, nanos: int = 0) -> Request:
    """A request with an expiry."""
    request = publish_request()
    request.event.expire_time.CopyFrom(Timestamp(seconds=seconds, nanos=nanos))
    return request


def lasting(seconds: int, nanos: int = 0, event_time: float | None = NOW) -> Request:
    """A request with a ttl."""
    request = publish_request(event_time=event_time)
    request.event.ttl.CopyFrom(Duration(seconds=seconds, nanos=nanos))
    return request


def happened(seconds: int, nanos: int = 0) -> Request:
    """A request with an event time of any kind."""
    request = publish_request()
    request.event.event_time.CopyFrom(Timestamp(seconds=seconds, nanos=nanos))
    return request


def without(field: str) -> Request:
    """A request without a field of its event."""
    request = publish_request()
    request.event.ClearField(field)  # type: ignore[arg-type]  # any field's name
    return request


@pytest.mark.parametrize(
    "request_",
    [
        publish_request("t" * limits.TITLE_CHARACTERS),
        publish_request("👩‍🚀 שלום"),
        publish_request(body="b" * limits.BODY_CHARACTERS),
        publish_request(body="one\n\ttwo"),
        publish_request(to=["a" * limits.RECIPIENT_CHARACTERS]),
        publish_request(to=["A-z_0.9@x:+=-"]),
        publish_request(to=[f"r{number}" for number in range(limits.RECIPIENTS)]),
        publish_request(to=[], topics=["team-a"]),
        publish_request(topics=[f"{number}/._-@:+=" for number in range(limits.TOPICS)]),
        publish_request(topics=["t" * limits.TOPIC_CHARACTERS]),
        publish_request(excluded=[f"r{number}" for number in range(limits.EXCLUDED)]),
        publish_request(to=["alice"], excluded=["alice"]),
        publish_request(ordering_key="k" * limits.ORDERING_KEY_CHARACTERS),
        publish_request(id_=request_id(time_s=NOW - DAY)),
        publish_request(id_=request_id(time_s=NOW + 60)),
        publish_request(id_=random_id()),
        publish_request(id_=request_id().upper()),
        publish_request(event_time=NOW - DAY),
        publish_request(event_time=NOW + 60),
        happened(NOW, 999_999_999),
        expiring(seconds=NOW, nanos=1),
        expiring(seconds=NOW + 90 * DAY),
        lasting(0, 1),
        lasting(90 * DAY),
        lasting(1, event_time=None),
        publish_request(priority=notification_pb2.PRIORITY_BULK),
    ],
)
def test_what_the_rules_allow_passes(request_: Request) -> None:
    """At each limit a request is still right."""
    assert draft_of(request_).late is None


@pytest.mark.parametrize(
    ("request_", "field", "reason"),
    [
        (Request(), "event.category", "FIELD_INVALID"),
        (without("category"), "event.category", "FIELD_INVALID"),
        (publish_request(category="Über"), "event.category", "FIELD_INVALID"),
        (publish_request(category="c" * 65), "event.category", "FIELD_INVALID"),
        (publish_request(category="gossip"), "event.category", "CATEGORY_UNKNOWN"),
        (without("audience"), "event.audience.recipient_ids", "FIELD_INVALID"),
        (publish_request(to=["r"] * (limits.RECIPIENTS + 1)), "event.audience.recipient_ids", "AUDIENCE_TOO_LARGE"),
        (publish_request(to=["bob", ""]), "event.audience.recipient_ids[1]", "FIELD_INVALID"),
        (publish_request(to=["a" * 129]), "event.audience.recipient_ids[0]", "FIELD_INVALID"),
        (publish_request(to=["bob\nalice"]), "event.audience.recipient_ids[0]", "FIELD_INVALID"),
        (publish_request(to=["bob\n"]), "event.audience.recipient_ids[0]", "FIELD_INVALID"),
        (publish_request(to=["bob", "a/b"]), "event.audience.recipient_ids[1]", "FIELD_INVALID"),
        (publish_request(to=["аlice"]), "event.audience.recipient_ids[0]", "FIELD_INVALID"),  # Cyrillic
        (publish_request(to=[], excluded=["bob"]), "event.audience.recipient_ids", "FIELD_INVALID"),
        (publish_request(topics=["t"] * (limits.TOPICS + 1)), "event.audience.topic_ids", "FIELD_INVALID"),
        (publish_request(topics=["ok", ""]), "event.audience.topic_ids[1]", "FIELD_INVALID"),
        (publish_request(topics=["t" * 129]), "event.audience.topic_ids[0]", "FIELD_INVALID"),
        (publish_request(topics=["a b"]), "event.audience.topic_ids[0]", "FIELD_INVALID"),
        (publish_request(topics=["a\n"]), "event.audience.topic_ids[0]", "FIELD_INVALID"),
        (
            publish_request(excluded=["r"] * (limits.EXCLUDED + 1)),
            "event.audience.excluded_recipient_ids",
            "AUDIENCE_TOO_LARGE",
        ),
        (publish_request(excluded=["bob\nbo"]), "event.audience.excluded_recipient_ids[0]", "FIELD_INVALID"),
        (publish_request(excluded=["a/b"]), "event.audience.excluded_recipient_ids[0]", "FIELD_INVALID"),
        (without("content"), "event.content", "FIELD_INVALID"),
        (publish_request(""), "event.content.title", "FIELD_INVALID"),
        (publish_request("t" * 201), "event.content.title", "FIELD_INVALID"),
        (publish_request("two\nlines"), "event.content.title", "FIELD_INVALID"),
        (publish_request(body="b" * 4_001), "event.content.body", "FIELD_INVALID"),
        (publish_request(body="bell\a"), "event.content.body", "FIELD_INVALID"),
        (publish_request(link="ftp://example.org"), "event.content.link", "FIELD_INVALID"),
        (publish_request(data_json="[]"), "event.content.data_json", "FIELD_INVALID"),
        (publish_request(ordering_key="k" * 129), "event.ordering_key", "FIELD_INVALID"),
        (publish_request(ordering_key="a\0b"), "event.ordering_key", "FIELD_INVALID"),
        (happened(NOW, -1), "event.event_time", "FIELD_INVALID"),
        (happened(NOW, 1_000_000_000), "event.event_time", "FIELD_INVALID"),
        (happened(2**62), "event.event_time", "FIELD_INVALID"),
        (happened(-(2**62)), "event.event_time", "FIELD_INVALID"),
        (expiring(seconds=NOW, nanos=-1), "event.expire_time", "FIELD_INVALID"),
        (expiring(seconds=2**63 - 1), "event.expire_time", "FIELD_INVALID"),
        (expiring(seconds=NOW + 90 * DAY, nanos=1), "event.expire_time", "FIELD_INVALID"),
        (lasting(0), "event.ttl", "FIELD_INVALID"),
        (lasting(-5), "event.ttl", "FIELD_INVALID"),
        (lasting(0, -1), "event.ttl", "FIELD_INVALID"),
        (lasting(90 * DAY, 1), "event.ttl", "FIELD_INVALID"),
        (lasting(5, -1), "event.ttl", "FIELD_INVALID"),
        (lasting(5, 1_000_000_000), "event.ttl", "FIELD_INVALID"),
        (lasting(-(2**63), -999_999_999), "event.ttl", "FIELD_INVALID"),
        (publish_request(id_="not-a-uuid"), "request_id", "FIELD_INVALID"),
        (publish_request(id_=request_id() + "\n"), "request_id", "FIELD_INVALID"),
        (publish_request(id_=request_id().replace("-", "")), "request_id", "FIELD_INVALID"),
        (publish_request(id_="00000000-0000-0000-0000-000000000000"), "request_id", "FIELD_INVALID"),
        (publish_request(id_="ffffffff-ffff-ffff-ffff-ffffffffffff"), "request_id", "FIELD_INVALID"),
    ],
)
def test_what_breaks_a_rule_is_named(request_: Request, field: str, reason: str) -> None:
    """A broken rule is INVALID_ARGUMENT with the field as in the request."""
    failure = refusal_of(request_)
    assert isinstance(failure, InvalidArgument)
    assert field in [violation.field for violation in failure.violations]
    if len(failure.violations) == 1:
        assert failure.reason == reason


def test_an_unknown_priority_is_refused() -> None:
    """A number that this version does not know is no default."""
    request = publish_request()
    request.event.priority = 7  # type: ignore[assignment]  # enums are open on the wire
    assert [violation.field for violation in refusal_of(request).violations] == ["event.priority"]


def test_content_is_limited_as_a_whole() -> None:
    """Each text may be right and all together too large."""
    request = publish_request(
        "t", body="\u4e2d" * 4_000, link="/" + "l" * 1_999, data_json='{"a":"' + "b" * 2_400 + '"}'
    )
    assert request.event.content.ByteSize() > limits.CONTENT_BYTES
    failure = refusal_of(request)
    assert failure.reason == "CONTENT_TOO_LARGE"
    assert [violation.field for violation in failure.violations] == ["event.content"]


def test_all_violations_come_at_once() -> None:
    """A producer that makes five mistakes learns of five, also when they have different reasons."""
    request = publish_request(
        "", category="gossip", to=["a b"], link="javascript:alert(1)", id_="x", event_time=NOW - 2 * DAY
    )
    failure = refusal_of(request)
    assert failure.reason == "FIELD_INVALID"
    assert [violation.field for violation in failure.violations] == [
        "event.category",
        "event.audience.recipient_ids[0]",
        "event.content.title",
        "event.content.link",
        "request_id",
        "event.event_time",
    ]


def test_violations_are_limited() -> None:
    """Ten thousand wrong ids do not make a refusal of a megabyte."""
    assert len(refusal_of(publish_request(to=["?"] * 10_000)).violations) == limits.VIOLATIONS


@pytest.mark.parametrize(
    ("request_", "field", "reason"),
    [
        (publish_request(id_=request_id(time_s=NOW - DAY - 0.001)), "request_id", "EVENT_TIME_INVALID"),
        (publish_request(id_=request_id(time_s=NOW + 60.001)), "request_id", "EVENT_TIME_INVALID"),
        (publish_request(event_time=NOW - DAY - 1), "event.event_time", "EVENT_TIME_INVALID"),
        (happened(NOW + 60, 1), "event.event_time", "EVENT_TIME_INVALID"),
        (happened(-62_135_596_800), "event.event_time", "EVENT_TIME_INVALID"),
        (expiring(seconds=NOW), "event.expire_time", "EVENT_EXPIRED"),
        (lasting(10, event_time=NOW - 10), "event.ttl", "EVENT_EXPIRED"),
    ],
)
def test_what_comes_too_late_is_still_a_draft(request_: Request, field: str, reason: str) -> None:
    """Only the time of the call speaks against it: whether it was accepted before, the log must say."""
    late = draft_of(request_).late
    assert late is not None
    assert (late.reason, late.violations[0].field) == (reason, field)


def test_the_ttl_of_a_request_with_a_time_counts_from_it() -> None:
    """Without an event time the request id's time is the event's."""
    request = lasting(30, event_time=None)
    request.request_id = request_id(time_s=NOW - 31)
    late = draft_of(request).late
    assert late is not None
    assert late.reason == "EVENT_EXPIRED"


def test_the_time_of_a_request() -> None:
    """The request id's time goes before the event time; without either there is none."""
    both = draft_of(publish_request(id_=request_id(time_s=NOW - 5), event_time=NOW - 7))
    assert (both.id_time_ms, both.event_ns) == ((NOW - 5) * 1_000, (NOW - 7) * 10**9)
    only_id = draft_of(publish_request(id_=request_id(time_s=NOW - 5)))
    assert (only_id.id_time_ms, only_id.event_ns) == ((NOW - 5) * 1_000, (NOW - 5) * 10**9)
    only_event = draft_of(publish_request(id_=random_id(), event_time=NOW - 7.5))
    assert (only_event.id_time_ms, only_event.event_ns) == (NOW * 1_000 - 7_500, NOW_NS - 7_500_000_000)
    neither = draft_of(publish_request(id_=random_id()))
    assert (neither.id_time_ms, neither.event_ns) == (None, None)


def test_the_spelling_of_a_request_id_does_not_matter() -> None:
    """Upper-case text is the same id."""
    assert draft_of(publish_request(id_=request_id(7).upper())).request_id == ids.from_text(request_id(7))


def test_priority_comes_from_the_event_else_from_the_category() -> None:
    """Unspecified means the category's default."""
    assert draft_of(publish_request(category="security")).priority == notification_pb2.PRIORITY_HIGH
    own = publish_request(category="security", priority=notification_pb2.PRIORITY_BULK)
    assert draft_of(own).priority == notification_pb2.PRIORITY_BULK


def test_a_producer_needs_a_grant() -> None:
    """For each category and priority; one that is not registered may do nothing."""
    category = refusal_of(publish_request(category="security"), "billing")
    assert (category.reason, category.metadata) == ("NOT_GRANTED", {"category": "security"})
    priority = refusal_of(publish_request(priority=notification_pb2.PRIORITY_HIGH), "billing")
    assert isinstance(priority, PermissionDenied)
    assert (priority.reason, priority.metadata) == ("NOT_GRANTED", {"priority": "HIGH"})
    with pytest.raises(PermissionDenied) as unknown:
        core.find_grant(REGISTRIES, "acme", "nobody")
    assert unknown.value.reason == "NOT_GRANTED"
    with pytest.raises(PermissionDenied):
        core.find_grant(REGISTRIES, "globex", "billing")


@pytest.mark.parametrize(("count", "right"), [(0, False), (1, True), (500, True), (501, False)])
def test_a_batch_has_1_to_500_items(count: int, right: bool) -> None:
    """A batch as a whole is judged by its count only."""
    if right:
        core.check_batch(count)
    else:
        with pytest.raises(InvalidArgument) as failure:
            core.check_batch(count)
        assert failure.value.violations[0].field == "requests"


def test_every_reason_is_in_the_contract() -> None:
    """Reasons are API: each constructor's is a name of ErrorReason."""
    failures: list[Failure] = [
        core.field_invalid("f", "r"),
        core.category_unknown("c"),
        core.audience_too_large("f", 1, 0),
        core.content_too_large(1),
        core.event_expired("f"),
        core.event_time_invalid("f"),
        core.producer_unknown("t", "p"),
        core.not_granted("w", "n"),
        core.request_id_reused("i"),
        core.request_pending(1.0),
        core.lane_unavailable("high", unknown=False),
    ]
    for failure in failures:
        refusal_pb2.ErrorReason.Value(f"ERROR_REASON_{failure.reason}")


def test_the_event_id_is_derived_from_everything_that_makes_the_event() -> None:
    """Tenant, producer, request id, content and time: the same give the same id, any other another."""

    def derive(title: str = "a", tenant: str = "t", producer: str = "p", request: bytes = b"r", time: int = 5) -> bytes:
        return core.derive_event_id(draft_of(publish_request(title)), tenant, producer, request, time)

    assert derive() == derive()
    others = {derive("b"), derive(tenant="u"), derive(producer="q"), derive(request=b"s"), derive(time=6)}
    assert len(others | {derive()}) == 6
    assert derive(tenant="ab", producer="c") != derive(tenant="a", producer="bc")


def test_the_event_id_tells_time_and_high_priority() -> None:
    """The first 48 bits are the time in ms, the last bit says high."""
    for category, bit in (("general", 0), ("security", 1), ("newsletter", 0)):
        draft = draft_of(publish_request(category=category))
        event_id = core.derive_event_id(draft, "acme", "demo", b"r" * 16, NOW * 1_000)
        assert ids.id_time_ms(event_id) == NOW * 1_000
        assert event_id[-1] & 1 == bit


def test_times_are_built_as_expected() -> None:
    """The builder of these tests keeps fractions."""
    assert timestamp(1.5) == Timestamp(seconds=1, nanos=500_000_000)

"""Events that nobody may publish: each is refused with a reason, stores nothing, and disturbs nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.ingest.v1 import ingest_service_pb2
from heliograph.type.v1 import event_pb2
from mesh import ids
from mesh.channel import call
from mesh.errors import Failure, InvalidArgument, ResourceExhausted
from tests.support.publishing import publish_request, timestamp
from tests.support.refusals import judge, refusal_of
from tests.support.site import Site

DAY = 86_400.0
PUBLISH = "/heliograph.ingest.v1.IngestService/Publish"
Request = ingest_service_pb2.PublishRequest


class Bad(NamedTuple):
    """One way to be wrong: what is done to a good request, and how it must be refused."""

    name: str
    spoil: Callable[[Request], None]
    reason: str
    field: str


def _set(**fields: str) -> Callable[[Request], None]:
    """Returns what sets fields of the content."""

    def spoil(request: Request) -> None:
        for name, value in fields.items():
            setattr(request.event.content, name, value)

    return spoil


def _for(*recipients: str) -> Callable[[Request], None]:
    def spoil(request: Request) -> None:
        request.event.audience.recipient_ids[:] = recipients

    return spoil


def _at(seconds: float) -> Callable[[Request], None]:
    def spoil(request: Request) -> None:
        request.event.event_time.CopyFrom(timestamp(time.time() + seconds))

    return spoil


def _until(seconds: float) -> Callable[[Request], None]:
    def spoil(request: Request) -> None:
        request.event.expire_time.CopyFrom(timestamp(time.time() + seconds))

    return spoil


def _ttl(seconds: int, nanos: int = 0) -> Callable[[Request], None]:
    def spoil(request: Request) -> None:
        request.event.ttl.seconds = seconds
        request.event.ttl.nanos = nanos

    return spoil


def _old_ttl(request: Request) -> None:
    _at(-60)(request)
    _ttl(30)(request)


def _named(text: str) -> Callable[[Request], None]:
    def spoil(request: Request) -> None:
        request.request_id = text

    return spoil


def _of_yesterday(request: Request) -> None:
    request.request_id = ids.to_text(ids.uuid7(int((time.time() - 25 * 3600) * 1_000), bytes(10)))


def _category(text: str) -> Callable[[Request], None]:
    def spoil(request: Request) -> None:
        request.event.category = text

    return spoil


def _no_time(request: Request) -> None:
    request.event.event_time.CopyFrom(Timestamp(seconds=time.time_ns() // 10**9, nanos=-1))


def _unknown_priority(request: Request) -> None:
    # Open enums take any number; the contract's values may be added to.
    request.event.MergeFromString(b"\x28\x63")


def _key(request: Request) -> None:
    request.event.ordering_key = "a\nb"


def _empty(request: Request) -> None:
    request.Clear()


BAD = (
    Bad("an empty request", _empty, "FIELD_INVALID", "event.category"),
    Bad("an unknown category", _category("gossip"), "CATEGORY_UNKNOWN", "event.category"),
    Bad("a malformed category", _category("Gene ral"), "FIELD_INVALID", "event.category"),
    Bad("no recipients", _for(), "FIELD_INVALID", "event.audience.recipient_ids"),
    Bad("too many recipients", _for(*["alice"] * 10_001), "AUDIENCE_TOO_LARGE", "event.audience.recipient_ids"),
    Bad("a recipient of another tenant", _for("globex/alice"), "FIELD_INVALID", "event.audience.recipient_ids[0]"),
    Bad("an escaped recipient", _for("bob", "%2Falice"), "FIELD_INVALID", "event.audience.recipient_ids[1]"),
    Bad("two recipients in one", _for("alice\nbob"), "FIELD_INVALID", "event.audience.recipient_ids[0]"),
    Bad("a look-alike recipient", _for("аlice"), "FIELD_INVALID", "event.audience.recipient_ids[0]"),
    Bad("too long a recipient", _for("a" * 129), "FIELD_INVALID", "event.audience.recipient_ids[0]"),
    Bad("no content", lambda request: request.event.ClearField("content"), "FIELD_INVALID", "event.content"),
    Bad("no title", _set(title=""), "FIELD_INVALID", "event.content.title"),
    Bad("a title of two lines", _set(title="a\r\nb"), "FIELD_INVALID", "event.content.title"),
    Bad("a terminal's escape", _set(title="\x1b[2J"), "FIELD_INVALID", "event.content.title"),
    Bad("too long a title", _set(title="a" * 201), "FIELD_INVALID", "event.content.title"),
    Bad("too long a body", _set(body="a" * 4_001), "FIELD_INVALID", "event.content.body"),
    Bad("a script as link", _set(link="javascript:alert(1)"), "FIELD_INVALID", "event.content.link"),
    Bad("a link elsewhere", _set(link="//evil.example"), "FIELD_INVALID", "event.content.link"),
    Bad("a link with a password", _set(link="https://a:b@c.example"), "FIELD_INVALID", "event.content.link"),
    Bad("data that is no JSON", _set(data_json="{"), "FIELD_INVALID", "event.content.data_json"),
    Bad("data that is a list", _set(data_json="[]"), "FIELD_INVALID", "event.content.data_json"),
    Bad(
        "data nested too deep",
        _set(data_json='{"a":' * 17 + "1" + "}" * 17),
        "FIELD_INVALID",
        "event.content.data_json",
    ),
    Bad(
        "content that is too large",
        _set(body="\N{BELL}" * 4_000, link="/" + "a" * 500),
        "CONTENT_TOO_LARGE",
        "event.content",
    ),
    Bad("an event that expired", _until(-1), "EVENT_EXPIRED", "event.expire_time"),
    Bad("an event that outlived its ttl", _old_ttl, "EVENT_EXPIRED", "event.ttl"),
    Bad("an expiry too far ahead", _until(91 * DAY), "FIELD_INVALID", "event.expire_time"),
    Bad("no ttl at all", _ttl(0), "FIELD_INVALID", "event.ttl"),
    Bad("a negative ttl", _ttl(-1, -1), "FIELD_INVALID", "event.ttl"),
    Bad("a ttl of two signs", _ttl(1, -1), "FIELD_INVALID", "event.ttl"),
    Bad("the longest ttl there is", _ttl(315_576_000_000), "FIELD_INVALID", "event.ttl"),
    Bad("an event of last week", _at(-7 * DAY), "EVENT_TIME_INVALID", "event.event_time"),
    Bad("an event of tomorrow", _at(DAY), "EVENT_TIME_INVALID", "event.event_time"),
    Bad("a time that is none", _no_time, "FIELD_INVALID", "event.event_time"),
    Bad("a request id of yesterday", _of_yesterday, "EVENT_TIME_INVALID", "request_id"),
    Bad("a request id that is none", _named("1 or 1=1"), "FIELD_INVALID", "request_id"),
    Bad("a request id of zeros", _named("00000000-0000-0000-0000-000000000000"), "FIELD_INVALID", "request_id"),
    Bad("an unknown priority", _unknown_priority, "FIELD_INVALID", "event.priority"),
    Bad("an ordering key of two lines", _key, "FIELD_INVALID", "event.ordering_key"),
)


def _spoilt(bad: Bad) -> Request:
    request = publish_request("Bad", to=["alice", "bob"])
    bad.spoil(request)
    return request


@pytest.mark.parametrize("bad", BAD, ids=[bad.name.replace(" ", "-") for bad in BAD])
async def test_a_bad_event_is_refused(site: Site, bad: Bad) -> None:
    """The reason says what kind of fault it is, and a violation names the field."""
    async with site.undisturbed():
        failure = await refusal_of(site.publish(_spoilt(bad)))
        judge(failure, InvalidArgument, bad.reason, bad.field)


async def test_every_violation_is_named_at_once(site: Site) -> None:
    """Who corrects one fault must not meet the next one."""
    request = publish_request("", to=["?", "alice", "!"], body="\x00", link="ftp://x", category="gossip")
    async with site.undisturbed():
        failure = await refusal_of(site.publish(request))
        judge(failure, InvalidArgument, "FIELD_INVALID", "event.category")
    assert {violation.field for violation in failure.violations} == {
        "event.category",
        "event.audience.recipient_ids[0]",
        "event.audience.recipient_ids[2]",
        "event.content.title",
        "event.content.body",
        "event.content.link",
    }


async def test_a_batch_is_judged_item_by_item(site: Site) -> None:
    """Good items are accepted between bad ones, verdicts keep the order, and a refusal harms no neighbour."""
    mixed: list[Request] = []
    for number, bad in enumerate(BAD):
        mixed += [_spoilt(bad), publish_request(f"Good {number}", to=["carol"])]
    async with site.undisturbed(stored=len(BAD)):
        answer = await site.batch(mixed)
        assert len(answer.results) == len(mixed)
        for bad, result in zip(BAD, answer.results[::2], strict=True):
            assert (result.refused.code, result.refused.reason) == (InvalidArgument.code, bad.reason), bad.name
            assert bad.field in [violation.field for violation in result.refused.violations], bad.name
        accepted = [result.accepted.event_id for result in answer.results[1::2]]
        assert all(accepted)
    listed = [item.notification.notification_id for item in (await site.inbox("carol")).items]
    assert set(accepted) <= set(listed)


@pytest.mark.parametrize("count", [0, 501])
async def test_an_empty_and_a_too_large_batch_are_refused_whole(site: Site, count: int) -> None:
    """The call fails, and no item is stored."""
    requests = [publish_request(f"{number}", to=["alice"]) for number in range(count)]
    async with site.undisturbed():
        judge(await refusal_of(site.batch(requests)), InvalidArgument, "FIELD_INVALID", "requests")


async def test_a_request_id_with_other_content_is_refused(site: Site) -> None:
    """The first event stays as it was; in a batch the twin is refused as well."""
    request_id = ids.to_text(ids.uuid7(time.time_ns() // 10**6, b"twin-twin-"))
    first, other = (publish_request(title, to=["dave"], id_=request_id) for title in ("First", "Other"))
    async with site.undisturbed(stored=1):
        await site.publish(first)
        failure = await refusal_of(site.publish(other))
        assert (failure.code, failure.reason) == (6, "REQUEST_ID_REUSED")
        assert (await site.publish(first)).replayed
        (result,) = (await site.batch([other])).results
        assert (result.refused.code, result.refused.reason) == (6, "REQUEST_ID_REUSED")
    assert [item.notification.content.title for item in (await site.inbox("dave")).items] == ["First"]


async def test_what_is_only_to_be_judged_is_not_stored(site: Site) -> None:
    """A good request is good, a bad one is refused alike, and neither leaves a trace."""
    async with site.undisturbed():
        await site.publish(publish_request("Good", to=["alice"], validate_only=True))
        bad = publish_request("", to=["alice"], validate_only=True)
        judge(await refusal_of(site.publish(bad)), InvalidArgument, "FIELD_INVALID", "event.content.title")


@pytest.mark.parametrize("size", [4 * 1024 * 1024 + 1, 16 * 1024 * 1024])
async def test_a_message_beyond_the_limit_is_refused_unread(site: Site, size: int) -> None:
    """The limit of gRPC itself stands before ours; the connection goes on."""
    request = Request(event=event_pb2.Event(category="x" * size))
    async with site.undisturbed():
        failure = await refusal_of(site.publish(request))
        assert isinstance(failure, ResourceExhausted), failure


async def _send(site: Site, junk: bytes) -> bytes:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = site.door("ingest").unary_unary(PUBLISH)
    return await call(method, junk, timeout=5.0, metadata=site.bearer("producer", "demo"))


@pytest.mark.parametrize("junk", [b"\xff" * 64, b"\x0a\x7f", b"\x0a\x05hello", b"\x0b" * 200_000])
async def test_bytes_that_are_no_message_are_refused(site: Site, junk: bytes) -> None:
    """A reason that a program can read, instead of a broken connection."""
    async with site.undisturbed():
        judge(await refusal_of(_send(site, junk)), InvalidArgument, "FRAME_INVALID")


async def test_text_that_is_no_utf8_is_refused(site: Site) -> None:
    """A string of the contract is text, in a field that is known and in one that is not looked at."""
    event = b"\x0a\x02\xff\xfe" + publish_request("Bad", to=["alice"]).event.SerializeToString()
    junk = b"\x0a" + bytes((len(event),)) + event
    async with site.undisturbed():
        judge(await refusal_of(_send(site, junk)), InvalidArgument, "FRAME_INVALID")


@pytest.mark.parametrize(
    ("producer", "spoil"),
    [
        ("nobody", None),
        ("billing", _category("general")),
        ("billing", lambda request: setattr(request.event, "priority", 1)),
    ],
    ids=["unregistered", "category", "priority"],
)
async def test_what_a_producer_has_no_grant_for_is_refused(
    site: Site, producer: str, spoil: Callable[[Request], None] | None
) -> None:
    """The registry decides by the caller's identity; nothing in the request can widen it."""
    request = publish_request("Bad", to=["alice"], category="billing")
    if spoil is not None:
        spoil(request)
    async with site.undisturbed():
        failure: Failure = await refusal_of(site.publish(request, site.bearer("producer", producer)))
        assert (failure.code, failure.reason) == (7, "NOT_GRANTED")

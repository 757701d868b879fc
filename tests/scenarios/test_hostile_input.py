"""Input that is made to cost more than it weighs, or to mean something else than it says.

Whatever comes of it, it is bounded, and the neighbour gets exactly what is its own.
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, Sequence

import grpc
import grpc.aio
import msgspec
import pytest

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb2
from heliograph.ingest.v1 import ingest_service_pb2
from heliograph.prefs.v1.topic_service_pb2 import SubscribeRequest
from heliograph.type.v1.event_pb2 import Event
from mesh.channel import call
from mesh.errors import Failure, InvalidArgument, ResourceExhausted
from mesh.identity import TOKEN_HEADER
from tests.support.cluster import PRODUCER
from tests.support.publishing import publish_request
from tests.support.refusals import judge, refusal_of
from tests.support.site import IN_A_MESH, Metadata, Site
from tests.support.stored import everything

INGEST = "/heliograph.ingest.v1.IngestService"
MEBIBYTE = 1024 * 1024
CANARY = b"canary-of-an-unknown-field"
Request = ingest_service_pb2.PublishRequest


def _raw(site: Site, service: str, path: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = site.door(service).unary_unary(path)
    return method


async def _send(site: Site, path: str, data: bytes, *, service: str = "ingest", role: str = "producer") -> bytes:
    who = PRODUCER if role == "producer" else "carol"
    return await call(_raw(site, service, path), data, timeout=10.0, metadata=site.bearer(role, who))


def _field(number: int, payload: bytes) -> bytes:
    """Returns a field of bytes, as it is on the wire."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


# ---------------------------------------------------------------- size


async def test_a_compressed_message_is_measured_when_it_is_large_again(site: Site) -> None:
    """Eight mebibytes in a few thousand bytes are eight mebibytes."""
    request = Request()
    request.event.category = "x" * 8 * MEBIBYTE
    data = request.SerializeToString()
    assert len(gzip.compress(data)) < 64 * 1024
    who = site.bearer("producer", PRODUCER)
    async with site.undisturbed():
        with pytest.raises((Failure, grpc.aio.AioRpcError)) as caught:
            await _raw(site, "ingest", f"{INGEST}/Publish")(
                data, timeout=10.0, metadata=who, compression=grpc.Compression.Gzip
            )
    error = caught.value
    assert isinstance(error, ResourceExhausted) or _code(error) is grpc.StatusCode.RESOURCE_EXHAUSTED, repr(error)


def _code(error: BaseException) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.aio.AioRpcError) else None


async def test_giant_metadata_is_refused(site: Site) -> None:
    """Beyond what a peer said to read, by size; the next call on the same channel is answered."""
    carol = site.bearer("recipient", "carol")
    method = _raw(site, "delivery", "/heliograph.delivery.v1.InboxService/ListInbox")

    async def listed(who: Metadata) -> bytes:
        return await call(method, b"", timeout=10.0, metadata=who)

    async with site.undisturbed():
        failure = await refusal_of(listed((*carol, ("x-large", "a" * 65_536))))
        assert failure.code != InvalidArgument.code
        assert inbox_pb2.ListInboxResponse.FromString(await listed(carol)).HasField("unread")


async def _recipients_of_nothing(site: Site) -> None:
    event = publish_request("Bad", to=[]).event.SerializeToString()
    audience = _field(1, b"") * MEBIBYTE
    number = Event.DESCRIPTOR.fields_by_name["audience"].number
    data = _field(1, event + _field(number, audience))
    failure = await refusal_of(_send(site, f"{INGEST}/Publish", data))
    judge(failure, InvalidArgument, "AUDIENCE_TOO_LARGE", "event.audience.recipient_ids")


async def _a_batch_of_nothing(site: Site) -> None:
    failure = await refusal_of(_send(site, f"{INGEST}/BatchPublish", _field(1, b"") * MEBIBYTE))
    judge(failure, InvalidArgument, "FIELD_INVALID", "requests")


async def _marks_of_nothing(site: Site) -> None:
    path, data = "/heliograph.delivery.v1.InboxService/BatchMark", _field(1, b"") * MEBIBYTE
    failure = await refusal_of(_send(site, path, data, service="delivery", role="recipient"))
    judge(failure, InvalidArgument, "FIELD_INVALID", "marks")


async def _topics_of_nothing(site: Site) -> None:
    number = SubscribeRequest.DESCRIPTOR.fields_by_name["topic_ids"].number
    path, data = "/heliograph.prefs.v1.TopicService/Subscribe", _field(number, b"") * MEBIBYTE
    failure = await refusal_of(_send(site, path, data, service="prefs", role="recipient"))
    judge(failure, InvalidArgument, "FIELD_INVALID", "topic_ids")


@pytest.mark.parametrize(
    "attempt", [_recipients_of_nothing, _a_batch_of_nothing, _marks_of_nothing, _topics_of_nothing]
)
async def test_a_million_items_in_two_mebibytes_are_counted_before_they_are_looked_at(
    site: Site, attempt: Callable[[Site], Awaitable[None]]
) -> None:
    """An item of two bytes costs a hundred times that once it is looked at; the number is refused first."""
    async with site.undisturbed():
        await attempt(site)


# ---------------------------------------------------------------- depth


@pytest.mark.parametrize("opening", ['{"a":', "["])
@pytest.mark.parametrize("closed", [True, False])
async def test_data_of_ten_thousand_levels_is_refused(site: Site, opening: str, closed: bool) -> None:
    """Before anything goes down into it, whether it is JSON or only begins so."""
    closing = {"[": "]", '{"a":': "}"}[opening]
    data = opening * 10_000 + ("1" + closing * 10_000 if closed else "")
    async with site.undisturbed():
        failure = await refusal_of(site.publish(publish_request("Deep", to=["alice"], data_json=data)))
        judge(failure, InvalidArgument, "FIELD_INVALID", "event.content.data_json")


@IN_A_MESH
@pytest.mark.parametrize("path", ["/v1/events", "/v1/events:batchPublish", "/v1/topics:subscribe", "/v1/inbox:mark"])
async def test_a_body_of_ten_thousand_levels_is_refused(site: Site, path: str) -> None:
    """Objects in objects, complete and well formed, in a field that is not known and in one that is."""
    role, who = ("producer", PRODUCER) if "events" in path else ("recipient", "carol")
    headers = {
        TOKEN_HEADER: f"Bearer {site.cluster.token(who, role=role)}",
        "content-type": "application/json",
    }
    deep = '{"event":' * 5_000 + "1" + "}" * 5_000
    async with site.undisturbed(), site.rest() as client:
        for body in (deep, "[" * 10_000 + "]" * 10_000, '{"topicIds":' + "[" * 10_000 + "]" * 10_000 + "}"):
            answer = await client.post(path, content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (400, 3), answer.text[:200]


# ---------------------------------------------------------------- what does not travel on


async def test_what_is_not_known_is_not_kept(site: Site) -> None:
    """An unknown field is dropped where the event comes in: what is stored is written anew, without it."""
    request = publish_request("Known", to=["peggy"])
    unknown = _field(1_000, CANARY)
    event = request.event.SerializeToString() + unknown
    async with site.undisturbed(stored=1):
        accepted = await _send(site, f"{INGEST}/Publish", _field(1, event) + unknown)
        assert ingest_service_pb2.PublishResponse.FromString(accepted).event_id
    (item,) = (await site.inbox("peggy")).items
    assert item.notification.content.title == "Known"
    assert CANARY not in item.SerializeToString()
    rows = await everything(site.cluster)
    assert any(b"Known" in row for row in rows), "the search finds what is there"
    assert [row for row in rows if CANARY in row] == []


# ---------------------------------------------------------------- edges of numbers


EDGES: Sequence[tuple[int, int]] = (
    (2**63 - 1, 0),
    (-(2**63), 0),
    (253_402_300_800, 0),
    (-62_135_596_801, 0),
    (0, 2**31 - 1),
    (0, -(2**31)),
    (2**63 - 1, 999_999_999),
)


@pytest.mark.parametrize("field", ["event_time", "expire_time", "ttl"])
async def test_times_at_the_edge_of_numbers_are_refused(site: Site, field: str) -> None:
    """Neither overflow nor a year that does not exist gets further than the first check."""
    async with site.undisturbed():
        for seconds, nanos in EDGES:
            request = publish_request("Edge", to=["alice"])
            time = getattr(request.event, field)
            time.seconds, time.nanos = seconds, nanos
            failure = await refusal_of(site.publish(request))
            assert isinstance(failure, InvalidArgument), (seconds, nanos, failure)
            assert [one.field for one in failure.violations] == [f"event.{field}"], (seconds, nanos)


@IN_A_MESH
@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "1e400", "99999999999999999999", "1.5", '"PRIORITY_SUPREME"', "true", "[1]", "-1", "99"],
)
async def test_a_priority_that_is_no_number_of_the_contract_is_refused_over_rest(site: Site, value: str) -> None:
    """Whatever JSON, or what only looks like it, can write for a number."""
    event = '{"category": "general", "audience": {"recipientIds": ["alice"]}, "content": {"title": "Bad"}, '
    headers = {
        TOKEN_HEADER: f"Bearer {site.cluster.token(PRODUCER, role='producer')}",
        "content-type": "application/json",
    }
    async with site.undisturbed(), site.rest() as client:
        body = f'{{"event": {event}"priority": {value}}}}}'
        answer = await client.post("/v1/events", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, 3), answer.text


# ---------------------------------------------------------------- writing

LOOK_ALIKES = {
    "a-bidirectional-override": "alice\u202e",
    "a-zero-width-space": "ali\u200bce",
    "a-zero-width-joiner": "alice\u200d",
    "a-byte-order-mark": "\ufeffalice",
    "full-width": "\uff41lice",
    "combining": "alic\u0065\u0301",
    "a-tag": "alice\U000e0041",
    "a-line-separator": "alice\u2028bob",
    "a-next-line": "alice\u0085bob",
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
async def test_an_id_that_looks_like_another_is_refused(site: Site, name: str) -> None:
    """Ids are plain ASCII: of recipients, topics and requests, wherever they are written."""
    text = LOOK_ALIKES[name]
    async with site.undisturbed():
        failure = await refusal_of(site.publish(publish_request("Bad", to=[text])))
        judge(failure, InvalidArgument, "FIELD_INVALID", "event.audience.recipient_ids[0]")
        request = publish_request("Bad", to=["alice"])
        request.event.audience.topic_ids.append(text)
        judge(await refusal_of(site.publish(request)), InvalidArgument, "FIELD_INVALID", "event.audience.topic_ids[0]")
        named = publish_request("Bad", to=["alice"], id_=text)
        judge(await refusal_of(site.publish(named)), InvalidArgument, "FIELD_INVALID", "request_id")


@IN_A_MESH
@pytest.mark.parametrize("title", ["\\ud800", "\\udfff\\ud800", "a\\u0000b", "\\u001b[2J", "a\\u2028b"])
async def test_half_a_character_is_no_title(site: Site, title: str) -> None:
    """JSON can write what is no text; it is refused, not repaired."""
    headers = {
        TOKEN_HEADER: f"Bearer {site.cluster.token(PRODUCER, role='producer')}",
        "content-type": "application/json",
    }
    body = msgspec.json.encode({"category": "general", "audience": {"recipientIds": ["alice"]}}).decode()
    async with site.undisturbed(), site.rest() as client:
        event = f'{body[:-1]}, "content": {{"title": "{title}"}}}}'
        answer = await client.post("/v1/events", content=f'{{"event": {event}}}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, 3), answer.text

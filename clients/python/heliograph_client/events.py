"""Events as a producer writes them, and requests frozen before their first try.

Pure: time and entropy are arguments. Must not judge an event: ingest does, and answers with every violation at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, TypedDict

import msgspec

from heliograph.ingest.v1.ingest_service_pb2 import BatchPublishRequest, PublishRequest
from heliograph.type.v1.event_pb2 import Audience, Event
from heliograph.type.v1.notification_pb2 import Content, Priority
from mesh.errors import InvalidArgument
from mesh.ids import from_text, to_text, uuid7

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
PriorityName: TypeAlias = Literal["high", "normal", "bulk"]

ENTROPY_BYTES = 10
_PRIORITIES: Mapping[str, Priority.ValueType] = {
    "high": Priority.PRIORITY_HIGH,
    "normal": Priority.PRIORITY_NORMAL,
    "bulk": Priority.PRIORITY_BULK,
}


class EventFields(TypedDict, total=False):
    """An event in keyword form; see `build_event`."""

    category: str
    to: str | Sequence[str]
    topics: str | Sequence[str]
    excluded: Sequence[str]
    title: str
    body: str
    link: str
    data: Mapping[str, Json] | str
    priority: PriorityName
    ttl: timedelta | float
    expire_time: datetime
    event_time: datetime
    ordering_key: str


class PreparedEvent(msgspec.Struct, frozen=True):
    """A request that never changes any more: keep it to publish it again, later or from another process.

    Attributes:
        request_id: UUID text; a repeat with the same bytes is absorbed, with others it is refused.
        request: a serialised `PublishRequest`.
    """

    request_id: str
    request: bytes


def build_event(
    *,
    category: str,
    to: str | Sequence[str] = (),
    topics: str | Sequence[str] = (),
    excluded: Sequence[str] = (),
    title: str,
    body: str = "",
    link: str = "",
    data: Mapping[str, Json] | str = "",
    priority: PriorityName | None = None,
    ttl: timedelta | float | None = None,
    expire_time: datetime | None = None,
    event_time: datetime | None = None,
    ordering_key: str = "",
) -> Event:
    """Returns an event.

    Args:
        category: one of the installation's categories.
        to: a recipient's id, or several.
        topics: a topic's id, or several, up to 10: their subscribers get it too, each once.
        excluded: ids of recipients that do not get it, whatever leads to them.
        title: one line, 1 to 200 characters.
        body: text, at most 4,000 characters.
        link: where a tap leads.
        data: an object for the app, as it is or as JSON text.
        priority: None: the category's default.
        ttl: how long it matters, counted from the event time; seconds when it is a number.
        expire_time: until when it matters; not together with `ttl`.
        event_time: when it happened; None: when the request id was drawn.
        ordering_key: events of one key keep their order.

    Raises:
        InvalidArgument: both `ttl` and `expire_time` are given, a time has no zone, or the priority is unknown.
    """
    if ttl is not None and expire_time is not None:
        raise InvalidArgument("ttl and expire_time exclude each other", reason="FIELD_INVALID")
    if priority is not None and priority not in _PRIORITIES:
        text = f"priority {priority} is unknown; it is one of {', '.join(_PRIORITIES)}"
        raise InvalidArgument(text, reason="FIELD_INVALID", metadata={"priority": str(priority)})
    event = Event(
        category=category,
        audience=Audience(
            recipient_ids=[to] if isinstance(to, str) else to,
            topic_ids=[topics] if isinstance(topics, str) else topics,
            excluded_recipient_ids=excluded,
        ),
        content=Content(title=title, body=body, link=link, data_json=_json_text(data)),
        ordering_key=ordering_key,
    )
    if priority is not None:
        event.priority = _PRIORITIES[priority]
    if ttl is not None:
        event.ttl.FromTimedelta(ttl if isinstance(ttl, timedelta) else timedelta(seconds=ttl))
    if expire_time is not None:
        event.expire_time.FromDatetime(_in_utc("expire_time", expire_time))
    if event_time is not None:
        event.event_time.FromDatetime(_in_utc("event_time", event_time))
    return event


def prepare_event(
    event: Event, *, request_id: str | None, wall: float, entropy: bytes, validate_only: bool = False
) -> PreparedEvent:
    """Freezes an event with its request id; what is changed in the event afterwards has no effect.

    Args:
        event: what to publish.
        request_id: the producer's own; None: one is drawn, with the time in it.
        wall: Unix time in seconds.
        entropy: ten random bytes.
        validate_only: let it be judged only.

    Raises:
        InvalidArgument: the request id is no lower-case UUID text.
    """
    if request_id is None:
        request_id = to_text(uuid7(int(wall * 1000), entropy))
    else:
        try:
            from_text(request_id)
        except ValueError as error:
            raise InvalidArgument(f"request_id: {error}", reason="FIELD_INVALID") from None
    request = PublishRequest(event=event, request_id=request_id, validate_only=validate_only)
    return PreparedEvent(request_id, request.SerializeToString(deterministic=True))


def batch_request(prepared: Iterable[PreparedEvent]) -> bytes:
    """Returns a serialised `BatchPublishRequest`: each item's bytes are those that were frozen."""
    tag = bytes([BatchPublishRequest.REQUESTS_FIELD_NUMBER << 3 | 2])
    return b"".join([part for item in prepared for part in (tag, _varint(len(item.request)), item.request)])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _json_text(data: Mapping[str, Json] | str) -> str:
    if isinstance(data, str):
        return data
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False) if data else ""


def _in_utc(field: str, time: datetime) -> datetime:
    # A time without a zone would be taken for UTC in silence.
    if time.tzinfo is None:
        raise InvalidArgument(f"{field} needs a time zone", reason="FIELD_INVALID", metadata={"field": field})
    return time.astimezone(UTC)

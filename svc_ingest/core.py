"""What ingest judges a request by: every rule, every refusal, and the id of what is accepted.

Path steps 1-3. No I/O and no clock: times and fresh ids are arguments. What is wrong with a request is found all at
once (`check`), what was sent is known by its digest (`digest_of`), what the log knows leads to a verdict (`settle`),
and an accepted event is built and serialised exactly once (`compose`).

Text: control characters (C0, DEL, C1) are refused, except newline and tab in the body; line and paragraph separators
are refused in the title. Other format characters stay: joiners belong to scripts and emoji, marks of direction to
right-to-left text. Ids are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from heliograph.ingest.v1 import ingest_service_pb2
from heliograph.type.v1 import event_pb2, notification_pb2
from mesh import ids
from mesh.errors import AlreadyExists, Failure, InvalidArgument, PermissionDenied, Unavailable, Violation
from svc_ingest import limits
from svc_ingest.content import data_fault, line_fault, link_fault, text_fault
from svc_ingest.digest import digest_of
from svc_ingest.registry import PRIORITIES, Grant, Registries

# ---------------------------------------------------------------- failures


def field_invalid(field: str, rule: str) -> InvalidArgument:
    """A field is missing, malformed or out of range."""
    return _invalid("FIELD_INVALID", field, rule)


def category_unknown(category: str) -> InvalidArgument:
    """The category is not in the registry."""
    return _invalid("CATEGORY_UNKNOWN", "event.category", "is not a known category", category=category)


def audience_too_large(field: str, count: int, most: int) -> InvalidArgument:
    """More recipients than one event may name, or leave out."""
    return _invalid("AUDIENCE_TOO_LARGE", field, f"has {count} ids; at most {most} are allowed", count=str(count))


def content_too_large(size: int) -> InvalidArgument:
    """The content is too large as a whole."""
    rule = f"has {size} bytes serialised; at most {limits.CONTENT_BYTES} are allowed"
    return _invalid("CONTENT_TOO_LARGE", "event.content", rule, size=str(size))


def event_expired(field: str) -> InvalidArgument:
    """The event's own time is over."""
    return _invalid("EVENT_EXPIRED", field, "is over: the event expired before it was published")


def event_time_invalid(field: str) -> InvalidArgument:
    """The event time, or the request id's time, is too far from now."""
    return _invalid("EVENT_TIME_INVALID", field, "is more than 24 h ago or more than 1 min ahead")


def producer_unknown(tenant_id: str, producer_id: str) -> PermissionDenied:
    """The caller is no producer of the registry."""
    names = {"tenant_id": tenant_id, "producer_id": producer_id}
    return PermissionDenied("this producer is not registered", reason="NOT_GRANTED", metadata=names)


def not_granted(what: str, name: str) -> PermissionDenied:
    """The producer has no grant for this category or priority."""
    return PermissionDenied(f"no grant for {what} {name}", reason="NOT_GRANTED", metadata={what: name})


def request_id_reused(request_id: str) -> AlreadyExists:
    """The request id belongs to an accepted request with other content."""
    names = {"request_id": request_id}
    return AlreadyExists("this request id was accepted with other content", reason="REQUEST_ID_REUSED", metadata=names)


def request_pending(remaining_s: float) -> Unavailable:
    """A twin of the request is being worked on."""
    return Unavailable("a twin is being worked on", reason="REQUEST_PENDING", retry_delay=remaining_s)


def lane_unavailable(lane: str, *, unknown: bool) -> Unavailable:
    """The lane took nothing, or nobody knows; then the request's lease must run out first."""
    message = "the lane does not take events now; repeat with the same request id"
    names = {"lane": lane, APPENDED: UNKNOWN if unknown else "no"}
    delay = limits.REQUEST_LEASE_S if unknown else 1.0
    return Unavailable(message, reason="LANE_UNAVAILABLE", metadata=names, retry_delay=delay)


# ---------------------------------------------------------------- values

APPENDED: Final = "appended"
UNKNOWN: Final = "unknown"
_SECOND: Final = 1_000_000_000
_MILLI: Final = 1_000_000
_PAST: Final = limits.PAST_S * _SECOND
_FUTURE: Final = limits.FUTURE_S * _SECOND
_USEFUL: Final = limits.USEFUL_S * _SECOND
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799

Priority: TypeAlias = notification_pb2.Priority.ValueType


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A request that follows all rules. Times are nanoseconds since the epoch.

    Attributes:
        request: as it came.
        request_id: sixteen bytes, or empty when the producer drew none.
        digest: of what was sent.
        priority: the event's, or its category's.
        id_time_ms: the time of the request; None when it has none.
        event_ns: when it happened; None when the request has no time.
        expire_ns: when it stops being useful; None when it does not, or when that counts from an unknown event time.
        ttl_ns: how long it is useful, counted from the event time; 0 when it does not say so.
        late: why it cannot be accepted any more, though a repeat of it is still recognised.
    """

    request: ingest_service_pb2.PublishRequest
    request_id: bytes
    digest: bytes
    priority: Priority
    id_time_ms: int | None
    event_ns: int | None
    expire_ns: int | None
    ttl_ns: int
    late: InvalidArgument | None


# ---------------------------------------------------------------- check

_CATEGORY = re.compile(rf"[a-z0-9_.-]{{1,{limits.CATEGORY_CHARACTERS}}}")
_RECIPIENT = re.compile(rf"[A-Za-z0-9._@:+=-]{{1,{limits.RECIPIENT_CHARACTERS}}}")
_RECIPIENTS = re.compile(rf"(?:{_RECIPIENT.pattern}\n)*+")
_TOPIC = re.compile(rf"[A-Za-z0-9._@:+=/-]{{1,{limits.TOPIC_CHARACTERS}}}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# Ids that nobody draws: variables that were never set.
_UNSET_IDS = frozenset({bytes(16), b"\xff" * 16})

_RECIPIENT_IDS = "event.audience.recipient_ids"
_TOPIC_IDS = "event.audience.topic_ids"
_EXCLUDED_IDS = "event.audience.excluded_recipient_ids"
_TOPIC_RULE = f"must be 1 to {limits.TOPIC_CHARACTERS} of A-Z a-z 0-9 . _ - @ : + = /"
_RECIPIENT_RULE = f"must be 1 to {limits.RECIPIENT_CHARACTERS} of A-Z a-z 0-9 . _ - @ : + ="


def find_grant(registries: Registries, tenant_id: str, producer_id: str) -> Grant:
    """Returns what a producer may publish; raises NOT_GRANTED for one that the registry does not know."""
    grant = registries.grants.get((tenant_id, producer_id))
    if grant is None:
        raise producer_unknown(tenant_id, producer_id)
    return grant


def check_batch(count: int) -> None:
    """Judges a batch as a whole; raises FIELD_INVALID for an empty or too large one."""
    if not 1 <= count <= limits.BATCH_ITEMS:
        raise field_invalid("requests", f"has {count} items; 1 to {limits.BATCH_ITEMS} are allowed")


def check(
    request: ingest_service_pb2.PublishRequest, grant: Grant, registries: Registries, now_ns: int
) -> Draft | Failure:
    """Judges a request by itself.

    Returns a failure with every violation at once. A request whose only fault is the time of the call is no failure
    yet (`Draft.late`): its first try may have been accepted, and then a repeat gets that answer.
    """
    faults: list[InvalidArgument] = []
    late: list[InvalidArgument] = []
    event = request.event
    priority = _check_routing(event, registries, faults)
    _check_audience(event.audience, faults)
    if event.WhichOneof("source") == "content":
        _check_content(event.content, faults)
    else:
        faults.append(field_invalid("event.content", "is missing"))
    request_id, id_time_ms = _check_request_id(request.request_id, now_ns, faults, late)
    event_ns = _check_event_time(event, now_ns, faults, late)
    if id_time_ms is None and event_ns is not None:
        id_time_ms = event_ns // _MILLI
    elif event_ns is None and id_time_ms is not None:
        event_ns = id_time_ms * _MILLI
    expire_ns, ttl_ns = _check_expiration(event, event_ns, now_ns, faults, late)
    if faults:
        return _merge(faults + late)
    if event.category not in grant.categories:
        return not_granted("category", event.category)
    if priority not in grant.priorities:
        return not_granted("priority", notification_pb2.Priority.Name(priority).removeprefix("PRIORITY_"))
    digest = digest_of(event)
    over = _merge(late) if late else None
    return Draft(request, request_id, digest, priority, id_time_ms, event_ns, expire_ns, ttl_ns, over)


def _check_routing(event: event_pb2.Event, registries: Registries, faults: list[InvalidArgument]) -> Priority:
    """Judges category, priority and ordering key; returns the priority that counts."""
    default = registries.default_priorities.get(event.category)
    if default is None:
        known_form = _CATEGORY.fullmatch(event.category)
        rule = f"must be 1 to {limits.CATEGORY_CHARACTERS} of a-z 0-9 _ - ."
        faults.append(category_unknown(event.category) if known_form else field_invalid("event.category", rule))
    if event.priority and event.priority not in PRIORITIES.values():
        faults.append(field_invalid("event.priority", f"{event.priority} is no known priority"))
    if event.ordering_key:
        _add("event.ordering_key", line_fault(event.ordering_key, limits.ORDERING_KEY_CHARACTERS), faults)
    return event.priority or default or notification_pb2.PRIORITY_NORMAL


def _check_audience(audience: event_pb2.Audience, faults: list[InvalidArgument]) -> None:
    if not audience.recipient_ids and not audience.topic_ids:
        faults.append(field_invalid(_RECIPIENT_IDS, "is empty; name at least one recipient or topic"))
    _check_recipients(_RECIPIENT_IDS, audience.recipient_ids, limits.RECIPIENTS, faults)
    _check_recipients(_EXCLUDED_IDS, audience.excluded_recipient_ids, limits.EXCLUDED, faults)
    count = len(audience.topic_ids)
    if count > limits.TOPICS:
        faults.append(field_invalid(_TOPIC_IDS, f"has {count} ids; at most {limits.TOPICS} are allowed"))
        return
    for place, id_ in enumerate(audience.topic_ids):
        if _TOPIC.fullmatch(id_) is None:
            faults.append(field_invalid(f"{_TOPIC_IDS}[{place}]", _TOPIC_RULE))


def _check_recipients(field: str, recipient_ids: Sequence[str], most: int, faults: list[InvalidArgument]) -> None:
    """Judges a list of recipients; counts before it looks at any id."""
    count = len(recipient_ids)
    if not count:
        return
    if count > most:
        faults.append(audience_too_large(field, count, most))
        return
    joined = "\n".join(recipient_ids) + "\n"
    # An id with a newline in it would pass for two.
    if _RECIPIENTS.fullmatch(joined) is None or joined.count("\n") != count:
        wrong = [place for place, id_ in enumerate(recipient_ids) if _RECIPIENT.fullmatch(id_) is None]
        faults += [field_invalid(f"{field}[{place}]", _RECIPIENT_RULE) for place in wrong[: limits.VIOLATIONS]]


def _check_content(content: notification_pb2.Content, faults: list[InvalidArgument]) -> None:
    size = content.ByteSize()
    if size > limits.CONTENT_BYTES:
        faults.append(content_too_large(size))
    title_fault = line_fault(content.title, limits.TITLE_CHARACTERS) if content.title else "is missing"
    _add("event.content.title", title_fault, faults)
    _add("event.content.body", text_fault(content.body, limits.BODY_CHARACTERS), faults)
    _add("event.content.link", link_fault(content.link), faults)
    _add("event.content.data_json", data_fault(content.data_json), faults)


def _check_request_id(
    text: str, now_ns: int, faults: list[InvalidArgument], late: list[InvalidArgument]
) -> tuple[bytes, int | None]:
    """Returns the id's bytes and, of a UUIDv7, its time in milliseconds."""
    if not text:
        return b"", None
    request_id = bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else b""
    if not request_id or request_id in _UNSET_IDS:
        faults.append(
            field_invalid("request_id", "must be UUID text, best a UUIDv7, and neither all zeros nor all ones")
        )
        return b"", None
    if request_id[6] >> 4 != 7 or request_id[8] >> 6 != 2:
        return request_id, None
    time_ms = ids.id_time_ms(request_id)
    if not now_ns - _PAST <= time_ms * _MILLI <= now_ns + _FUTURE:
        late.append(event_time_invalid("request_id"))
    return request_id, time_ms


def _check_event_time(
    event: event_pb2.Event, now_ns: int, faults: list[InvalidArgument], late: list[InvalidArgument]
) -> int | None:
    if not event.HasField("event_time"):
        return None
    seconds, nanos = event.event_time.seconds, event.event_time.nanos
    if not (_FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= nanos < _SECOND):
        faults.append(field_invalid("event.event_time", "is no timestamp"))
        return None
    event_ns = seconds * _SECOND + nanos
    if not now_ns - _PAST <= event_ns <= now_ns + _FUTURE:
        late.append(event_time_invalid("event.event_time"))
    return event_ns


def _check_expiration(
    event: event_pb2.Event,
    event_ns: int | None,
    now_ns: int,
    faults: list[InvalidArgument],
    late: list[InvalidArgument],
) -> tuple[int | None, int]:
    """Returns the expiry, as far as it is known, and the ttl."""
    kind = event.WhichOneof("expiration")
    if kind is None:
        return None, 0
    if kind == "expire_time":
        seconds, nanos = event.expire_time.seconds, event.expire_time.nanos
        expire_ns = seconds * _SECOND + nanos
        if not (_FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= nanos < _SECOND):
            faults.append(field_invalid("event.expire_time", "is no timestamp"))
        elif expire_ns > now_ns + _USEFUL:
            faults.append(field_invalid("event.expire_time", f"must be at most {limits.USEFUL_DAYS} days ahead"))
        elif expire_ns <= now_ns:
            late.append(event_expired("event.expire_time"))
        return expire_ns, 0
    seconds, nanos = event.ttl.seconds, event.ttl.nanos
    ttl_ns = seconds * _SECOND + nanos
    if not (-_SECOND < nanos < _SECOND and seconds * nanos >= 0 and 0 < ttl_ns <= _USEFUL):
        faults.append(field_invalid("event.ttl", f"must be more than 0 and at most {limits.USEFUL_DAYS} days"))
    elif event_ns is not None and event_ns + ttl_ns <= now_ns:
        late.append(event_expired("event.ttl"))
    return None if event_ns is None else event_ns + ttl_ns, ttl_ns


def _add(field: str, rule: str, faults: list[InvalidArgument]) -> None:
    if rule:
        faults.append(field_invalid(field, rule))


def _invalid(reason: str, field: str, rule: str, **metadata: str) -> InvalidArgument:
    names = {"field": field, **metadata}
    violations = (Violation(field=field, description=rule),)
    return InvalidArgument(f"{field} {rule}", reason=reason, metadata=names, violations=violations)


def _merge(faults: Sequence[InvalidArgument]) -> InvalidArgument:
    """Makes one failure of several: their common reason, or FIELD_INVALID, and every violation up to the limit."""
    if len(faults) == 1:
        return faults[0]
    reasons = {fault.reason for fault in faults}
    metadata = {name: value for fault in faults for name, value in fault.metadata.items() if name != "field"}
    violations = [violation for fault in faults for violation in fault.violations]
    return InvalidArgument(
        f"{len(faults)} violations; the first: {faults[0].message}",
        reason=reasons.pop() if len(reasons) == 1 else "FIELD_INVALID",
        metadata={**metadata, "count": str(len(faults))},
        violations=violations[: limits.VIOLATIONS],
    )


def derive_event_id(draft: Draft, tenant_id: str, producer_id: str, request_id: bytes, id_time_ms: int) -> bytes:
    """Returns the id that this request always leads to; other content, or another producer, never has it.

    Args:
        draft: the request.
        tenant_id: of the caller.
        producer_id: of the caller.
        request_id: the producer's, or one that was drawn for this call.
        id_time_ms: the time that the id carries.
    """
    parts = (tenant_id.encode(), producer_id.encode(), request_id, draft.digest)
    return ids.derive_id(id_time_ms, parts, draft.priority == notification_pb2.PRIORITY_HIGH)

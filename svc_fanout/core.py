"""The rules of fan-out: whom to ask prefs about, and who gets an event on which channels.

Pure: no I/O, time is an argument. Path step 4. Whom an event is for is in `audience`, what becomes of a large audience
in `slices`, how batches for delivery are cut in `batching`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.ingest.v1 import event_record_pb2
from heliograph.prefs.v1 import prefs_service_pb2
from heliograph.type.v1 import envelope_pb2, notification_pb2, plan_pb2
from mesh.errors import DataLoss, Internal
from svc_fanout.audience import NAMED, Members
from svc_fanout.registry import CHANNELS, Category

# One call to prefs has so many recipients and items. More recipients would be allowed, but the answer is taken in one
# go, and what is urgent waits for that.
LARGEST_PAGE = 2_000
LARGEST_ITEMS = 50
# What is planned in one go: so many named recipients and topics; more has only one event alone.
LARGEST_CHUNK_RECIPIENTS = 20_000
LARGEST_CHUNK_TOPICS = 16
# S: the largest difference between the clocks of two processes; nothing expires before everybody agrees.
CLOCK_ALLOWANCE_US = 1_000_000

_MICROS = 1_000_000


class Event(msgspec.Struct, frozen=True):
    """An event from a lane: its position, its envelope, and whom it is for, each id once."""

    position: int
    envelope: envelope_pb2.Envelope
    recipient_ids: Sequence[str]
    topic_ids: Sequence[str] = ()
    excluded: Collection[str] = ()


class Way(msgspec.Struct, frozen=True):
    """What leads to a recipient, as far as wishes are concerned: an event of this kind, named or by a topic."""

    tenant_id: str
    category: str
    priority: notification_pb2.Priority.ValueType
    topic_id: str = ""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What prefs decided for a recipient and a way: channels in order, or why nothing.

    Attributes:
        channels: empty when suppressed.
        suppress_reason: why nothing is delivered.
        version: of the recipient's wishes; 0 for defaults.
        end_us: when it ends by itself, microseconds since the epoch; 0: never.
    """

    channels: tuple[notification_pb2.Channel.ValueType, ...]
    suppress_reason: plan_pb2.SuppressReason.ValueType = plan_pb2.SUPPRESS_REASON_UNSPECIFIED
    version: int = 0
    end_us: int = 0

    @property
    def allows(self) -> bool:
        """Whether anything is delivered; no channel at all is what switching everything off means."""
        return bool(self.channels) and not self.suppress_reason


Decisions = Mapping[Way, Mapping[str, Decision]]


class Planned(msgspec.Struct, frozen=True):
    """An event, or a part of its audience, with everybody decided."""

    event: Event
    groups: Sequence[tuple[Decision, Sequence[str]]]


EXPIRED = Decision((), plan_pb2.SUPPRESS_REASON_EXPIRED)
EXCLUDED = Decision((), plan_pb2.SUPPRESS_REASON_EXCLUDED)
# A category that ingest knows and this process does not: registries are rolled out one by one.
_UNKNOWN = Category()


def undecodable(what: str) -> DataLoss:
    """A record that this version cannot read; it is parked with its bytes."""
    return DataLoss(f"event record cannot be read: {what}", reason="RECORD_UNDECODABLE")


def misanswered(asked: int, answered: int) -> Internal:
    """Prefs broke its contract; nothing of the answer is believed."""
    return Internal(
        f"prefs answered {answered} of {asked} items",
        reason="INTERNAL",
        metadata={"asked": str(asked), "answered": str(answered)},
    )


def decode(position: int, value: bytes) -> Event:
    """Returns the event of a lane record.

    Raises:
        DataLoss: it is no event record, or of a kind that this version does not know.
    """
    try:
        record = event_record_pb2.EventRecord.FromString(value)
    except DecodeError as error:
        raise undecodable(str(error)) from None
    check_envelope(record.envelope)
    recipient_ids = tuple(dict.fromkeys(record.audience.recipient_ids))
    topic_ids = tuple(dict.fromkeys(record.audience.topic_ids))
    if not recipient_ids and not topic_ids:
        raise undecodable("audience is missing")
    if "" in recipient_ids or "" in topic_ids:
        raise undecodable("a recipient or topic has no id")
    return Event(position, record.envelope, recipient_ids, topic_ids, record.audience.excluded_recipient_ids)


def check_envelope(envelope: envelope_pb2.Envelope) -> None:
    """Raises DataLoss when it cannot be delivered: its kind is unknown to this version, or parts are missing."""
    if envelope.kind != envelope_pb2.ENVELOPE_KIND_NOTIFY:
        raise undecodable(f"kind {envelope.kind} is unknown to this version")
    if not envelope.tenant_id or not envelope.notification_id:
        raise undecodable("tenant or id is missing")


def is_expired(envelope: envelope_pb2.Envelope, now_us: int) -> bool:
    """Says whether the event's own time is over for everybody."""
    return envelope.HasField("expire_time") and _micros(envelope.expire_time) + CLOCK_ALLOWANCE_US < now_us


def chunks(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Cuts events, in their order, into what is planned in one go."""
    chunk: list[Event] = []
    recipients = topics = 0
    for event in events:
        recipients += len(event.recipient_ids)
        topics += len(event.topic_ids)
        if chunk and (recipients > LARGEST_CHUNK_RECIPIENTS or topics > LARGEST_CHUNK_TOPICS):
            yield chunk
            chunk, recipients, topics = [], len(event.recipient_ids), len(event.topic_ids)
        chunk.append(event)
    if chunk:
        yield chunk


def ways_of(event: Event, bits: int) -> list[Way]:
    """Returns the ways of a group of an event's audience."""
    envelope = event.envelope
    kind = (envelope.tenant_id, envelope.category, envelope.priority)
    ways = [Way(*kind)] if bits & NAMED else []
    if bits > NAMED:
        ways += [
            Way(*kind, topic_id) for place, topic_id in enumerate(event.topic_ids, start=1) if bits & NAMED << place
        ]
    return ways


def wanted(parts: Sequence[tuple[Event, Members]], now_us: int) -> dict[Way, dict[str, None]]:
    """Returns whom wishes are needed of: each recipient once a way."""
    found: dict[Way, dict[str, None]] = {}
    for event, members in parts:
        if not is_expired(event.envelope, now_us):
            for bits, recipient_ids in members.groups.items():
                asked = dict.fromkeys(recipient_ids)
                for way in ways_of(event, bits):
                    found.setdefault(way, {}).update(asked)
    return found


def questions(unknown: Mapping[Way, Collection[str]]) -> list[prefs_service_pb2.BatchResolveRequest]:
    """Returns what to ask prefs, in as few calls as possible."""
    requests: list[prefs_service_pb2.BatchResolveRequest] = []
    room = 0
    for way in sorted(unknown, key=lambda way: (way.tenant_id, way.category, way.topic_id, way.priority)):
        waiting = list(unknown[way])
        while waiting:
            last = requests[-1] if requests else None
            if last is None or last.tenant_id != way.tenant_id or not room or len(last.items) == LARGEST_ITEMS:
                last = prefs_service_pb2.BatchResolveRequest(tenant_id=way.tenant_id)
                requests.append(last)
                room = LARGEST_PAGE
            last.items.add(
                category=way.category, priority=way.priority, topic_id=way.topic_id, recipient_ids=waiting[:room]
            )
            taken = len(waiting[:room])
            waiting = waiting[taken:]
            room -= taken
    return requests


def answers(
    request: prefs_service_pb2.BatchResolveRequest, response: prefs_service_pb2.BatchResolveResponse
) -> list[tuple[Way, dict[str, Decision]]]:
    """Returns the decisions about everybody who was asked about, and nobody else.

    Raises:
        Internal: prefs answered something else than what it was asked.
    """
    if len(request.items) != len(response.items):
        raise misanswered(len(request.items), len(response.items))
    found: list[tuple[Way, dict[str, Decision]]] = []
    for item, resolved in zip(request.items, response.items, strict=True):
        decisions = dict.fromkeys(item.recipient_ids, decision_of(resolved.default_resolution))
        for group in resolved.groups:
            decision = decision_of(group.resolution)
            decisions.update({one: decision for one in group.recipient_ids if one in decisions})
        found.append((Way(request.tenant_id, item.category, item.priority, item.topic_id), decisions))
    return found


def decision_of(resolution: prefs_service_pb2.Resolution) -> Decision:
    """Returns a decision of prefs as a value."""
    end_us = _micros(resolution.end_time) if resolution.HasField("end_time") else 0
    return Decision(tuple(resolution.channels), resolution.suppress_reason, resolution.version, end_us)


def fallback_of(categories: Mapping[str, Category], category: str) -> Decision | None:
    """Returns what an essential category does without prefs: its default; None where its events wait."""
    known = categories.get(category, _UNKNOWN)
    if not known.essential:
        return None
    if not known.enabled:
        return Decision((), plan_pb2.SUPPRESS_REASON_OPTED_OUT)
    return Decision(tuple(CHANNELS[name] for name in known.channels))


def decide(
    event: Event, members: Members, decisions: Decisions, now_us: int, fallback: Decision | None = None
) -> Planned | None:
    """Decides about a part of an audience: a recipient gets the event if any way allows it.

    Args:
        event: the event.
        members: the part.
        decisions: of prefs.
        now_us: an event whose time is over is for nobody.
        fallback: for those of whom nothing is known; None where it must be known.

    Returns:
        The groups; None when somebody's wishes are not known.
    """
    groups: dict[int, tuple[Decision, list[str]]] = {}
    over = is_expired(event.envelope, now_us)
    for bits, recipient_ids in members.groups.items():
        tables = () if over else [decisions.get(way, {}) for way in ways_of(event, bits)]
        for recipient_id in recipient_ids:
            decision = EXPIRED if over else _best([table.get(recipient_id, fallback) for table in tables])
            if decision is None:
                return None
            # Most recipients with one decision share one object, and its identity is found quicker than its value.
            group = groups.get(id(decision))
            if group is None:
                group = groups[id(decision)] = (decision, [])
            group[1].append(recipient_id)
    if members.excluded:
        groups[id(EXCLUDED)] = (EXCLUDED, list(members.excluded))
    equal: dict[Decision, list[str]] = {}
    for decision, group_ids in groups.values():
        equal.setdefault(decision, []).extend(group_ids)
    return Planned(event, list(equal.items()))


def _best(found: Sequence[Decision | None]) -> Decision | None:
    """Returns the first decision that allows; if none can, an opt-out before a mute; None if it depends on others."""
    if len(found) == 1:
        return found[0]
    for decision in found:
        if decision is not None and decision.allows:
            return decision
    known = [decision for decision in found if decision is not None]
    if len(known) < len(found):
        return None
    return next((one for one in known if one.suppress_reason != plan_pb2.SUPPRESS_REASON_MUTED), known[0])


def _micros(time: Timestamp) -> int:
    return time.seconds * _MICROS + time.nanos // 1_000

"""The rules of fan-out: whom to ask prefs about, who gets an event on which channels, and how batches are cut.

Pure: no I/O, time is an argument. Path step 4.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec
from google.protobuf.message import DecodeError

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.ingest.v1 import event_record_pb2
from heliograph.prefs.v1 import prefs_service_pb2
from heliograph.type.v1 import envelope_pb2, plan_pb2
from mesh.errors import DataLoss, Internal

# One call to prefs may have so many recipients and items.
LARGEST_PAGE = 10_000
LARGEST_ITEMS = 50
# One batch to delivery; the first limit that is reached closes it. More bytes has only one event alone.
LARGEST_BATCH_EVENTS = 500
LARGEST_BATCH_RECIPIENTS = 2_000
LARGEST_BATCH_BYTES = 256 * 1024
# S: the largest difference between the clocks of two processes; nothing expires before everybody agrees.
CLOCK_ALLOWANCE_US = 1_000_000

_MICROS = 1_000_000
# What names an event, a group and a recipient id on the wire, at most.
_EVENT_BYTES = 8
_GROUP_BYTES = 12
_RECIPIENT_BYTES = 3

_EXPIRED = prefs_service_pb2.Resolution(suppress_reason=plan_pb2.SUPPRESS_REASON_EXPIRED)


class Event(msgspec.Struct, frozen=True):
    """An event from a lane: its position, its envelope, and each recipient once."""

    position: int
    envelope: envelope_pb2.Envelope
    recipient_ids: Sequence[str]


class Answer(msgspec.Struct, frozen=True):
    """What prefs decided for one tenant and category: a default, and those who differ."""

    default: prefs_service_pb2.Resolution
    others: Mapping[str, prefs_service_pb2.Resolution]


Answers = Mapping[tuple[str, str], Answer]


class Batch(msgspec.Struct, frozen=True):
    """A batch for delivery, and the position that each of its dispatches comes from."""

    message: delivery_service_pb2.DispatchBatch
    positions: Sequence[int]


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
    if record.envelope.kind != envelope_pb2.ENVELOPE_KIND_NOTIFY:
        raise undecodable(f"kind {record.envelope.kind} is unknown to this version")
    recipient_ids = tuple(dict.fromkeys(record.audience.recipient_ids))
    if not record.envelope.tenant_id or not record.envelope.notification_id or not recipient_ids:
        raise undecodable("tenant, id or audience is missing")
    if "" in recipient_ids:
        raise undecodable("a recipient has no id")
    return Event(position, record.envelope, recipient_ids)


def is_expired(event: Event, now_us: int) -> bool:
    """Says whether the event's own time is over for everybody."""
    if not event.envelope.HasField("expire_time"):
        return False
    end = event.envelope.expire_time
    return end.seconds * _MICROS + end.nanos // 1_000 + CLOCK_ALLOWANCE_US < now_us


def questions(events: Sequence[Event], now_us: int) -> list[prefs_service_pb2.BatchResolveRequest]:
    """Returns what to ask prefs about a page of events: each recipient once a category, in as few calls as possible."""
    wanted: dict[tuple[str, str], dict[str, None]] = {}
    priorities: dict[tuple[str, str], int] = {}
    for event in events:
        if not is_expired(event, now_us):
            key = (event.envelope.tenant_id, event.envelope.category)
            wanted.setdefault(key, {}).update(dict.fromkeys(event.recipient_ids))
            priorities[key] = event.envelope.priority
    requests: list[prefs_service_pb2.BatchResolveRequest] = []
    room = 0
    for (tenant_id, category), recipients in sorted(wanted.items()):
        waiting = list(recipients)
        while waiting:
            last = requests[-1] if requests else None
            if last is None or last.tenant_id != tenant_id or not room or len(last.items) == LARGEST_ITEMS:
                last = prefs_service_pb2.BatchResolveRequest(tenant_id=tenant_id)
                requests.append(last)
                room = LARGEST_PAGE
            last.items.add(
                category=category,
                priority=priorities[tenant_id, category],
                recipient_ids=waiting[:room],
            )
            taken = len(waiting[:room])
            waiting = waiting[taken:]
            room -= taken
    return requests


def answers(
    requests: Sequence[prefs_service_pb2.BatchResolveRequest],
    responses: Sequence[prefs_service_pb2.BatchResolveResponse],
) -> Answers:
    """Returns the decisions by tenant and category.

    Groups naming somebody who was not asked about are harmless: only an event's own recipients are looked up.

    Raises:
        Internal: prefs answered something else than what it was asked.
    """
    found: dict[tuple[str, str], Answer] = {}
    for request, response in zip(requests, responses, strict=True):
        if len(request.items) != len(response.items):
            raise misanswered(len(request.items), len(response.items))
        for item, resolved in zip(request.items, response.items, strict=True):
            key = (request.tenant_id, item.category)
            before = found.get(key)
            others = dict(before.others) if before is not None else {}
            for group in resolved.groups:
                others.update(dict.fromkeys(group.recipient_ids, group.resolution))
            found[key] = Answer(resolved.default_resolution, others)
    return found


def batches(events: Sequence[Event], decided: Answers, now_us: int) -> Iterator[Batch]:
    """Cuts events, in their order, into batches for delivery.

    An event with many recipients goes over several batches, each naming its recipients; its position is in all of them.
    """
    cutter = _Cutter()
    for event in events:
        for resolution, recipient_ids in _groups(event, decided, now_us):
            yield from cutter.add(event, resolution, recipient_ids)
    yield from cutter.close()


def _groups(
    event: Event, decided: Answers, now_us: int
) -> Iterator[tuple[prefs_service_pb2.Resolution, Sequence[str]]]:
    answer = decided.get((event.envelope.tenant_id, event.envelope.category))
    # Nothing was asked about it when it had expired by then, even if the clock was set back since.
    if answer is None or is_expired(event, now_us):
        yield _EXPIRED, event.recipient_ids
        return
    if not answer.others:
        yield answer.default, event.recipient_ids
        return
    groups: dict[int, tuple[prefs_service_pb2.Resolution, list[str]]] = {}
    for recipient_id in event.recipient_ids:
        resolution = answer.others.get(recipient_id, answer.default)
        # All recipients of one group share one object, so its identity names the group.
        group = groups.get(id(resolution))
        if group is None:
            group = groups[id(resolution)] = (resolution, [])
        group[1].append(recipient_id)
    yield from groups.values()


class _Cutter:
    """Fills batches; a dispatch is continued while the event stays the same."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._message = delivery_service_pb2.DispatchBatch()
        self._positions: list[int] = []
        self._plan_index: dict[bytes, int] = {}
        self._recipients = 0
        self._bytes = 0

    def add(
        self, event: Event, resolution: prefs_service_pb2.Resolution, recipient_ids: Sequence[str]
    ) -> Iterator[Batch]:
        """Adds recipients with one decision; yields the batches that are full."""
        start = 0
        while start < len(recipient_ids):
            cost = _GROUP_BYTES + self._cost_of_event(event)
            count, size = self._fitting(recipient_ids, start, LARGEST_BATCH_BYTES - self._bytes - cost)
            full = len(self._positions) >= LARGEST_BATCH_EVENTS and self._is_new(event)
            if not count or full:
                yield from self.close()
                continue
            if self._is_new(event):
                self._message.dispatches.add(envelope=event.envelope)
                self._positions.append(event.position)
            taken = recipient_ids[start : start + count]
            self._message.dispatches[-1].groups.add(recipient_ids=taken, plan_index=self._plan(resolution))
            self._recipients += count
            self._bytes += cost + size
            start += count

    def close(self) -> Iterator[Batch]:
        """Yields what is in the open batch."""
        if self._positions:
            yield Batch(self._message, self._positions)
            self._start()

    def _is_new(self, event: Event) -> bool:
        return not self._positions or self._positions[-1] != event.position

    def _cost_of_event(self, event: Event) -> int:
        return event.envelope.ByteSize() + _EVENT_BYTES if self._is_new(event) else 0

    def _fitting(self, recipient_ids: Sequence[str], start: int, room: int) -> tuple[int, int]:
        """Returns how many recipients the open batch still takes, at least one if it is empty, and their bytes."""
        most = LARGEST_BATCH_RECIPIENTS - self._recipients
        sizes = list(accumulate(len(id_) + _RECIPIENT_BYTES for id_ in recipient_ids[start : start + most]))
        count = len(sizes) if sizes and sizes[-1] <= room else bisect_right(sizes, room)
        if not count and not self._positions:
            count = 1
        return count, sizes[count - 1] if count else 0

    def _plan(self, resolution: prefs_service_pb2.Resolution) -> int:
        key = resolution.SerializeToString(deterministic=True)
        index = self._plan_index.get(key)
        if index is None:
            index = self._plan_index[key] = len(self._message.plans)
            self._message.plans.append(plan_of(resolution))
        return index


def plan_of(resolution: prefs_service_pb2.Resolution) -> plan_pb2.Plan:
    """Returns the plan that a decision of prefs leads to: its channels in order, or its reason.

    A decision with neither reaches nobody; that is what switching everything off means.
    """
    if resolution.suppress_reason or not resolution.channels:
        return plan_pb2.Plan(suppress_reason=resolution.suppress_reason or plan_pb2.SUPPRESS_REASON_OPTED_OUT)
    return plan_pb2.Plan(steps=[plan_pb2.PlanStep(channel=channel) for channel in resolution.channels])


def narrowed(batch: Batch, indexes: Sequence[int]) -> Batch:
    """Returns a batch with only these dispatches: what delivery asked to have again."""
    message = delivery_service_pb2.DispatchBatch(
        plans=batch.message.plans, dispatches=[batch.message.dispatches[index] for index in indexes]
    )
    return Batch(message, [batch.positions[index] for index in indexes])

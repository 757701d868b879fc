"""The records of the retry lane, read and written: deliveries to be looked at again, and rows to be written.

Path steps 8 and 9. Pure: no I/O. Must not decide what comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from heliograph.delivery.v1 import lane_record_pb2
from heliograph.type.v1 import envelope_pb2, notification_pb2, plan_pb2
from mesh.ids import from_text, split_key
from mesh.times import set_micros
from svc_delivery.ports import Body, FollowUpWrite, RowKey
from svc_delivery.priorities import PLACES, place_of

# A record is read whole; without a bound those of a long absence of presence would grow into one another.
LARGEST_RECORD: Final = 2_000


class Member(msgspec.Struct, frozen=True):
    """One delivery of a follow-up record.

    Attributes:
        follow_up: as the record has it.
        plans: of the record.
        key: its row.
        expire_us: the whole record is expired then; None where that never comes.
    """

    follow_up: lane_record_pb2.FollowUp
    plans: Sequence[plan_pb2.Plan]
    key: RowKey
    expire_us: int | None = None

    @property
    def plan(self) -> plan_pb2.Plan:
        """Its channels."""
        return self.plans[self.follow_up.plan_index]


class Later(msgspec.Struct, frozen=True):
    """A delivery that is to be looked at again, and where its plan stands then."""

    member: Member
    step_index: int
    try_count: int


def read(record: bytes, expire_us: int | None = None) -> list[Member] | lane_record_pb2.RetryRow:
    """Returns the deliveries of a record, or the rows that it wants written.

    Args:
        record: the bytes.
        expire_us: everything in it is expired then.

    Raises:
        DecodeError, ValueError: it cannot be read, or is of a kind that this version does not know.
    """
    decoded = lane_record_pb2.LaneRecord.FromString(record)
    match decoded.WhichOneof("record"):
        case "follow_ups":
            plans = decoded.follow_ups.plans
            return [_member(one, plans, expire_us) for one in decoded.follow_ups.items]
        case "row":
            from_text(decoded.row.envelope.notification_id)
            if not decoded.row.envelope.tenant_id or not decoded.row.recipient_ids:
                raise ValueError("the record names no row")
            return decoded.row
        case _:
            raise ValueError("the record is of a kind that is unknown to this version")


def write(waiting: Mapping[int, Sequence[Later]]) -> Iterator[FollowUpWrite]:
    """Returns deliveries as records of a bounded size by their due time and urgency: bulk must not ride with high."""
    for due_us, later in waiting.items():
        for place in PLACES:
            alike = [one for one in later if place_of(one.member.follow_up.priority) == place]
            for start in range(0, len(alike), LARGEST_RECORD):
                yield _written(due_us, alike[start : start + LARGEST_RECORD])


def last_expiry(expiries: Iterable[int | None]) -> int | None:
    """Returns when all of these are expired; None when one never is."""
    latest = 0
    for expire_us in expiries:
        if expire_us is None:
            return None
        latest = max(latest, expire_us)
    return latest or None


def most_urgent(priorities: Iterable[int]) -> int:
    """Returns the priority with which a record of these goes."""
    return min(priorities, key=place_of, default=notification_pb2.PRIORITY_UNSPECIFIED)


def envelope_of(member: Member, body: Body) -> envelope_pb2.Envelope:
    """Returns the envelope of a stored row, as far as its content tells."""
    envelope = envelope_pb2.Envelope(
        kind=envelope_pb2.ENVELOPE_KIND_NOTIFY,
        notification_id=member.follow_up.ref.notification_id,
        event_id=member.follow_up.ref.notification_id,
        revision=body.revision,
        tenant_id=split_key(member.key.recipient_key)[0],
        priority=member.follow_up.priority,
        notification=body.content,
    )
    if (notification := notification_of(body.content)) is not None:
        envelope.category = notification.category
        envelope.producer_id = notification.producer_id
        for field in ("event_time", "expire_time"):
            if notification.HasField(field):
                getattr(envelope, field).CopyFrom(getattr(notification, field))
    return envelope


def notification_of(content: bytes) -> notification_pb2.Notification | None:
    """Returns a stored content; None when it cannot be read."""
    try:
        return notification_pb2.Notification.FromString(content)
    except DecodeError:
        return None


def _member(one: lane_record_pb2.FollowUp, plans: Sequence[plan_pb2.Plan], expire_us: int | None) -> Member:
    if not 0 <= one.plan_index < len(plans):
        raise ValueError("a follow-up names a plan that is not in its record")
    if not 0 <= one.step_index < max(1, len(plans[one.plan_index].steps)):
        raise ValueError("a follow-up names a step that is not in its plan")
    return Member(one, plans, RowKey(one.recipient_key, from_text(one.ref.notification_id)), expire_us)


def _written(due_us: int, later: Sequence[Later]) -> FollowUpWrite:
    record = lane_record_pb2.LaneRecord()
    set_micros(record.due_time, due_us)
    indexes: dict[bytes, int] = {}
    for one in later:
        key = one.member.plan.SerializeToString(deterministic=True)
        if key not in indexes:
            indexes[key] = len(indexes)
            record.follow_ups.plans.append(one.member.plan)
        item = record.follow_ups.items.add()
        item.CopyFrom(one.member.follow_up)
        item.plan_index, item.step_index, item.try_count = indexes[key], one.step_index, one.try_count
    return FollowUpWrite(
        due_us=due_us,
        record=record.SerializeToString(),
        priority=most_urgent(one.member.follow_up.priority for one in later),
        expire_us=last_expiry(one.member.expire_us for one in later),
    )

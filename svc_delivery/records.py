"""The records of the retry lane, read and written: deliveries to be looked at again, and rows to be written.

Path steps 8 and 9. Pure: no I/O. Must not decide what comes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from heliograph.delivery.v1 import lane_record_pb2
from heliograph.type.v1 import envelope_pb2, notification_pb2, plan_pb2
from mesh.ids import from_text, split_key
from mesh.times import set_micros
from svc_delivery.ports import Body, FollowUpWrite, RowKey

# A record is read whole; without a bound those of a long absence of presence would grow into one another.
LARGEST_RECORD: Final = 2_000


class Member(msgspec.Struct, frozen=True):
    """One delivery of a follow-up record."""

    follow_up: lane_record_pb2.FollowUp
    plans: Sequence[plan_pb2.Plan]
    key: RowKey

    @property
    def plan(self) -> plan_pb2.Plan:
        """Its channels."""
        return self.plans[self.follow_up.plan_index]


class Later(msgspec.Struct, frozen=True):
    """A delivery that is to be looked at again, and where its plan stands then."""

    member: Member
    step_index: int
    try_count: int


def read(record: bytes) -> list[Member] | lane_record_pb2.RetryRow:
    """Returns the deliveries of a record, or the rows that it wants written.

    Raises:
        DecodeError, ValueError: it cannot be read, or is of a kind that this version does not know.
    """
    decoded = lane_record_pb2.LaneRecord.FromString(record)
    match decoded.WhichOneof("record"):
        case "follow_ups":
            plans = decoded.follow_ups.plans
            return [_member(one, plans) for one in decoded.follow_ups.items]
        case "row":
            from_text(decoded.row.envelope.notification_id)
            if not decoded.row.envelope.tenant_id or not decoded.row.recipient_ids:
                raise ValueError("the record names no row")
            return decoded.row
        case _:
            raise ValueError("the record is of a kind that is unknown to this version")


def write(waiting: Mapping[int, Sequence[Later]]) -> Iterator[FollowUpWrite]:
    """Returns deliveries as records by their due time, of a bounded size."""
    for due_us, later in waiting.items():
        for start in range(0, len(later), LARGEST_RECORD):
            yield _written(due_us, later[start : start + LARGEST_RECORD])


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


def _member(one: lane_record_pb2.FollowUp, plans: Sequence[plan_pb2.Plan]) -> Member:
    if not 0 <= one.plan_index < len(plans):
        raise ValueError("a follow-up names a plan that is not in its record")
    if not 0 <= one.step_index < max(1, len(plans[one.plan_index].steps)):
        raise ValueError("a follow-up names a step that is not in its plan")
    return Member(one, plans, RowKey(one.recipient_key, from_text(one.ref.notification_id)))


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
    return FollowUpWrite(due_us=due_us, record=record.SerializeToString())

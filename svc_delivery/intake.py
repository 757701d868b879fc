"""What a batch from fanout becomes: rows, decision records, one follow-up, offers, refusals.

Pure: time is an argument, no I/O. Path step 5. A batch that arrives again becomes the same rows and decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from heliograph.delivery.v1 import delivery_service_pb2, lane_record_pb2
from heliograph.type.v1 import envelope_pb2, notification_pb2, plan_pb2
from mesh.errors import DataLoss, Failure
from mesh.ids import from_text, join_key
from mesh.times import micros_of, set_micros
from svc_delivery import steps
from svc_delivery.ports import DecisionWrite, FollowUpWrite, RowWrite
from svc_delivery.records import last_expiry, most_urgent

# S: the largest difference between the clocks of two processes; nothing expires before everybody agrees.
CLOCK_ALLOWANCE_US = 1_000_000


class Offer(msgspec.Struct, frozen=True):
    """One notification for recipients that may be connected.

    Attributes:
        envelope: what they get.
        notification_id: of its rows.
        recipient_keys: who.
        plan: theirs, where a channel follows live; None where live is the last one, or the follow-up decides.
        step_index: of live in it.
    """

    envelope: envelope_pb2.Envelope
    notification_id: bytes
    recipient_keys: Sequence[str]
    plan: plan_pb2.Plan | None = None
    step_index: int = 0


class Intake(msgspec.Struct):
    """What is to be written and offered for one batch.

    Attributes:
        rows: one a recipient who gets something.
        decisions: why others get nothing.
        follow_up: what to look at again; None when no plan goes beyond the inbox.
        later: follow-ups of plans whose time is another one than the first.
        offers: what goes live once the rows are durable.
        refusals: events of the batch that cannot be taken, by their index.
        suppressed_count: recipients in `decisions`.
    """

    rows: list[RowWrite]
    decisions: list[DecisionWrite]
    follow_up: FollowUpWrite | None
    offers: list[Offer]
    refusals: list[tuple[int, Failure]]
    suppressed_count: int = 0
    later: list[FollowUpWrite] = []


def undecodable(what: str) -> DataLoss:
    """A record of this event cannot be read by this version; whoever has it parks it."""
    return DataLoss(f"cannot be delivered: {what}", reason="RECORD_UNDECODABLE")


def nothing(*, refusals: list[tuple[int, Failure]]) -> Intake:
    """Returns an intake of nothing, but for what is refused."""
    return Intake(rows=[], decisions=[], follow_up=None, offers=[], refusals=refusals)


def take(batch: delivery_service_pb2.DispatchBatch, now_us: int) -> Intake:
    """Returns what a batch becomes.

    Args:
        batch: as it arrived.
        now_us: wall clock in µs.
    """
    intake = nothing(refusals=[])
    records: dict[int, _Open] = {}
    looks = [steps.first_look(now_us, plan) for plan in batch.plans]
    for index, dispatch in enumerate(batch.dispatches):
        try:
            _take_dispatch(dispatch, batch.plans, looks, now_us, intake, records)
        except Failure as failure:
            intake.refusals.append((index, failure))
    follow_ups = [_written(due_us, records[due_us], batch.plans) for due_us in sorted(records)]
    if follow_ups:
        intake.follow_up, *intake.later = follow_ups
    return intake


def is_expired(envelope: envelope_pb2.Envelope, now_us: int) -> bool:
    """Says whether the event's own time is over for everybody."""
    return envelope.HasField("expire_time") and micros_of(envelope.expire_time) + CLOCK_ALLOWANCE_US < now_us


class _Open(msgspec.Struct):
    """A record that grows."""

    message: lane_record_pb2.LaneRecord
    priorities: set[int]
    expiries: set[int | None]


def _written(due_us: int, record: _Open, plans: Sequence[plan_pb2.Plan]) -> FollowUpWrite:
    message = record.message
    message.follow_ups.plans.extend(plans)
    set_micros(message.due_time, due_us)
    return FollowUpWrite(
        due_us=due_us,
        record=message.SerializeToString(),
        priority=most_urgent(record.priorities),
        expire_us=last_expiry(record.expiries),
    )


def _take_dispatch(
    dispatch: delivery_service_pb2.Dispatch,
    plans: Sequence[plan_pb2.Plan],
    looks: Sequence[tuple[int, int] | None],
    now_us: int,
    intake: Intake,
    records: dict[int, _Open],
) -> None:
    envelope = dispatch.envelope
    if envelope.kind != envelope_pb2.ENVELOPE_KIND_NOTIFY:
        raise undecodable(f"envelope kind {envelope.kind} is unknown to this version")
    if not envelope.tenant_id or envelope.revision < 1:
        raise undecodable("tenant or revision is missing")
    if any(not 0 <= group.plan_index < len(plans) for group in dispatch.groups):
        raise undecodable("a group names a plan that is not in its batch")
    try:
        notification_id = from_text(envelope.notification_id)
        event_id = from_text(envelope.event_id)
    except ValueError as error:
        raise undecodable(str(error)) from None
    tenant_id, revision, content, category = (
        envelope.tenant_id,
        envelope.revision,
        envelope.notification,
        envelope.category,
    )
    expire_us = micros_of(envelope.expire_time) if envelope.HasField("expire_time") else None
    expired = is_expired(envelope, now_us)
    for group in dispatch.groups:
        reason = plan_pb2.SUPPRESS_REASON_EXPIRED if expired else plans[group.plan_index].suppress_reason
        if reason:
            recipients = tuple(group.recipient_ids)
            intake.decisions.append(DecisionWrite(tenant_id, event_id, reason, recipients, now_us))
            intake.suppressed_count += len(recipients)
            continue
        keys = [join_key(tenant_id, recipient_id) for recipient_id in group.recipient_ids]
        intake.rows += [RowWrite(key, notification_id, revision, category, content, expire_us) for key in keys]
        look = looks[group.plan_index]
        if look is None:
            continue
        step_index, due_us = look
        plan = plans[group.plan_index]
        if plan.steps[step_index].channel == notification_pb2.CHANNEL_LIVE:
            goes_on = plan if steps.has_channels(plan) else None
            intake.offers.append(Offer(envelope, notification_id, keys, goes_on, step_index))
        ref = notification_pb2.NotificationRef(notification_id=envelope.notification_id, revision=revision)
        if due_us not in records:
            records[due_us] = _Open(lane_record_pb2.LaneRecord(), set(), set())
        record = records[due_us]
        record.priorities.add(envelope.priority)
        record.expiries.add(expire_us)
        record.message.follow_ups.items.extend(
            [
                lane_record_pb2.FollowUp(
                    recipient_key=key,
                    ref=ref,
                    plan_index=group.plan_index,
                    step_index=step_index,
                    priority=envelope.priority,
                )
                for key in keys
            ]
        )

"""Rows that could not be written ride the retry lane with their bytes, and at last become dead letters.

Path steps 5 and 9. A batch of which a healthy store refused some rows is taken all the same: what is refused is set
apart, due in 10 s, 1 min and 10 min. A store that is down as a whole brings nothing nearer to a dead letter: then
nothing is taken, and nobody counts a try. Pure: time is an argument, no I/O.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TypeAlias

import msgspec

from heliograph.delivery.v1 import dead_letter_service_pb2, delivery_service_pb2, lane_record_pb2
from heliograph.prefs.v1 import prefs_service_pb2
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.ids import from_text, join_key
from mesh.times import micros_of, set_micros, timestamp_of
from svc_delivery import core, letters, wishes
from svc_delivery.intake import CLOCK_ALLOWANCE_US, Intake, Offer
from svc_delivery.ports import FollowUpWrite, RowsRefused, RowWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord

_SECOND_US = 1_000_000

# Index of a dispatch → its rows as they waited.
History = Mapping[int, lane_record_pb2.RetryRow]
_Key: TypeAlias = tuple[str, bytes]


class _Try(msgspec.Struct, frozen=True):
    """Why a row is not stored; `unknown`: it may be all the same."""

    why: str
    unknown: bool


class Apart(msgspec.Struct):
    """A batch without its refused rows, and what becomes of those.

    Attributes:
        rows: what is stored.
        follow_ups: what to look at again, without the refused.
        offers: what goes live, without the refused.
        again: refused rows that are tried again.
        letters: refused rows that are given up.
    """

    rows: list[RowWrite]
    follow_ups: list[FollowUpWrite]
    offers: list[Offer]
    again: list[FollowUpWrite]
    letters: list[DeadLetterRecord]


def set_apart(
    batch: delivery_service_pb2.DispatchBatch,
    taken: Intake,
    refusal: RowsRefused,
    *,
    now_us: int,
    history: History,
    delays: Sequence[float] = core.RETRY_DELAYS,
) -> Apart:
    """Splits a batch.

    Args:
        batch: as it arrived.
        taken: what it became.
        refusal: which rows are not stored.
        now_us: wall clock.
        history: tries before this one.
        delays: seconds from one try to the next.
    """
    refused = {
        (taken.rows[index].recipient_key, taken.rows[index].notification_id): _Try(why, index in refusal.unknown)
        for index, why in refusal.reasons.items()
    }
    apart = Apart(
        rows=[row for row in taken.rows if (row.recipient_key, row.notification_id) not in refused],
        follow_ups=_without(taken, refused),
        offers=_offers_without(taken.offers, refused),
        again=[],
        letters=[],
    )
    broken = {index for index, _ in taken.refusals}
    for index, dispatch in enumerate(batch.dispatches):
        if index not in broken:
            before = history.get(index, lane_record_pb2.RetryRow())
            for group in dispatch.groups:
                _retry_or_bury(apart, dispatch, group, batch.plans[group.plan_index], refused, before, now_us, delays)
    return apart


def _retry_or_bury(
    apart: Apart,
    dispatch: delivery_service_pb2.Dispatch,
    group: plan_pb2.RecipientGroup,
    plan: plan_pb2.Plan,
    refused: Mapping[_Key, _Try],
    before: lane_record_pb2.RetryRow,
    now_us: int,
    delays: Sequence[float],
) -> None:
    """Notes the try that failed; after the last one each row is a dead letter of its own."""
    envelope = dispatch.envelope
    id_ = from_text(envelope.notification_id)
    keys = {name: (join_key(envelope.tenant_id, name), id_) for name in group.recipient_ids}
    names = [name for name, key in keys.items() if key in refused]
    if not names:
        return
    attempts = [*before.attempts, _attempt(len(before.attempts) + 1, refused[keys[names[0]]].why, now_us)]
    if len(attempts) > len(delays):
        apart.letters += [letters.store_refused(envelope, name, plan, attempts, now_us) for name in names]
    else:
        due_us = now_us + round(delays[len(attempts) - 1] * _SECOND_US)
        row = lane_record_pb2.RetryRow(envelope=envelope, recipient_ids=names, plan=plan, attempts=attempts)
        row.may_be_stored = before.may_be_stored or any(refused[keys[name]].unknown for name in names)
        apart.again.append(written(row, due_us))


def batch_of(
    rows: Sequence[lane_record_pb2.RetryRow], answers: Sequence[wishes.Answer]
) -> delivery_service_pb2.DispatchBatch:
    """Returns due rows as a batch, judged under today's wishes: each row is a dispatch of its own."""
    batch = delivery_service_pb2.DispatchBatch()
    indexes: dict[bytes, int] = {}
    for row, answer in zip(rows, answers, strict=True):
        dispatch = batch.dispatches.add(envelope=row.envelope)
        groups: dict[int, list[str]] = {}
        for recipient_id in row.recipient_ids:
            plan = plan_today(row.plan, answer.of(recipient_id), may_be_stored=row.may_be_stored)
            key = plan.SerializeToString(deterministic=True)
            if key not in indexes:
                indexes[key] = len(indexes)
                batch.plans.append(plan)
            groups.setdefault(indexes[key], []).append(recipient_id)
        for plan_index, recipient_ids in groups.items():
            dispatch.groups.add(plan_index=plan_index, recipient_ids=recipient_ids)
    return batch


def written(row: lane_record_pb2.RetryRow, due_us: int) -> FollowUpWrite:
    """Returns rows as a record that is due then."""
    record = lane_record_pb2.LaneRecord(row=row)
    set_micros(record.due_time, due_us)
    expire_us = None
    if row.envelope.HasField("expire_time"):
        expire_us = micros_of(row.envelope.expire_time) + CLOCK_ALLOWANCE_US
    return FollowUpWrite(due_us, record.SerializeToString(), row.envelope.priority, expire_us)


def plan_today(
    plan: plan_pb2.Plan, resolution: prefs_service_pb2.Resolution, *, may_be_stored: bool = False
) -> plan_pb2.Plan:
    """Returns a plan without the channels that are not wanted any more; or the reason why nothing is.

    Args:
        plan: of the event's own time.
        resolution: today's wishes.
        may_be_stored: a device may find the row in a list. It is written under a stamp that counts, so that all do, and
            shown to nobody.
    """
    reason = wishes.suppressed(resolution)
    if reason and not may_be_stored:
        return plan_pb2.Plan(suppress_reason=reason, wish_version=resolution.version)
    channels = () if reason else resolution.channels
    wanted = [step for step in plan.steps if step.channel in channels or step.channel == notification_pb2.CHANNEL_INBOX]
    return plan_pb2.Plan(steps=wanted, wish_version=resolution.version)


def _attempt(number: int, why: str, now_us: int) -> dead_letter_service_pb2.Attempt:
    return dead_letter_service_pb2.Attempt(
        attempt_number=number, attempt_time=timestamp_of(now_us), outcome=f"the store refused the row: {why}"
    )


def _without(taken: Intake, refused: Container[_Key]) -> list[FollowUpWrite]:
    kept: list[FollowUpWrite] = []
    for follow_up in ([taken.follow_up] if taken.follow_up is not None else []) + list(taken.later):
        record = lane_record_pb2.LaneRecord.FromString(follow_up.record)
        items = [
            item
            for item in record.follow_ups.items
            if (item.recipient_key, from_text(item.ref.notification_id)) not in refused
        ]
        if items:
            del record.follow_ups.items[:]
            record.follow_ups.items.extend(items)
            kept.append(msgspec.structs.replace(follow_up, record=record.SerializeToString()))
    return kept


def _offers_without(offers: Sequence[Offer], refused: Container[_Key]) -> list[Offer]:
    left: list[Offer] = []
    for one in offers:
        keys = [key for key in one.recipient_keys if (key, one.notification_id) not in refused]
        if keys:
            left.append(msgspec.structs.replace(one, recipient_keys=keys))
    return left

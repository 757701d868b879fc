"""Looks at follow-ups when they are due: settled, offered again, or left to rest in the inbox.

Path step 8. Memory is asked first, then the row, then presence; core says what is next. A record goes only together
with what is left of it. Also sweeps what is too old.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
from google.protobuf.message import DecodeError

from heliograph.delivery.v1 import lane_record_pb2
from heliograph.type.v1 import envelope_pb2, plan_pb2
from mesh.backoff import full_jitter
from mesh.clock import Clock
from mesh.errors import Failure
from mesh.ids import from_text, split_key
from mesh.telemetry import logger
from mesh.times import set_micros
from svc_delivery import core
from svc_delivery.intake import Offer
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.ports import FollowUpRecord, FollowUps, FollowUpWrite, Inbox, Presence, RowKey
from svc_delivery.settled import Settled

_RECORDS = 32
# A record is read whole; without a bound those of a long absence of presence would grow into one another.
_LARGEST_RECORD = 2_000
_LARGEST_LOOK_UP = 5_000
_SWEEP_ROWS = 500


class _Member(msgspec.Struct, frozen=True):
    """One delivery of a due record."""

    follow_up: lane_record_pb2.FollowUp
    plans: Sequence[plan_pb2.Plan]
    key: RowKey

    @property
    def plan(self) -> plan_pb2.Plan:
        return self.plans[self.follow_up.plan_index]


class FollowUpWorker:
    """Works the follow-ups of this process's store."""

    def __init__(
        self,
        *,
        follow_ups: FollowUps,
        inbox: Inbox,
        presence: Presence,
        offers: Offers,
        settled: Settled,
        clock: Clock,
        metrics: Metrics,
        trace: Callable[..., None] | None,
        poll: float = 0.25,
        first_retry: float = 0.1,
    ) -> None:
        """Connects the worker.

        Args:
            follow_ups: the records.
            inbox: the rows.
            presence: where recipients are.
            offers: takes what is offered again.
            settled: what needs no further look.
            clock: tells what is due.
            metrics: counts.
            trace: logs steps of the path; None when that is off.
            poll: seconds between two looks when nothing was due.
            first_retry: bound of the first wait, in seconds, when the store does not answer.
        """
        self._follow_ups = follow_ups
        self._inbox = inbox
        self._presence = presence
        self._offers = offers
        self._settled = settled
        self._clock = clock
        self._metrics = metrics
        self._trace = trace
        self._poll = poll
        self._first_retry = first_retry
        self._log = logger()

    async def run(self) -> None:
        """Looks at what is due, for good."""
        attempt = 0
        while True:
            try:
                worked = await self.step()
            except Failure as failure:
                self._log.warning("follow_ups_wait", reason=failure.reason, error=failure.message)
                await asyncio.sleep(full_jitter(attempt, base=self._first_retry, cap=5.0, random=random.random()))
                attempt += 1
                continue
            attempt = 0
            if not worked:
                await asyncio.sleep(self._poll)

    async def step(self) -> bool:
        """Looks at one page of due records; says whether there was any.

        While the offers are crowded nothing is looked at: an offer that is refused for want of room was no try.

        Raises:
            Unavailable: the store does not answer; every record is still there.
        """
        self._settled.turn(self._clock.monotonic())
        if self._offers.is_crowded:
            return False
        now_us = round(self._clock.wall() * 1_000_000)
        records = await self._follow_ups.due(now_us, _RECORDS)
        members: list[_Member] = []
        finished: list[int] = []
        for record in records:
            try:
                members += _members(record)
            except (DecodeError, ValueError) as error:
                await self._follow_ups.park(record, str(error), now_us)
                self._metrics.follow_ups["parked"].inc()
                self._log.error("follow_up_parked", record_id=record.record_id, error=str(error))
            else:
                finished.append(record.record_id)
        left = [one for one in members if (one.key.recipient_key, one.key.notification_id) not in self._settled]
        self._metrics.follow_ups["settled"].inc(len(members) - len(left))
        offered, again = await self._decide(left, now_us)
        if finished:
            await self._follow_ups.finish(finished, again)
        await self._offer(offered)
        return bool(records)

    async def _decide(self, members: Sequence[_Member], now_us: int) -> tuple[list[_Member], list[FollowUpWrite]]:
        """Returns what to offer again, and what is left to look at later."""
        if not members:
            return [], []
        rows = await self._inbox.states([member.key for member in members])
        open_members = [
            (member, row)
            for member, row in zip(members, rows, strict=True)
            if not isinstance(
                core.next_step(
                    plan=member.plan, try_count=member.follow_up.try_count, row=row, present=None, now_us=now_us
                ),
                core.Done,
            )
        ]
        found = await self._look_up([member.key.recipient_key for member, _ in open_members])
        offered: list[_Member] = []
        waiting: dict[int, list[tuple[_Member, int]]] = {}
        done = len(members) - len(open_members)
        for member, row in open_members:
            present = None if found is None else member.key.recipient_key in found
            step = core.next_step(
                plan=member.plan, try_count=member.follow_up.try_count, row=row, present=present, now_us=now_us
            )
            if self._trace is not None:
                self._trace(
                    "follow_up_due",
                    event_id=member.follow_up.ref.notification_id,
                    recipient_key=member.key.recipient_key,
                    next=type(step).__name__,
                )
            match step:
                case core.Done():
                    done += 1
                case core.OfferAgain(due_us, try_count):
                    offered.append(member)
                    if due_us is not None:
                        waiting.setdefault(due_us, []).append((member, try_count))
                case core.LookAgain(due_us):
                    waiting.setdefault(due_us, []).append((member, member.follow_up.try_count))
        self._metrics.follow_ups["done"].inc(done)
        self._metrics.follow_ups["again"].inc(len(members) - done)
        return offered, [
            _record(due_us, left[start : start + _LARGEST_RECORD])
            for due_us, left in waiting.items()
            for start in range(0, len(left), _LARGEST_RECORD)
        ]

    async def _look_up(self, recipient_keys: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        """Returns where recipients are; None when presence does not answer, which is not the same as nowhere."""
        found: dict[str, Sequence[str]] = {}
        keys = list(dict.fromkeys(recipient_keys))
        try:
            for start in range(0, len(keys), _LARGEST_LOOK_UP):
                found.update(await self._presence.look_up(keys[start : start + _LARGEST_LOOK_UP]))
        except Failure as failure:
            self._metrics.presence_failures.inc()
            self._log.warning("presence_not_asked", reason=failure.reason, error=failure.message)
            return None
        return found

    async def _offer(self, members: Sequence[_Member]) -> None:
        if not members:
            return
        bodies = await self._inbox.bodies([member.key for member in members])
        offers: list[Offer] = []
        for member in members:
            body = bodies.get(member.key)
            if body is None:
                continue
            tenant_id = split_key(member.key.recipient_key)[0]
            envelope = envelope_pb2.Envelope(
                kind=envelope_pb2.ENVELOPE_KIND_NOTIFY,
                notification_id=member.follow_up.ref.notification_id,
                event_id=member.follow_up.ref.notification_id,
                revision=body.revision,
                tenant_id=tenant_id,
                priority=member.follow_up.priority,
                notification=body.content,
            )
            offers.append(Offer(envelope, member.key.notification_id, (member.key.recipient_key,)))
        self._offers.add(offers)


async def sweep(inbox: Inbox, clock: Clock, *, interval: float = 60.0, pause: float = 0.1) -> None:
    """Removes what is too old, for good: in small slices, so that it never delays a write for long.

    Args:
        inbox: where.
        clock: tells what is too old.
        interval: seconds between two looks.
        pause: seconds between two slices.
    """
    log = logger()
    while True:
        removed = 0
        try:
            while count := await inbox.sweep(round(clock.wall() * 1_000_000), _SWEEP_ROWS):
                removed += count
                await asyncio.sleep(pause)
        except Failure as failure:
            log.warning("sweep_waits", reason=failure.reason, error=failure.message)
        if removed:
            log.info("inbox_swept", removed_count=removed)
        await asyncio.sleep(interval)


def _members(record: FollowUpRecord) -> list[_Member]:
    """Returns the deliveries of a record.

    Raises:
        DecodeError, ValueError: it cannot be read, or is of a kind that this version does not know.
    """
    decoded = lane_record_pb2.LaneRecord.FromString(record.record)
    if decoded.WhichOneof("record") != "follow_ups":
        raise ValueError("the record is of a kind that is unknown to this version")
    plans = decoded.follow_ups.plans
    members = []
    for one in decoded.follow_ups.items:
        if not 0 <= one.plan_index < len(plans):
            raise ValueError("a follow-up names a plan that is not in its record")
        members.append(_Member(one, plans, RowKey(one.recipient_key, from_text(one.ref.notification_id))))
    return members


def _record(due_us: int, left: Sequence[tuple[_Member, int]]) -> FollowUpWrite:
    record = lane_record_pb2.LaneRecord()
    set_micros(record.due_time, due_us)
    indexes: dict[bytes, int] = {}
    for member, try_count in left:
        key = member.plan.SerializeToString(deterministic=True)
        if key not in indexes:
            indexes[key] = len(indexes)
            record.follow_ups.plans.append(member.plan)
        item = record.follow_ups.items.add()
        item.CopyFrom(member.follow_up)
        item.plan_index = indexes[key]
        item.try_count = try_count
    return FollowUpWrite(due_us=due_us, record=record.SerializeToString())

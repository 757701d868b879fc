"""Looks at follow-ups when they are due: settled, offered again, sent over the next channel, or left to rest.

Path steps 8 and 9. Memory is asked first, then the row, then presence; core says what is next. Plans with channels
beyond inbox and live walk on in `channels`, rows that could not be written are written in `rows`. A record goes only
together with what is left of it. Also sweeps what is too old.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from google.protobuf.message import DecodeError

from heliograph.delivery.v1 import dead_letter_service_pb2, lane_record_pb2
from mesh.backoff import full_jitter
from mesh.clock import Clock
from mesh.errors import Failure
from mesh.telemetry import logger
from svc_delivery import core, letters, records, steps
from svc_delivery.caution import DEATHS, Caution
from svc_delivery.channels import PlanWalker
from svc_delivery.intake import Offer
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.ports import FollowUpRecord, FollowUps, FollowUpWrite, Inbox, Presence
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.records import Later, Member
from svc_delivery.rows import Rows
from svc_delivery.settled import Settled

# Due records taken at once, and after so many deliveries no further one: a page must not crowd the offers by itself.
RECORDS = 32
DELIVERIES = 1_000
_LARGEST_LOOK_UP = 5_000
_SWEEP_ROWS = 500


class _Page(msgspec.Struct):
    """Due records as they were read, and what is left of them."""

    records: list[FollowUpRecord] = []
    members: list[Member] = []
    rows: list[tuple[FollowUpRecord, lane_record_pb2.RetryRow]] = []
    waiting: dict[int, list[Later]] = {}
    again: list[FollowUpWrite] = []
    letters: list[DeadLetterRecord] = []

    def wait(self, due_us: int, member: Member, try_count: int) -> None:
        """Keeps a delivery for later, where its plan stands."""
        self.waiting.setdefault(due_us, []).append(Later(member, member.follow_up.step_index, try_count))


class FollowUpWorker:
    """Works the follow-ups of this process's store."""

    def __init__(
        self,
        *,
        follow_ups: FollowUps,
        inbox: Inbox,
        rows: Rows,
        channels: PlanWalker,
        caution: Caution,
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
            rows: writes what could not be written.
            channels: walks plans beyond inbox and live.
            caution: which records may be worked on after a crash.
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
        self._rows = rows
        self._channels = channels
        self._caution = caution
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
            if not self._clock.agrees():
                # What is due, and what is over, would be judged by a time that may be wrong.
                await asyncio.sleep(self._poll)
                continue
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

        While the offers are crowded only what is expired is looked at, and closed: an offer that is refused for want of
        room was no try. So a backlog is worked at the pace of the links, the urgent part first (see `FollowUps.due`).

        Raises:
            Unavailable: the store does not answer; every record is still there.
        """
        self._settled.turn(self._clock.monotonic())
        now_us = round(self._clock.wall() * 1_000_000)
        due = await self._follow_ups.due(now_us, self._caution.page)
        if self._offers.is_crowded:
            due = [record for record in due if record.is_expired(now_us)]
            if not due:
                return False
        page = await self._read(due, now_us)
        offered = await self._decide([one for one in page.members if not steps.has_channels(one.plan)], page, now_us)
        walked = await self._channels.walk([one for one in page.members if steps.has_channels(one.plan)])
        page.letters += walked.letters.values()
        for due_us, later in walked.waiting.items():
            page.waiting.setdefault(due_us, []).extend(later)
        self._metrics.follow_ups["done"].inc(walked.done_count)
        self._metrics.follow_ups["again"].inc(sum(len(later) for later in walked.waiting.values()))
        rows_offered = await self._write_again(page, now_us)
        if page.records:
            again = [*records.write(page.waiting), *page.again]
            await self._follow_ups.finish([record.record_id for record in page.records], again, page.letters)
            for letter in page.letters:
                self._metrics.dead_letters[letter.reason].inc()
        await self._caution.worked(page.records)
        await self._offer(offered)
        self._offers.add(rows_offered)
        return bool(due)

    async def _read(self, due: Sequence[FollowUpRecord], now_us: int) -> _Page:
        page = _Page()
        for record in due:
            if len(page.members) >= DELIVERIES:
                break
            page.records.append(record)
            if not await self._caution.admits(record):
                why = f"the process died {DEATHS} times while it worked on this record"
                self._give_up(page, record, why, dead_letter_service_pb2.DEAD_LETTER_REASON_POISON, now_us)
                continue
            try:
                found = records.read(record.record, record.expire_us)
            except (DecodeError, ValueError) as error:
                self._give_up(page, record, str(error), dead_letter_service_pb2.DEAD_LETTER_REASON_UNDECODABLE, now_us)
                continue
            if isinstance(found, lane_record_pb2.RetryRow):
                page.rows.append((record, found))
            else:
                page.members += found
        return page

    def _give_up(
        self,
        page: _Page,
        record: FollowUpRecord,
        why: str,
        reason: dead_letter_service_pb2.DeadLetterReason.ValueType,
        now_us: int,
    ) -> None:
        page.letters.append(letters.unreadable(record, why, reason=reason, epoch=self._inbox.epoch, now_us=now_us))
        self._metrics.follow_ups["parked"].inc()
        self._log.error("follow_up_parked", record_id=record.record_id, error=why)

    async def _write_again(self, page: _Page, now_us: int) -> Sequence[Offer]:
        """Writes due rows; returns what may go live once the page is finished."""
        if not page.rows:
            return ()
        stored = await self._rows.retry([row for _, row in page.rows])
        page.again += stored.again
        page.letters += stored.letters
        for index, failure in stored.refusals:
            record, _ = page.rows[index]
            reason = dead_letter_service_pb2.DEAD_LETTER_REASON_UNDECODABLE
            self._give_up(page, record, failure.message, reason, now_us)
        return stored.offers

    def _is_settled(self, member: Member) -> bool:
        return (member.key.recipient_key, member.key.notification_id) in self._settled

    async def _decide(self, members: Sequence[Member], page: _Page, now_us: int) -> list[Member]:
        """Returns what to offer again; what is left to look at later is kept in the page."""
        left = [member for member in members if not self._is_settled(member)]
        self._metrics.follow_ups["settled"].inc(len(members) - len(left))
        if not left:
            return []
        rows = await self._inbox.states([member.key for member in left])
        open_members = [
            (member, row)
            for member, row in zip(left, rows, strict=True)
            if not isinstance(
                core.next_step(
                    plan=member.plan, try_count=member.follow_up.try_count, row=row, present=None, now_us=now_us
                ),
                core.Done,
            )
        ]
        found = await self._look_up([member.key.recipient_key for member, _ in open_members])
        offered: list[Member] = []
        done = len(left) - len(open_members)
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
                        page.wait(due_us, member, try_count)
                case core.LookAgain(due_us):
                    page.wait(due_us, member, member.follow_up.try_count)
        self._metrics.follow_ups["done"].inc(done)
        self._metrics.follow_ups["again"].inc(len(left) - done)
        return offered

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

    async def _offer(self, members: Sequence[Member]) -> None:
        if not members:
            return
        bodies = await self._inbox.bodies([member.key for member in members])
        self._offers.add(
            [
                Offer(records.envelope_of(member, body), member.key.notification_id, (member.key.recipient_key,))
                for member in members
                if (body := bodies.get(member.key)) is not None
            ]
        )


class Swept(Protocol):
    """What holds things that grow too old."""

    async def sweep(self, now_us: int, limit: int) -> int:
        """Removes some of them; returns how many, 0 when there is nothing more to do for now."""
        ...


async def sweep(
    store: Swept, clock: Clock, *, event: str = "inbox_swept", interval: float = 60.0, pause: float = 0.1
) -> None:
    """Removes what is too old, for good: in small slices, so that it never delays a write for long.

    Args:
        store: where.
        clock: tells what is too old.
        event: what the log calls it.
        interval: seconds between two looks.
        pause: seconds between two slices.
    """
    log = logger()
    while True:
        removed = 0
        try:
            while clock.agrees() and (count := await store.sweep(round(clock.wall() * 1_000_000), _SWEEP_ROWS)):
                removed += count
                await asyncio.sleep(pause)
        except Failure as failure:
            log.warning("sweep_waits", reason=failure.reason, error=failure.message)
        if removed:
            log.info(event, removed_count=removed)
        await asyncio.sleep(interval)

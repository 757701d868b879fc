"""Makes batches durable: rows, follow-ups and decisions; rows that a healthy store refuses go to the retry lane.

Path steps 5 and 9. The same way for what fanout dispatches and for rows that are due again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from heliograph.delivery.v1 import delivery_service_pb2, lane_record_pb2
from mesh.errors import Failure
from mesh.telemetry import logger
from svc_delivery import core, intake, retries
from svc_delivery.intake import Offer
from svc_delivery.metrics import Metrics
from svc_delivery.ports import FollowUps, FollowUpWrite, RowsRefused, RowWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.records import notification_of
from svc_delivery.wishes import Question, Wishes
from svc_delivery.writes import FreshWriter

NOBODY_ANSWERED_US: Final = round(core.RETRY_DELAYS[0] * 1_000_000)


class Stored(msgspec.Struct):
    """What became of a batch.

    Attributes:
        rows: what is durable.
        offers: what may go live now.
        refusals: events that cannot be taken, by their index.
        suppressed_count: recipients with a decision record.
        again: records that are still to be appended.
        letters: dead letters that are still to be buried.
    """

    rows: list[RowWrite] = []
    offers: list[Offer] = []
    refusals: list[tuple[int, Failure]] = []
    suppressed_count: int = 0
    again: list[FollowUpWrite] = []
    letters: list[DeadLetterRecord] = []


class Rows:
    """Writes the rows of batches."""

    def __init__(
        self,
        *,
        writer: FreshWriter,
        follow_ups: FollowUps,
        wishes: Wishes,
        metrics: Metrics,
        now_us: Callable[[], int],
        retry_delays: Sequence[float] = core.RETRY_DELAYS,
    ) -> None:
        """Holds on to its parts.

        Args:
            writer: stores rows under stamps that count.
            follow_ups: takes refused rows.
            wishes: asked before a row is written late.
            metrics: counts.
            now_us: the wall clock.
            retry_delays: seconds from one try of a refused row to the next.
        """
        self._retry_delays = retry_delays
        self._writer = writer
        self._follow_ups = follow_ups
        self._wishes = wishes
        self._metrics = metrics
        self._now_us = now_us
        self._log = logger()

    async def take(self, batch: delivery_service_pb2.DispatchBatch) -> Stored:
        """Makes a batch of fanout's durable as a whole, its refused rows as records of the retry lane.

        Raises:
            Unavailable: the store does not answer; nothing of the batch counts.
        """
        stored = await self._store(batch, {})
        if stored.again or stored.letters:
            await self._follow_ups.finish([], stored.again, stored.letters)
        return stored

    async def retry(self, rows: Sequence[lane_record_pb2.RetryRow]) -> Stored:
        """Writes due rows again, as far as they are wanted today; what is left of them is for the caller to append.

        When prefs does not answer, nothing is written and no try is counted.

        Raises:
            Unavailable: the store does not answer; every record is still to be done.
        """
        questions = [Question(row.envelope, _topic_of(row), row.recipient_ids) for row in rows]
        try:
            answers = await self._wishes.ask(questions)
        except Failure as failure:
            self._log.warning("wishes_not_asked", reason=failure.reason, error=failure.message)
            due_us = self._now_us() + NOBODY_ANSWERED_US
            return Stored(again=[retries.written(row, due_us) for row in rows])
        batch = retries.batch_of(rows, answers)
        stored = await self._store(batch, dict(enumerate(rows)))
        self._metrics.retried_rows["written"].inc(len(stored.rows))
        self._metrics.retried_rows["dropped"].inc(stored.suppressed_count)
        return stored

    async def _store(self, batch: delivery_service_pb2.DispatchBatch, history: retries.History) -> Stored:
        now_us = self._now_us()
        taken = intake.take(batch, now_us)
        try:
            await self._writer.write(taken.rows, taken.follow_up, taken.decisions)
        except RowsRefused as refusal:
            return await self._without_refused(batch, taken, refusal, history)
        return Stored(taken.rows, taken.offers, taken.refusals, taken.suppressed_count, taken.later)

    async def _without_refused(
        self,
        batch: delivery_service_pb2.DispatchBatch,
        taken: intake.Intake,
        refusal: RowsRefused,
        history: retries.History,
    ) -> Stored:
        now_us, delays = self._now_us(), self._retry_delays
        apart = retries.set_apart(batch, taken, refusal, now_us=now_us, history=history, delays=delays)
        if taken.decisions:
            await self._writer.write([], None, taken.decisions)
        self._metrics.retried_rows["refused"].inc(len(refusal.reasons))
        self._log.warning(
            "rows_refused",
            row_count=len(refusal.reasons),
            given_up_count=len(apart.letters),
            error=next(iter(refusal.reasons.values())),
        )
        again = [*apart.follow_ups, *apart.again]
        return Stored(apart.rows, apart.offers, taken.refusals, taken.suppressed_count, again, apart.letters)


def _topic_of(row: lane_record_pb2.RetryRow) -> str:
    notification = notification_of(row.envelope.notification)
    return "" if notification is None else notification.topic_id

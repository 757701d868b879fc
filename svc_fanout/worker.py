"""Reads one event lane: decodes, asks prefs, plans, dispatches, and moves the position behind what is finished.

Path steps 4 and 5. Batches go out in the order of the lane, several are in flight; the position moves by low-water
mark. Delivery that is slow or gone closes the window and stops the reading: the lane's lag grows, nothing is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

from mesh.backoff import full_jitter
from mesh.clock import Clock
from mesh.errors import Failure, from_description
from mesh.lanes import LaneReader, LowWater, PositionLost, Stored
from mesh.telemetry import logger
from svc_fanout import core
from svc_fanout.metrics import Metrics
from svc_fanout.ports import Answer, Delivery, Prefs

# Above an event that does not end, so many positions are read on; then the lane waits for it.
LARGEST_SPAN = 100_000

_LAST_RETRY = 5.0


class LaneWorker:
    """Works one lane."""

    def __init__(
        self,
        *,
        lane: str,
        reader: LaneReader,
        prefs: Prefs,
        delivery: Delivery,
        clock: Clock,
        metrics: Metrics,
        read_limit: int,
        batches_in_flight: int,
        commit_interval: float,
        trace: Callable[..., None] | None,
        read_wait: float = 0.5,
        first_retry: float = 0.1,
        largest_span: int = LARGEST_SPAN,
    ) -> None:
        """Connects the worker.

        Args:
            lane: its name.
            reader: the lane, open.
            prefs: decides who gets what.
            delivery: takes batches.
            clock: tells what has expired.
            metrics: counts.
            read_limit: events read at once.
            batches_in_flight: batches that may be unfinished.
            commit_interval: seconds between two commits of the position.
            trace: logs steps of the path; None when that is off.
            read_wait: seconds that a read waits for events.
            first_retry: bound of the first wait, in seconds, when something did not answer.
            largest_span: positions read above one that does not end; they are kept in memory, and a crash repeats them.
        """
        self._lane = lane
        self._reader = reader
        self._prefs = prefs
        self._delivery = delivery
        self._clock = clock
        self._metrics = metrics
        self._read_limit = read_limit
        self._commit_interval = commit_interval
        self._trace = trace
        self._log = logger().bind(lane=lane)
        self._low_water = LowWater()
        self._committed: int | None = None
        self._slots = asyncio.Semaphore(batches_in_flight)
        # position -> batches that name it and are not finished
        self._open: Counter[int] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()
        self._records: dict[int, tuple[Stored, str]] = {}
        # position -> event id, of finished events whose position is not committed; only for the trace.
        self._finished: dict[int, str] = {}
        self._progress = asyncio.Event()
        self._last = 0
        self._read_wait = read_wait
        self._first_retry = first_retry
        self._largest_span = largest_span
        self._stopping = False

    async def run(self) -> None:
        """Works until `drain` was called."""
        async with asyncio.TaskGroup() as group:
            committing = group.create_task(self._commit_regularly())
            while not self._stopping:
                stored = await self._read()
                # What was read and not begun is read again after the start: its position is not committed.
                if stored and not self._stopping:
                    await self._work(stored, group)
                    await self._keep_span()
            # The batches in flight belong to this group; the last of them ends the wait.
            await self._idle.wait()
            committing.cancel()
        await self._commit()

    async def drain(self) -> None:
        """Takes no new events, waits for what is in flight, and commits."""
        self._stopping = True
        self._progress.set()
        await self._idle.wait()
        await self._commit()

    async def _read(self) -> Sequence[Stored]:
        attempt = 0
        while not self._stopping:
            try:
                return await self._reader.read(self._read_limit, self._read_wait)
            except PositionLost as failure:
                # Never a silent jump: the lane stays where it is until an operator says so.
                self._log.critical("position_lost", error=failure.message)
                raise
            except Failure as failure:
                self._metrics.retries["lane"].inc()
                self._log.warning("lane_not_read", reason=failure.reason, error=failure.message)
                await self._pause(attempt)
                attempt += 1
        return ()

    async def _work(self, stored: Sequence[Stored], group: asyncio.TaskGroup) -> None:
        events: list[core.Event] = []
        for record in stored:
            self._low_water.add(record.position)
            self._last = record.position
            try:
                event = core.decode(record.position, record.value)
            except Failure as failure:
                await self._park(record, failure)
                self._low_water.done(record.position)
                continue
            self._records[record.position] = (record, event.envelope.event_id)
            # Held until the last batch of the event has been made.
            self._open[record.position] = 1
            self._idle.clear()
            events.append(event)
            if self._trace is not None:
                self._trace("read", event_id=event.envelope.event_id, lane=self._lane)
        if not events:
            return
        answers = await self._ask_prefs(events)
        if self._trace is not None:
            for event in events:
                self._trace("planned", event_id=event.envelope.event_id, recipient_count=len(event.recipient_ids))
        for batch in core.batches(events, answers, self._now_us()):
            for position in batch.positions:
                self._open[position] += 1
            await self._slots.acquire()
            answer = await self._delivery.send(batch.message)
            if self._trace is not None:
                for dispatch in batch.message.dispatches:
                    self._trace("dispatched", event_id=dispatch.envelope.event_id, sequence=batch.message.sequence)
            group.create_task(self._finish(batch, answer))
        self._close([event.position for event in events])

    async def _keep_span(self) -> None:
        """Waits while the oldest unfinished event is too far behind: what is above it fills memory."""
        while not self._stopping and self._records and self._last - next(iter(self._records)) >= self._largest_span:
            self._progress.clear()
            await self._progress.wait()

    async def _ask_prefs(self, events: Sequence[core.Event]) -> core.Answers:
        requests = core.questions(events, self._now_us())
        attempt = 0
        while True:
            try:
                return core.answers(requests, [await self._prefs.resolve(request) for request in requests])
            except Failure as failure:
                self._metrics.retries["prefs"].inc()
                self._log.warning("prefs_not_asked", reason=failure.reason, error=failure.message)
                await self._pause(attempt)
                attempt += 1

    async def _finish(self, batch: core.Batch, answer: Answer) -> None:
        """Sees one batch to its end: what delivery could not take yet is sent again, what it never will is parked."""
        attempt = 0
        try:
            while True:
                again, delay = await self._settle(batch, answer)
                if not again.positions:
                    return
                await self._pause(attempt, at_least=delay)
                attempt += 1
                batch = again
                answer = await self._delivery.send(batch.message)
        finally:
            self._slots.release()

    async def _settle(self, batch: core.Batch, answer: Answer) -> tuple[core.Batch, float]:
        try:
            refusals = await answer
        except Failure:
            self._metrics.retries["stream"].inc()
            return batch, 0.0
        if any(not 0 <= refusal.dispatch_index < len(batch.positions) for refusal in refusals):
            self._log.error("answer_not_understood", sequence=batch.message.sequence)
            return batch, 0.0
        waiting: set[int] = set()
        delay = 0.0
        for refusal in refusals:
            failure = from_description(refusal.refusal)
            if failure.retriable or failure.retry_delay is not None:
                waiting.add(refusal.dispatch_index)
                delay = max(delay, failure.retry_delay or 0.0)
            else:
                record, _ = self._records[batch.positions[refusal.dispatch_index]]
                await self._park(record, failure)
        refused = {refusal.dispatch_index for refusal in refusals}
        if waiting:
            self._metrics.retries["refused"].inc()
        self._metrics.deliveries[self._lane].inc(
            sum(
                len(group.recipient_ids)
                for index, dispatch in enumerate(batch.message.dispatches)
                if index not in refused
                for group in dispatch.groups
            )
        )
        self._close([position for index, position in enumerate(batch.positions) if index not in waiting])
        return core.narrowed(batch, sorted(waiting)), delay

    def _close(self, positions: Sequence[int]) -> None:
        finished = 0
        for position in positions:
            self._open[position] -= 1
            if self._open[position] == 0:
                del self._open[position]
                _, event_id = self._records.pop(position)
                self._low_water.done(position)
                finished += 1
                if self._trace is not None:
                    self._finished[position] = event_id
        self._metrics.events[self._lane].inc(finished)
        if finished:
            self._progress.set()
        if not self._open:
            self._idle.set()

    async def _park(self, record: Stored, failure: Failure) -> None:
        attempt = 0
        while True:
            try:
                await self._reader.park(record, failure.message)
            except Failure as refused:
                self._log.warning("record_not_parked", reason=refused.reason, error=refused.message)
                await self._pause(attempt)
                attempt += 1
            else:
                break
        self._metrics.parked[self._lane].inc()
        self._log.error("record_parked", position=record.position, reason=failure.reason, error=failure.message)

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval)
            await self._commit()

    async def _commit(self) -> None:
        point = self._low_water.commit_point()
        if point is None or point == self._committed:
            return
        try:
            await self._reader.commit(point)
        except Failure as failure:
            # Replaying what was finished is harmless; the next commit covers it.
            self._log.warning("position_not_committed", reason=failure.reason, error=failure.message)
            return
        self._committed = point
        if self._trace is not None:
            for position in [position for position in self._finished if position <= point]:
                self._trace("advanced", event_id=self._finished.pop(position), position=position)

    async def _pause(self, attempt: int, *, at_least: float = 0.0) -> None:
        await asyncio.sleep(
            at_least + full_jitter(attempt, base=self._first_retry, cap=_LAST_RETRY, random=random.random())
        )

    def _now_us(self) -> int:
        return round(self._clock.wall() * 1_000_000)

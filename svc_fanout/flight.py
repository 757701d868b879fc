"""Batches on their way to delivery, and the position of the lane that they come from.

Path step 5. Batches go out in the order in which they are sent here, several are unanswered; the position moves by
low-water mark. What delivery could not take yet is sent again, what it never will is parked. It must not know what a
record means.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from mesh.backoff import full_jitter
from mesh.clock import Clock
from mesh.errors import Failure, from_description
from mesh.lanes import LaneReader, LowWater, PositionLost, Stored, partition_of
from mesh.telemetry import logger
from svc_fanout.batching import Batch, narrowed, pieces
from svc_fanout.metrics import Metrics
from svc_fanout.ports import Answer, Delivery

# Above records that do not end, so many are read on; then the lane waits for them.
LARGEST_SPAN = 100_000

_LAST_RETRY = 5.0

Trace = Callable[..., None]


class Flight:
    """What of one lane is unfinished."""

    def __init__(
        self,
        *,
        lane: str,
        reader: LaneReader,
        delivery: Delivery,
        clock: Clock,
        metrics: Metrics,
        batches_in_flight: int,
        commit_interval: float,
        trace: Trace | None,
        read_wait: float = 0.5,
        first_retry: float = 0.1,
        largest_span: int = LARGEST_SPAN,
        largest_piece: Callable[[], int] | None = None,
        answered: Callable[[float], None] | None = None,
        restart_lost: bool = False,
    ) -> None:
        """Connects the lane with delivery.

        Args:
            lane: its name.
            reader: the lane, open.
            delivery: takes batches.
            clock: nothing is read once it was set: what is over would be judged by a time that may be wrong.
            metrics: counts.
            batches_in_flight: batches that may be unfinished.
            commit_interval: seconds between two commits of the position.
            trace: logs steps of the path; None when that is off.
            read_wait: seconds that a read waits for records.
            first_retry: bound of the first wait, in seconds, when something did not answer.
            largest_span: records read above those that do not end; they are kept in memory, and a crash repeats them.
            largest_piece: says how many recipients a batch may have now, larger ones are cut; None: they never are.
            restart_lost: whether a lane whose position is lost goes on with what is left, once nothing is open.
            answered: told, with every batch that delivery answered, when its first record was appended.
        """
        self.lane = lane
        self.reader = reader
        reader.on_leave(self._commit)
        self._stopping = False
        self._delivery = delivery
        self._clock = clock
        self._metrics = metrics
        self._commit_interval = commit_interval
        self._trace = trace
        self._log = logger().bind(lane=lane)
        self._low_water = LowWater()
        # partition -> position
        self._committed: dict[int, int] = {}
        self._slots = asyncio.Semaphore(batches_in_flight)
        # position -> batches that name it and are not finished
        self._open: Counter[int] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()
        self._records: dict[int, tuple[Stored, str]] = {}
        # position -> event id, of finished events whose position is not committed; only for the trace.
        self._finished: dict[int, str] = {}
        self._progress = asyncio.Event()
        self._read_wait = read_wait
        self._first_retry = first_retry
        self._largest_span = largest_span
        self._largest_piece = largest_piece
        self._answered = answered
        self._restart_lost = restart_lost

    async def run(self, work: Callable[[asyncio.TaskGroup], Awaitable[None]]) -> None:
        """Works until `drain` was called.

        Args:
            work: the work of the lane; it ends once the flight is stopping, and leaves what it holds.
        """
        async with asyncio.TaskGroup() as group:
            committing = group.create_task(self._commit_regularly())
            await work(group)
            # The batches in flight belong to this group; the last of them ends the wait.
            await self._idle.wait()
            committing.cancel()
        await self._commit()

    def is_stopping(self) -> bool:
        """Says whether `drain` was called."""
        return self._stopping

    async def drain(self) -> None:
        """Begins no new records, waits for what is in flight, and commits."""
        self._stopping = True
        self._progress.set()
        await self._idle.wait()
        await self._commit()

    # ------------------------------------------------------------ records

    async def read(self, limit: int) -> Sequence[Stored]:
        """Returns the next records, or none after a while; tries again until the lane can be read."""
        attempt = 0
        while not self._stopping:
            if not self._clock.agrees():
                await asyncio.sleep(self._read_wait)
                continue
            try:
                return await self.reader.read(limit, self._read_wait)
            except PositionLost as failure:
                # Never a silent jump: the lane stays where it is until an operator says so.
                restarts = self._restart_lost and not self._open
                self._log.critical("position_lost", error=failure.message, restarts=restarts)
                if not restarts:
                    raise
                await self._restart(attempt)
                attempt += 1
            except Failure as failure:
                self._metrics.retries["lane"].inc()
                self._log.warning("lane_not_read", reason=failure.reason, error=failure.message)
                await self.pause(attempt)
                attempt += 1
        return ()

    async def _restart(self, attempt: int) -> None:
        """Goes on with the first record that is left. Nothing is open: positions of another lane would be mixed up."""
        try:
            await self.reader.restart()
        except Failure as failure:
            self._log.warning("lane_not_restarted", reason=failure.reason, error=failure.message)
            await self.pause(attempt)
        else:
            self._low_water = LowWater()
            self._committed.clear()

    def begin(self, record: Stored, event_id: str) -> bool:
        """Takes a record on; it is open until `close`, whatever its batches do.

        False when it is open already: its partition went away and came back while it was worked on. That work ends it.
        """
        position = record.position
        self._low_water.add(position)
        if position in self._open:
            return False
        self._records[position] = (record, event_id)
        self._open[position] = 1
        self._idle.clear()
        return True

    async def pass_by(self, record: Stored, failure: Failure) -> None:
        """Parks a record that cannot be read, and finishes it."""
        self._low_water.add(record.position)
        await self._park(record, failure)
        self._low_water.done(record.position)

    def close(self, positions: Sequence[int]) -> None:
        """Takes one hold off each of these records; those without one are finished."""
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
        self._metrics.events[self.lane].inc(finished)
        self._look(finished)

    def leave(self, positions: Sequence[int]) -> None:
        """Gives records up that were begun and not sent: the next process reads them again."""
        for position in positions:
            del self._open[position]
            del self._records[position]
        self._look(len(positions))

    def _look(self, gone: int) -> None:
        if gone:
            self._progress.set()
        if not self._open:
            self._idle.set()

    @property
    def span_is_full(self) -> bool:
        """Whether unfinished records are too far behind: what is above them fills memory."""
        return self._low_water.kept > self._largest_span

    async def keep_span(self) -> None:
        """Waits while unfinished records are too far behind."""
        while not self._stopping and self.span_is_full:
            self._progress.clear()
            await self._progress.wait()

    async def finished(self, position: int, limit: float) -> None:
        """Waits until a record is finished, for so many seconds at most, and not while the flight is stopping."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while position in self._open and not self._stopping:
                    self._progress.clear()
                    await self._progress.wait()

    async def pause(self, attempt: int, *, at_least: float = 0.0) -> None:
        """Waits before another try."""
        await asyncio.sleep(
            at_least + full_jitter(attempt, base=self._first_retry, cap=_LAST_RETRY, random=random.random())
        )

    # ------------------------------------------------------------ batches

    async def send(self, batch: Batch, group: asyncio.TaskGroup) -> None:
        """Sends a batch, in pieces where it must be, once one more may be unanswered; the group sees it to its end."""
        for piece in (batch,) if self._largest_piece is None else pieces(batch, self._largest_piece()):
            await self._send(piece, group)

    async def _send(self, batch: Batch, group: asyncio.TaskGroup) -> None:
        for position in batch.positions:
            self._open[position] += 1
        await self._slots.acquire()
        answer = await self._delivery.send(batch.message)
        if self._trace is not None:
            for dispatch in batch.message.dispatches:
                self._trace("dispatched", event_id=dispatch.envelope.event_id, sequence=batch.message.sequence)
        group.create_task(self._finish(batch, answer))
        # However long a row of batches is, the other lanes get their turn in between.
        await asyncio.sleep(0)

    async def _finish(self, batch: Batch, answer: Answer) -> None:
        """Sees one batch to its end: what delivery could not take yet is sent again, what it never will is parked."""
        attempt = 0
        try:
            while True:
                again, delay = await self._settle(batch, answer)
                if not again.positions:
                    return
                await self.pause(attempt, at_least=delay)
                attempt += 1
                batch = again
                answer = await self._delivery.send(batch.message)
        finally:
            self._slots.release()

    async def _settle(self, batch: Batch, answer: Answer) -> tuple[Batch, float]:
        try:
            refusals = await answer
        except Failure:
            self._metrics.retries["stream"].inc()
            return batch, 0.0
        if any(not 0 <= refusal.dispatch_index < len(batch.positions) for refusal in refusals):
            self._log.error("answer_not_understood", sequence=batch.message.sequence)
            return batch, 0.0
        if self._answered is not None:
            self._answered(self._records[batch.positions[0]][0].append_time)
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
        self._metrics.deliveries[self.lane].inc(
            sum(
                len(group.recipient_ids)
                for index, dispatch in enumerate(batch.message.dispatches)
                if index not in refused
                for group in dispatch.groups
            )
        )
        self.close([position for index, position in enumerate(batch.positions) if index not in waiting])
        return narrowed(batch, sorted(waiting)), delay

    async def _park(self, record: Stored, failure: Failure) -> None:
        attempt = 0
        while True:
            try:
                await self.reader.park(record, failure.message)
            except Failure as refused:
                self._log.warning("record_not_parked", reason=refused.reason, error=refused.message)
                await self.pause(attempt)
                attempt += 1
            else:
                break
        self._metrics.parked[self.lane].inc()
        self._log.error("record_parked", position=record.position, reason=failure.reason, error=failure.message)

    # ------------------------------------------------------------ position

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval)
            await self._commit()

    async def commit(self, position: int) -> bool:
        """Commits what is finished, and says whether that covers a position."""
        await self._commit()
        return self._committed.get(partition_of(position), -1) >= position

    async def _commit(self) -> None:
        for point in self._low_water.commit_points():
            partition = partition_of(point)
            if point == self._committed.get(partition):
                continue
            try:
                await self.reader.commit(point)
            except Failure as failure:
                # Replaying what was finished is harmless; the next commit covers it.
                self._log.warning("position_not_committed", reason=failure.reason, error=failure.message)
                return
            self._committed[partition] = point
            if self._trace is not None:
                self._tell_advanced(self._trace, point)

    def _tell_advanced(self, trace: Trace, point: int) -> None:
        partition = partition_of(point)
        for position in [one for one in self._finished if one <= point and partition_of(one) == partition]:
            trace("advanced", event_id=self._finished.pop(position), position=position)

"""The follow-ups on retry lanes, whatever these are kept on. Steps 5, 8 and 9 of the path.

A record is finished once what is left of it is durable: letters first, then what is appended again, then its mark,
which is committed at an interval. A crash in between repeats work and loses none. Where processes share the lanes, each
appends to partitions of its own, so that it reads again what it remembers the acks of.

Must not read inside a record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import Final

import msgspec

from mesh.clock import Clock
from mesh.errors import Failure
from mesh.lanes import LaneReader, LaneUnavailable, LaneWriter, Record, partition_of
from mesh.telemetry import logger
from svc_delivery.ports import FollowUpRecord, FollowUpWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord, DeadLetters
from svc_delivery.retry_lanes import LANES, Waiting, by_lane, key_of, micros, read_stored

# Records appended again in one go.
_MOVED: Final = 500
# What is finished stays so long in a lane that trims itself only when told to.
_KEPT_S: Final = 60.0
_TRIM_INTERVAL_S: Final = 60.0


class Ends(msgspec.Struct, frozen=True):
    """The two ends of one lane."""

    writer: LaneWriter
    reader: LaneReader


class LaneFollowUps:
    """Implements `FollowUps` on open lanes, in the order of `LANES`."""

    def __init__(
        self,
        *,
        lanes: Sequence[Ends],
        letters: DeadLetters,
        clock: Clock,
        waiting: Waiting | None = None,
        commit_interval: float = 0.5,
    ) -> None:
        """Holds on to its parts.

        Args:
            lanes: opened and closed elsewhere.
            letters: where records are buried.
            clock: tells how long a record has to wait.
            waiting: what is held in memory.
            commit_interval: seconds between two commits; what was finished since then is repeated after a crash.
        """
        self._lanes = tuple(zip(LANES, lanes, strict=True))
        self._letters = letters
        self._clock = clock
        self._waiting = Waiting() if waiting is None else waiting
        self._commit_interval = commit_interval
        self._committed: dict[tuple[int, int], int] = {}
        self._commit_time = self._trim_time = clock.monotonic()
        self._appended = 0
        self._reading = asyncio.Lock()
        self._log = logger()
        for one in lanes:
            one.reader.on_leave(self.commit)

    # ------------------------------------------------------------ the port

    async def due(self, now_us: int, limit: int) -> Sequence[FollowUpRecord]:
        """See `FollowUps`: of what is held in memory."""
        failure = await self._turn(now_us)
        due = self._waiting.due(now_us, limit)
        if failure is not None and not due:
            raise failure
        return due

    async def finish(
        self,
        record_ids: Sequence[int],
        again: Sequence[FollowUpWrite] = (),
        letters: Sequence[DeadLetterRecord] = (),
    ) -> None:
        """See `FollowUps`."""
        if letters:
            await self._letters.bury(letters)
        await self.append(again)
        for record_id in record_ids:
            self._waiting.finish(record_id)

    async def next_due(self) -> int | None:
        """See `FollowUps`: of what is held in memory."""
        await self._turn(self._now_us())
        return self._waiting.next_due()

    async def containing(self, part: bytes, limit: int) -> Sequence[FollowUpRecord]:
        """See `FollowUps`."""
        found: list[FollowUpRecord] = []
        for index, (_, ends) in enumerate(self._lanes):
            # Some that are finished are not committed yet.
            stored = await ends.reader.containing(part, limit + self._waiting.kept(index))
            records = (read_stored(index, one)[0] for one in stored if part in one.value)
            found += [record for record in records if not self._waiting.is_finished(record.record_id)]
        return sorted(found, key=lambda record: (record.due_us, record.record_id))[:limit]

    async def backlog(self, now_us: int) -> int:
        """See `FollowUps`; what does not fit into memory counts as due."""
        await self._turn(now_us)
        count = self._waiting.due_count(now_us)
        for index, (_, ends) in enumerate(self._lanes):
            if self._waiting.is_full(index):
                lag = await ends.reader.lag()
                count += max(0, lag.record_count - self._waiting.kept(index))
        return count

    # ------------------------------------------------------------ for the store

    async def append(self, follow_ups: Sequence[FollowUpWrite]) -> None:
        """Appends follow-ups; returns when all are durable.

        Raises:
            LaneUnavailable: some may have been appended.
        """
        appends: list[Awaitable[None]] = []
        for index, of_lane in by_lane(follow_ups, self._now_us()).items():
            _, ends = self._lanes[index]
            partition = self._own_partition(ends.reader)
            appends.append(ends.writer.append([Record(key_of(one), one.record, partition) for one in of_lane]))
        for outcome in await asyncio.gather(*appends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def trim(self) -> None:
        """Removes what was finished a while ago from lanes that keep everything; never what is not finished."""
        now = self._clock.monotonic()
        if now - self._trim_time < _TRIM_INTERVAL_S:
            return
        self._trim_time = now
        for lane, ends in self._lanes:
            try:
                lag = await ends.reader.lag()
                await ends.writer.trim(self._clock.wall() - max(lag.oldest_age, 0.0) - _KEPT_S)
            except Failure as failure:
                self._log.warning("retry_lane_not_trimmed", lane=lane.name, error=failure.message)

    async def commit(self) -> None:
        """Commits what is finished; a lane that cannot be used is left for the next time."""
        self._commit_time = self._clock.monotonic()
        for index, (lane, ends) in enumerate(self._lanes):
            try:
                await self._commit_lane(index, ends.reader)
            except Failure as failure:
                # Repeating what was finished is harmless.
                self._log.warning("position_not_committed", lane=lane.name, error=failure.message)

    # ------------------------------------------------------------ lanes

    async def _turn(self, now_us: int) -> Failure | None:
        """Reads on, moves what waits for longer than its lane, and commits; returns why a lane could not be read."""
        async with self._reading:
            # What was fetched is read and finished without any wait: in a backlog nobody else would have a turn.
            await asyncio.sleep(0)
            failure = await self._read_all(now_us)
            if await self._move():
                failure = await self._read_all(now_us)
            if self._clock.monotonic() - self._commit_time >= self._commit_interval:
                await self.commit()
            return failure

    async def _read_all(self, now_us: int) -> Failure | None:
        failure: Failure | None = None
        for index, (lane, ends) in enumerate(self._lanes):
            try:
                await self._read(index, ends.reader, now_us)
            except Failure as lost:
                # The other lanes go on: what is due there has nothing to do with it.
                self._log.warning("retry_lane_not_read", lane=lane.name, reason=lost.reason, error=lost.message)
                failure = lost
        return failure

    async def _read(self, index: int, reader: LaneReader, now_us: int) -> None:
        self._waiting.keep_only(index, reader.partitions)
        while (limit := self._waiting.wants(index, now_us)) > 0:
            stored = await reader.read(limit, 0.0)
            self._waiting.keep_only(index, reader.partitions)
            for one in stored:
                self._waiting.add(index, one)
            if len(stored) < limit:
                return

    async def _move(self) -> bool:
        """Appends again what has longer to wait than its lane's delay, or what makes room in a backlog."""
        now_us = self._now_us()
        moved = self._waiting.outstayed(now_us, _MOVED) or self._waiting.surplus(now_us, _MOVED)
        if not moved:
            return False
        try:
            await self.append([held.again() for held in moved])
        except LaneUnavailable as failure:
            self._log.warning("follow_ups_not_moved", record_count=len(moved), error=failure.message)
            return False
        for held in moved:
            self._waiting.finish(held.record.record_id)
        return True

    async def _commit_lane(self, index: int, reader: LaneReader) -> None:
        for point in self._waiting.commit_points(index):
            key = (index, partition_of(point))
            if self._committed.get(key) == point:
                continue
            # A partition that went away and came back is not read that far: its records come again.
            with contextlib.suppress(ValueError):
                await reader.commit(point)
                self._committed[key] = point

    def _own_partition(self, reader: LaneReader) -> int | None:
        """Returns one of the reader's partitions, each in its turn; None when it has none."""
        partitions = sorted(reader.partitions)
        self._appended += 1
        return partitions[self._appended % len(partitions)] if partitions else None

    def _now_us(self) -> int:
        return micros(self._clock.wall())

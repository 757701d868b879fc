"""Plans a large audience once: part by part into slices on fanout's own lane, while the event's lane goes on.

Path step 4. One audience of a lane is planned at a time. After each part the lane's reader notes how far it is, so a
new process goes on at the slice behind the last one written; a slice that was written and not noted is written again,
which is harmless. The event is finished when all its slices are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from mesh.clock import Clock
from mesh.errors import Failure, Unavailable
from mesh.ids import join_key
from mesh.lanes import LaneWriter, Record
from mesh.telemetry import logger
from svc_fanout import core, slices
from svc_fanout.audience import Members
from svc_fanout.core import Event
from svc_fanout.flight import Flight, Trace
from svc_fanout.metrics import Metrics
from svc_fanout.ports import Prefs
from svc_fanout.registry import Category
from svc_fanout.rolls import Roll
from svc_fanout.slices import Mark
from svc_fanout.wishes import Wishes

# Large events of one lane that may be open; then the lane waits.
LARGEST_QUEUE = 16

_LONGEST_PAUSE = 3


class Planner:
    """Plans the large audiences of one lane."""

    def __init__(
        self,
        *,
        flight: Flight,
        writer: LaneWriter,
        prefs: Prefs,
        wishes: Wishes,
        categories: Mapping[str, Category],
        clock: Clock,
        metrics: Metrics,
        slice_size: int,
        trace: Trace | None,
    ) -> None:
        """Connects the planner.

        Args:
            flight: of the event's lane.
            writer: the slice lane, open.
            prefs: has the subscribers.
            wishes: decide.
            categories: the registry.
            clock: tells what has expired.
            metrics: counts.
            slice_size: recipients of a slice, at most.
            trace: logs steps of the path; None when that is off.
        """
        self._flight = flight
        self._writer = writer
        self._prefs = prefs
        self._wishes = wishes
        self._categories = categories
        self._clock = clock
        self._metrics = metrics
        self._slice_size = slice_size
        self._trace = trace
        self._log = logger().bind(lane=flight.lane)
        self._room = asyncio.Semaphore(LARGEST_QUEUE)
        self._turn = asyncio.Lock()

    async def begin(self, event: Event, mark: Mark | None, group: asyncio.TaskGroup) -> None:
        """Takes an event on, once there is room; its planning goes on in the group and closes its position.

        Args:
            event: begun in the flight.
            mark: where to go on; None: at the start.
            group: owns the planning.
        """
        await self._room.acquire()
        group.create_task(self._plan_in_turn(event, mark or Mark(event.envelope.event_id, 0, ""), group))

    async def plan_again(self, event: Event, redrive_us: int) -> None:
        """Plans an event that was parked, of whatever size, into slices; they are durable on return.

        Args:
            event: as its record was read.
            redrive_us: when an operator said so.

        Raises:
            Unavailable: lane or prefs does not answer; some slices may be written, doing it again is harmless.
        """
        failure: Failure | None = None
        async with asyncio.TaskGroup() as group:
            roll = Roll(event, prefs=self._prefs, group=group, page_size=self._slice_size)
            try:
                await self._write_again(event, roll, redrive_us)
            except Failure as refused:
                # Raised outside: the group would wrap it.
                failure = refused
            finally:
                roll.close()
        if failure is not None:
            raise failure

    async def _write_again(self, event: Event, roll: Roll, redrive_us: int) -> None:
        fallback = core.fallback_of(self._categories, event.envelope.category)
        key = join_key(event.envelope.tenant_id, event.envelope.event_id).encode()
        index = 0
        while (members := await roll.next()) is not None:
            now_us = round(self._clock.wall() * 1_000_000)
            decisions = await self._wishes.ask(core.wanted([(event, members)], now_us), remember=False)
            planned = core.decide(event, members, decisions, now_us, fallback)
            if planned is None:
                raise Unavailable("prefs does not answer", reason="PEER_UNAVAILABLE")
            records = slices.cut(planned, index, redrive_us)
            await self._writer.append([Record(key, record.SerializeToString()) for record in records])
            index += len(records)

    async def _plan_in_turn(self, event: Event, mark: Mark, group: asyncio.TaskGroup) -> None:
        try:
            async with self._turn:
                roll = Roll(event, prefs=self._prefs, group=group, page_size=self._slice_size, after=mark.after)
                try:
                    done = await self._plan(event, mark, roll)
                finally:
                    roll.close()
        finally:
            self._room.release()
        if done:
            self._flight.close([event.position])
        else:
            self._flight.leave([event.position])

    async def _plan(self, event: Event, mark: Mark, roll: Roll) -> bool:
        """Writes slice after slice; False when the process stops before the last one."""
        self._log.info("planning_large", event_id=mark.event_id, slice_index=mark.slice_index)
        count = 0
        while True:
            members = await self._next(roll)
            planned = None if members is None else await self._decide(event, members, count)
            if self._flight.is_stopping():
                return False
            if members is None or planned is None:
                break
            records = slices.cut(planned, mark.slice_index)
            key = join_key(event.envelope.tenant_id, mark.event_id).encode()
            if not await self._append([Record(key, record.SerializeToString()) for record in records]):
                return False
            mark = Mark(mark.event_id, mark.slice_index + len(records), members.last)
            await self._note(event, mark)
            count += members.count
            self._metrics.slices[self._flight.lane].inc(len(records))
        self._log.info("planned_large", event_id=mark.event_id, slice_count=mark.slice_index)
        if self._trace is not None:
            self._trace("planned", event_id=mark.event_id, recipient_count=count, slice_count=mark.slice_index)
        return True

    async def _next(self, roll: Roll) -> Members | None:
        attempt = 0
        while not self._flight.is_stopping():
            if self._wishes.answering:
                try:
                    return await roll.next()
                except Failure as failure:
                    self._wishes.lose(failure)
            await self._pause(attempt)
            attempt += 1
        return None

    async def _decide(self, event: Event, members: Members, count: int) -> core.Planned | None:
        fallback = core.fallback_of(self._categories, event.envelope.category)
        # An audience of half of what can be remembered, or more, would push everybody else out.
        remember = count < self._wishes.most_recipients // 2
        attempt = 0
        while not self._flight.is_stopping():
            now_us = round(self._clock.wall() * 1_000_000)
            decisions = await self._wishes.ask(core.wanted([(event, members)], now_us), remember=remember)
            planned = core.decide(event, members, decisions, now_us, fallback)
            if planned is not None:
                return planned
            await self._pause(attempt)
            attempt += 1
        return None

    async def _append(self, records: Sequence[Record]) -> bool:
        attempt = 0
        while not self._flight.is_stopping():
            try:
                await self._writer.append(records)
            except Failure as failure:
                # Perhaps they are there: then they are there twice, and the reader sends them once.
                self._metrics.retries["slices"].inc()
                self._log.warning("slices_not_written", reason=failure.reason, error=failure.message)
                await self._pause(attempt)
                attempt += 1
            else:
                return True
        return False

    async def _note(self, event: Event, mark: Mark) -> None:
        try:
            await self._flight.reader.note(event.position, slices.note_of(mark))
        except Failure as failure:
            # A new process would write these slices again, which is harmless; the next note covers them.
            self._log.warning("planning_not_noted", reason=failure.reason, error=failure.message)

    async def _pause(self, attempt: int) -> None:
        await self._flight.pause(min(attempt, _LONGEST_PAUSE))

"""Reads one slice lane: sends what was planned, few slices at a time, and clears what is done away.

Path steps 4 and 5. Slices are decided: nobody is asked again. They go out beside the events of their priority, on the
same stream, and take a small part of its window.
"""

from __future__ import annotations

import asyncio

from mesh.clock import Clock
from mesh.errors import Failure
from mesh.lanes import LaneWriter, Stored
from mesh.telemetry import logger
from svc_fanout import slices
from svc_fanout.caution import Caution
from svc_fanout.flight import Flight

# Read ahead of what is in flight.
READ_LIMIT = 8
# What is done stays so long, in seconds: somebody may want to look at it.
_KEPT = 3_600.0


class SliceWorker:
    """Works one slice lane."""

    def __init__(self, *, flight: Flight, writer: LaneWriter, clock: Clock, caution: Caution) -> None:
        """Connects the worker.

        Args:
            flight: of the slice lane.
            writer: the same lane's writing end: this process has both.
            clock: tells what has expired.
            caution: how many slices are read at once, and which may be sent after a crash.
        """
        self._caution = caution
        self._flight = flight
        self._writer = writer
        self._clock = clock
        self._seen = slices.Seen()

    async def run(self) -> None:
        """Works until `drain` was called."""
        await self._flight.run(self._work)

    async def drain(self) -> None:
        """Begins no new slices, waits for those in flight, and commits."""
        await asyncio.gather(self._flight.drain(), self._caution.end())

    async def trim(self) -> None:
        """Removes what was done an hour ago; never what is not done."""
        try:
            now = self._clock.wall()
            lag = await self._flight.reader.lag()
            await self._writer.trim(now - max(lag.oldest_age, 0.0) - _KEPT)
        except Failure as failure:
            logger().warning("slices_not_trimmed", lane=self._flight.lane, error=failure.message)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        await self._caution.begin()
        while not self._flight.is_stopping():
            read = await self._flight.read(self._caution.page)
            for stored in read:
                if self._flight.is_stopping():
                    break
                await self._send(stored, group)
            if not self._flight.is_stopping():
                await self._caution.worked(len(read))
        await self._caution.end()

    async def _send(self, stored: Stored, group: asyncio.TaskGroup) -> None:
        if not await self._caution.admits(stored, group):
            return
        try:
            record = slices.decode(stored.value)
        except Failure as failure:
            await self._flight.pass_by(stored, failure)
            return
        if not self._flight.begin(stored, record.envelope.event_id):
            return
        if self._seen.add(stored.value):
            now_us = round(self._clock.wall() * 1_000_000)
            await self._flight.send(slices.batch_of(stored.position, record, now_us), group)
        self._flight.close([stored.position])

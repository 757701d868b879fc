"""After an unclean end, works the records that may have caused it one at a time, naming each in the store before.

Path step 4. A record that kills the process kills it again after every start, and everything behind it waits. Named
first, it is known for what it is after a few deaths, and is parked with its bytes. Costs nothing after a clean end.
Must not count a death against a record that only waits for somebody: who is told to stop, or whose record does no harm
within a moment, takes the name back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from mesh.errors import DataLoss, Failure
from mesh.lanes import Stored
from mesh.telemetry import logger
from svc_fanout.flight import Flight

DEATHS: Final = 3

# The first byte of a note that names a record; no mark begins with it. Then come the deaths, and what was noted before.
_NAMED: Final = 0xC1
# How much more is suspected with every further death: what kills may lie far behind the committed position.
_GROWTH: Final = 4
_MOST_LIVES: Final = 8


def unnamed(note: bytes) -> bytes:
    """Returns what was noted about a record beside its name."""
    return note[2:] if note[:1] == bytes([_NAMED]) else note


class Caution:
    """How carefully the records of one lane are to be taken.

    One record of all lanes is named at a time, or an innocent one would die together with the one that kills.
    """

    def __init__(self, flight: Flight, *, turn: asyncio.Lock, page: int, moment: float = 1.0) -> None:
        """Holds on to its parts.

        Args:
            flight: of the lane.
            turn: shared by all lanes of the process.
            page: records read at once when nothing is suspected; what killed the process was probably among so many.
            moment: seconds in which a record that kills has killed.
        """
        self._flight = flight
        self._turn = turn
        self._page = page
        self._moment = moment
        self._left = 0
        self._notes: Mapping[int, bytes] = {}
        self._lasting = False
        self._watching: asyncio.Task[None] | None = None
        self._alive = False
        self._suspected = False
        self._log = logger().bind(lane=flight.lane)

    @property
    def page(self) -> int:
        """How many records to read next."""
        return 1 if self._left else self._page

    @property
    def suspicious(self) -> bool:
        """Whether something that was there at the start may be what killed the process before."""
        return self._suspected

    async def begin(self) -> Mapping[int, bytes]:
        """Learns how the process before ended; returns what was noted about the records that are not finished."""
        attempt = 0
        while not self._flight.is_stopping():
            try:
                self._notes = await self._flight.reader.notes()
                lives = await self._flight.reader.begin_life()
            except Failure as failure:
                self._log.warning("last_end_not_known", reason=failure.reason, error=failure.message)
                await self._flight.pause(attempt)
                attempt += 1
                continue
            self._alive, self._suspected = True, lives > 0
            if lives:
                # Twice a page: the reader may have gone on since the position was committed.
                self._left = 2 * self._page * _GROWTH ** (min(lives, _MOST_LIVES) - 1)
                self._log.warning("unclean_end", count=lives, suspected=self._left)
            break
        return {position: unnamed(note) for position, note in self._notes.items() if unnamed(note)}

    async def admits(self, record: Stored, group: asyncio.TaskGroup) -> bool:
        """Says whether a record may be worked on, which then begins at once; parks one that was too often deadly.

        Args:
            record: was just read.
            group: watches the record.
        """
        if not self._left:
            return True
        note = self._notes.get(record.position, b"")
        deaths = note[1] if unnamed(note) != note else 0
        if deaths >= DEATHS:
            failure = DataLoss(f"the process died {deaths} times while it worked on it", reason="RECORD_UNDECODABLE")
            await self._flight.pass_by(record, failure)
            await self._flight.commit(record.position)
            return False
        await self._turn.acquire()
        await self._note(record, deaths + 1)
        self._lasting = False
        self._watching = group.create_task(self._watch(record))
        return True

    def lasts(self) -> None:
        """The work on the record that was admitted goes on for long, and keeps notes of its own."""
        self._lasting = True

    async def worked(self, count: int) -> None:
        """Waits until the record that was admitted did no harm for a moment.

        Args:
            count: records that were read; with none, there is nothing left to suspect.
        """
        if self._watching is not None:
            await self._watching
            self._watching = None
        if count:
            self._left = max(0, self._left - count)
        elif self._suspected:
            self._left, self._suspected = 0, False
            await self._count_anew()

    async def end(self) -> None:
        """The process is told to stop: what is unfinished did not kill it."""
        if not self._alive:
            return
        self._alive = False
        try:
            await self._flight.reader.end_life()
        except Failure as failure:
            # Then the next process is careful for nothing.
            self._log.warning("end_not_noted", reason=failure.reason, error=failure.message)

    async def _count_anew(self) -> None:
        """Everything that was there at the start has been worked on: what harms from now on is something else."""
        await self.end()
        if self._flight.is_stopping():
            return
        try:
            await self._flight.reader.begin_life()
        except Failure as failure:
            self._log.warning("life_not_noted", reason=failure.reason, error=failure.message)
        self._alive = True

    async def _watch(self, record: Stored) -> None:
        """Takes the name back once the record is finished or has done no harm for a moment, whoever it waits for."""
        try:
            await self._flight.finished(record.position, self._moment)
            # A committed position forgets what was noted about it.
            if not await self._flight.commit(record.position) and not self._lasting:
                await self._note(record, 0)
        finally:
            self._turn.release()

    async def _note(self, record: Stored, deaths: int) -> None:
        note = bytes([_NAMED, deaths]) + unnamed(self._notes.get(record.position, b""))
        attempt = 0
        while not self._flight.is_stopping() or not deaths:
            try:
                # Committed in the meantime: then nothing is kept about it.
                with contextlib.suppress(ValueError):
                    await self._flight.reader.note(record.position, note)
            except Failure as failure:
                self._log.warning("record_not_named", reason=failure.reason, error=failure.message)
                if self._flight.is_stopping():
                    return
                await self._flight.pause(attempt)
                attempt += 1
            else:
                return

"""The names of suspect records, as notes beside the positions of the retry lanes. Step 9 of the path.

A note goes where the position goes: whoever takes a partition over knows what the process before it died of.

Must not decide after how many deaths a record is given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from mesh.lanes import LaneReader
from svc_delivery.retry_lanes import place_of_record, record_id_of


class LaneSuspects:
    """Implements `Suspects` on the open reading ends of the retry lanes, in the order of `LANES`."""

    def __init__(self, readers: Sequence[LaneReader]) -> None:
        self._readers = readers
        self._after_crash = False
        # record id -> how often it was named; of each lane, as of when it had these partitions.
        self._counts: dict[int, int] = {}
        self._read_for: dict[int, frozenset[int]] = {}

    @property
    def after_crash(self) -> bool:
        """See `Suspects`."""
        return self._after_crash

    async def begin(self) -> None:
        """Learns how the process before ended, and notes that this one runs; to be called once the lanes are open."""
        self._after_crash = await self._readers[0].begin_life() > 0

    async def end(self) -> None:
        """Notes that this process ends in order."""
        await self._readers[0].end_life()

    async def name(self, record_id: int) -> int:
        """See `Suspects`; a record that is not being worked on is not noted."""
        lane, position = place_of_record(record_id)
        before = await self._count_of(record_id)
        try:
            await self._readers[lane].note(position, bytes([min(before + 1, 255)]))
        except ValueError:
            return 0
        self._counts[record_id] = before + 1
        return before

    async def clear(self, record_id: int) -> None:
        """See `Suspects`; a position that is committed has no note any more."""
        lane, position = place_of_record(record_id)
        if await self._count_of(record_id):
            with contextlib.suppress(ValueError):
                await self._readers[lane].note(position, b"\0")
            del self._counts[record_id]

    async def _count_of(self, record_id: int) -> int:
        """Returns how often a record was named; what others noted is read when partitions come and go: it is dear."""
        lane, _ = place_of_record(record_id)
        reader = self._readers[lane]
        partitions = reader.partitions
        if self._read_for.get(lane) != partitions:
            notes = await reader.notes()
            self._counts |= {record_id_of(lane, position): note[0] for position, note in notes.items() if note}
            self._read_for[lane] = partitions
        return self._counts.get(record_id, 0)

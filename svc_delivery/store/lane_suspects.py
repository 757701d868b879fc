"""The names of suspect records, as notes beside the positions of the retry lanes. Step 9 of the path.

A note goes where the position goes: whoever takes a partition over knows what the process before it died of.

Must not decide after how many deaths a record is given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from mesh.lanes import LaneReader
from svc_delivery.retry_lanes import place_of_record


class LaneSuspects:
    """Implements `Suspects` on the open reading ends of the retry lanes, in the order of `LANES`."""

    def __init__(self, readers: Sequence[LaneReader]) -> None:
        self._readers = readers
        self._after_crash = False

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
        reader = self._readers[lane]
        before = _count_of((await reader.notes()).get(position, b""))
        try:
            await reader.note(position, bytes([min(before + 1, 255)]))
        except ValueError:
            return 0
        return before

    async def clear(self, record_id: int) -> None:
        """See `Suspects`; a position that is committed has no note any more."""
        lane, position = place_of_record(record_id)
        reader = self._readers[lane]
        if _count_of((await reader.notes()).get(position, b"")):
            with contextlib.suppress(ValueError):
                await reader.note(position, b"\0")


def _count_of(note: bytes) -> int:
    return note[0] if note else 0

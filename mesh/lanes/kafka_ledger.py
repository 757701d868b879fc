"""The marks of one lane on Kafka in the terms of its reader: parked records, notes, lives, and owned topics.

Must not know offsets of groups. See `mesh.lanes.kafka_marks` for how they are kept.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from mesh.clock import Clock
from mesh.kafka import Cluster
from mesh.kafka_admin import Admin
from mesh.lanes import Parked, Stored, offset_of, partition_of
from mesh.lanes.kafka_marks import Marks
from mesh.lanes.kafka_topics import LARGEST_BATCH_BYTES

_PARK = "parked/"
_NOTE = "note/"
_LIFE = "life/"
_TOPIC = "topic/"

# Beside it the mark's own key and what Kafka adds fit into what the topic takes: a larger mark is refused for ever.
LARGEST_PARKED: Final = LARGEST_BATCH_BYTES - 64 * 1024
# What stays of key and reason beside a value that is left out.
_LARGEST_KEY: Final = 1_000
_LARGEST_REASON: Final = 1_000


class Ledger:
    """What is noted of a lane.

    Args:
        cluster: where.
        admin: asks.
        lane: its name.
        clock: for the time of parking.

    Attributes:
        instance: names this reading end among all that ever were; it is the member's name in the group.
    """

    def __init__(self, cluster: Cluster, admin: Admin, lane: str, clock: Clock) -> None:
        self.instance = f"heliograph-{lane}-{uuid.uuid4().hex}"
        self._marks = Marks(cluster, admin, lane, clock)
        self._clock = clock
        self._parked: set[str] | None = None
        self._noted: dict[int, str] = {}
        self._dead: list[str] = []

    async def park(self, topic_id: str, record: Stored, reason: str) -> None:
        """Keeps a record; what was kept first stays."""
        key = f"{_PARK}{topic_id}/{record.position}"
        if self._parked is None:
            self._parked = {one for one in await self._marks.load() if one.startswith(_PARK)}
        if key in self._parked:
            return
        await self._marks.put({key: encode(record, reason, self._clock.wall())})
        self._parked.add(key)

    async def parked(self, limit: int) -> Sequence[Parked]:
        """Returns the first parked records in order of their position."""
        marks = await self._marks.load()
        found = [msgspec.msgpack.decode(value, type=Parked) for key, value in marks.items() if key.startswith(_PARK)]
        return sorted(found, key=lambda one: one.position)[:limit]

    async def unpark(self, record: Parked) -> None:
        """Forgets a parked record."""
        marks = await self._marks.load()
        known = [one for one in marks if one.startswith(_PARK)]
        keys = [one for one in known if msgspec.msgpack.decode(marks[one], type=Parked) == record]
        await self._marks.put(dict.fromkeys(keys))
        if self._parked is not None:
            self._parked.difference_update(keys)

    async def note(self, topic_id: str, position: int, note: bytes) -> None:
        """Keeps a note instead of the one before."""
        key = f"{_NOTE}{topic_id}/{position}"
        await self._marks.put({key: note})
        self._noted[position] = key

    async def notes(self, topic_id: str) -> dict[int, bytes]:
        """Returns the notes about records of this topic, by position."""
        start = f"{_NOTE}{topic_id}/"
        found = {key: value for key, value in (await self._marks.load()).items() if key.startswith(start)}
        self._noted |= {int(key[len(start) :]): key for key in found}
        return {int(key[len(start) :]): value for key, value in found.items()}

    async def finished(self, committed: Mapping[int, int]) -> None:
        """Forgets the notes about what is committed: partition → last offset."""
        gone = {at: key for at, key in self._noted.items() if offset_of(at) <= committed.get(partition_of(at), -1)}
        if gone:
            await self._marks.put(dict.fromkeys(gone.values()))
            for position in gone:
                self._noted.pop(position, None)

    async def forget_notes(self) -> None:
        """Forgets all notes of the lane."""
        await self._marks.put(dict.fromkeys(key for key in await self._marks.load() if key.startswith(_NOTE)))
        self._noted.clear()

    async def begin_life(self, alive: Collection[str]) -> int:
        """Notes this life; returns how many others neither ended nor go on."""
        mine = _LIFE + self.instance
        lives = [key for key in await self._marks.load() if key.startswith(_LIFE)]
        self._dead = [key for key in lives if key != mine and key[len(_LIFE) :] not in alive]
        await self._marks.put({mine: b""})
        return len(self._dead)

    async def end_life(self) -> None:
        """Forgets this life, and those that were found dead when it began."""
        await self._marks.put(dict.fromkeys([_LIFE + self.instance, *self._dead]))
        self._dead = []

    async def own(self, topic_id: str, partitions: Iterable[int]) -> None:
        """Notes that the group has an offset for these partitions of this topic."""
        await self._marks.put({f"{_TOPIC}{one}": topic_id.encode() for one in partitions})

    async def owned(self) -> dict[int, str]:
        """Returns for which partitions the group ever had an offset, and of which topic."""
        marks = await self._marks.load()
        return {int(key[len(_TOPIC) :]): value.decode() for key, value in marks.items() if key.startswith(_TOPIC)}

    async def close(self) -> None:
        """Disconnects."""
        await self._marks.close()


def encode(record: Stored, reason: str, park_time: float) -> bytes:
    """Returns what is kept of a record: of one that is too large the size of its value and its hash instead of it."""
    whole = msgspec.msgpack.encode(Parked(record.position, record.key, record.value, reason, park_time))
    if len(whole) <= LARGEST_PARKED:
        return whole
    size, digest = len(record.value), hashlib.sha256(record.value).hexdigest()
    said = f"{reason[:_LARGEST_REASON]}; its {size} bytes were too large to be kept (SHA-256 {digest})"
    key = record.key if len(record.key) <= _LARGEST_KEY else b""
    return msgspec.msgpack.encode(
        Parked(record.position, key, b"", f"{said}: it cannot be redriven", park_time, left_out=size)
    )

"""What a lane on Kafka holds beyond what its readers committed: how much, and how old. Must not move anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mesh.clock import Clock
from mesh.kafka import Cluster
from mesh.kafka_admin import END, FIRST, Admin
from mesh.kafka_clients import Fetched, Replay
from mesh.lanes import Stored, position_of

# Ages are exact to this.
_STEP_S: Final = 0.05
# Between two samples this far apart nothing is known: other processes append, too.
_GAP_S: Final = 0.25
_MOST_TIMES: Final = 20_000
# So long a record that was looked at stands for those behind it.
_LOOK_S: Final = 1.0
_PEEK_BYTES: Final = 64 * 1024


class Times:
    """When records of one partition were appended, known from those that passed through this process."""

    def __init__(self) -> None:
        # first and last offset, and the time of both, within a step
        self._samples: deque[list[float]] = deque(maxlen=_MOST_TIMES)

    def add(self, first: int, last: int, time: float) -> None:
        """Notes records that lie next to each other and are of one time."""
        if self._samples:
            newest = self._samples[-1]
            if first <= newest[1]:
                return
            if first == newest[1] + 1 and abs(time - newest[2]) < _STEP_S:
                newest[1] = last
                return
        self._samples.append([first, last, time])

    def at(self, offset: int) -> float | None:
        """Returns about when this record was appended, None when that is not known; forgets those before it."""
        while len(self._samples) > 1 and self._samples[1][0] <= offset:
            self._samples.popleft()
        if not self._samples or offset < self._samples[0][0]:
            return None
        first = self._samples[0]
        if offset <= first[1] or (len(self._samples) > 1 and self._samples[1][2] - first[2] <= _GAP_S):
            return first[2]
        return None


class Unfinished(msgspec.Struct, frozen=True):
    """What is above the committed offsets.

    Attributes:
        spans: partition → first record that is not committed, and the end.
        oldest_age: seconds since the oldest of them was appended.
    """

    spans: Mapping[int, tuple[int, int]]
    oldest_age: float

    @property
    def count(self) -> int:
        """How many records."""
        return sum(end - first for first, end in self.spans.values())

    @property
    def finished(self) -> int:
        """How many records ever were before them."""
        return sum(first for first, _ in self.spans.values())


class Look:
    """Looks at one topic and its group.

    Args:
        cluster: where.
        admin: asks.
        topic: its name, and the group's.
        clock: for ages.
    """

    def __init__(self, cluster: Cluster, admin: Admin, topic: str, clock: Clock) -> None:
        self._cluster = cluster
        self._admin = admin
        self._topic = topic
        self._clock = clock
        self._peek = Replay(cluster, topic, page_bytes=_PEEK_BYTES)
        self._times: dict[int, Times] = {}
        # partition → offset, its time, and until when it stands for those behind it
        self._looked: dict[int, tuple[int, float, float]] = {}

    def passed(self, partition: int, first: int, last: int, time: float) -> None:
        """Notes records of one time that passed through this process."""
        times = self._times.get(partition)
        if times is None:
            times = self._times[partition] = Times()
        times.add(first, last, time)

    def forget(self, partition: int) -> None:
        """Forgets what passed of a partition: from now on it comes from elsewhere."""
        self._times.pop(partition, None)

    async def close(self) -> None:
        """Disconnects."""
        await self._peek.close()

    async def spans(self) -> dict[int, tuple[int, int]]:
        """Returns for each partition the first record that is not committed, and the end.

        Raises:
            KafkaUnavailable: it is not known.
        """
        partitions = sorted((await self._admin.topic(self._topic)).leaders)
        # In this order: what is finished meanwhile counts as unfinished, never the other way round.
        committed = await self._admin.committed(self._topic, self._topic, partitions)
        starts = await self._admin.offsets(self._topic, dict.fromkeys(partitions, FIRST))
        ends = await self._admin.offsets(self._topic, dict.fromkeys(partitions, END))
        found: dict[int, tuple[int, int]] = {}
        for one in partitions:
            first = max(starts.get(one, 0), committed.get(one, 0))
            found[one] = (min(first, ends.get(one, 0)), ends.get(one, 0))
        return found

    async def unfinished(self) -> Unfinished:
        """Returns what is not committed.

        Raises:
            KafkaUnavailable: it is not known.
        """
        spans = await self.spans()
        firsts = {one: first for one, (first, end) in spans.items() if first < end}
        found = {one: self._known(one, first) for one, first in firsts.items()}
        unknown = {one: (firsts[one], firsts[one] + 1) for one, time in found.items() if time is None}

        def take(record: Fetched) -> bool:
            time = record.timestamp / 1000
            self._looked[record.partition] = (record.offset, time, self._clock.monotonic() + _LOOK_S)
            found[record.partition] = time
            return True

        await self._peek.read(unknown, take)
        times = [time for time in found.values() if time is not None]
        return Unfinished(spans, max(0.0, self._clock.wall() - min(times)) if times else 0.0)

    async def containing(self, part: bytes, limit: int) -> Sequence[Stored]:
        """Returns records above the committed offsets whose key or value contains these bytes.

        Raises:
            KafkaUnavailable: not all could be read.
        """
        found: list[Stored] = []

        def take(record: Fetched) -> bool:
            if part in (record.value or b"") or part in (record.key or b""):
                found.append(stored(record))
            return len(found) < limit

        replay = Replay(self._cluster, self._topic)
        try:
            await replay.read(await self.spans(), take)
        finally:
            await replay.close()
        return sorted(found, key=lambda one: one.position)

    def _known(self, partition: int, offset: int) -> float | None:
        times = self._times.get(partition)
        known = None if times is None else times.at(offset)
        if known is None and partition in self._looked:
            looked, time, end = self._looked[partition]
            if looked == offset or (looked < offset and self._clock.monotonic() < end):
                return time
        return known


def stored(record: Fetched) -> Stored:
    """Returns a record as the port has it."""
    return Stored(
        position_of(record.partition, record.offset), record.key or b"", record.value or b"", record.timestamp / 1000
    )

"""The writing end of a lane on Kafka: the key chooses the partition, and what overlaps shares a batch.

Any number of processes may append. What is durable: every in-sync replica has it. Must not look into the records.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from mesh.clock import Clock
from mesh.kafka import Cluster, KafkaUnavailable
from mesh.kafka_admin import END, FIRST, Admin
from mesh.kafka_clients import Row
from mesh.lanes import Backlog, LaneUnavailable, Record
from mesh.lanes.kafka_feed import Feed
from mesh.lanes.kafka_look import Look
from mesh.lanes.kafka_topics import topic_of
from mesh.telemetry import logger

_PARTITIONS_AGE_S: Final = 5.0


class KafkaLaneWriter:
    """The writing end.

    A call's records are appended whole or not at all where they lie in one partition. Where they lie in several, each
    partition gets its own whole or not at all, and when some failed, the call fails with `unknown` set.

    Args:
        name: of the lane.
        cluster: where.
        clock: for the time of an append.
    """

    def __init__(self, name: str, *, cluster: Cluster, clock: Clock) -> None:
        self._name = name
        self._topic = topic_of(cluster, name)
        self._clock = clock
        self._admin = Admin(cluster)
        self._look = Look(cluster, self._admin, self._topic, clock)
        self._feed = Feed(cluster, self._topic, what=f"lane {name}", appended=self._appended)
        self._partitions: Sequence[int] = ()
        self._partitions_end = 0.0
        self._may_trim = True

    async def open(self) -> None:
        """Connects; a lane that is not there, or a Kafka that does not answer, is told in one line."""
        try:
            await self._admin.topic(self._topic)
        except KafkaUnavailable as failure:
            await self.close()
            raise self._unavailable(failure) from failure
        await self._choose()

    async def append(self, records: Sequence[Record]) -> None:
        """Appends the records; see the port and the class."""
        if not records:
            return
        parts = self._split(records, await self._choose())
        if len(parts) == 1:
            ((partition, rows),) = parts.items()
            await self._feed.put(partition, rows)
            return
        ends = await asyncio.gather(
            *(self._feed.put(partition, rows) for partition, rows in parts.items()), return_exceptions=True
        )
        failures: list[LaneUnavailable] = []
        for end in ends:
            if isinstance(end, LaneUnavailable):
                failures.append(end)
            elif end is not None:
                raise end
        if failures:
            unknown = len(failures) < len(parts) or any(failure.unknown for failure in failures)
            raise LaneUnavailable(failures[0].message, unknown=unknown)

    async def backlog(self) -> Backlog:
        """Compares what was appended with what the group committed; see the port."""
        try:
            unfinished = await self._look.unfinished()
        except KafkaUnavailable as failure:
            raise self._unavailable(failure) from failure
        return Backlog(unfinished.count, unfinished.oldest_age, unfinished.finished)

    async def trim(self, before_time: float) -> int:
        """Deletes what is older at once; see the port. Where that is not allowed, retention does it: returns 0."""
        if not self._may_trim:
            return 0
        try:
            return await self._trim(before_time)
        except KafkaUnavailable as failure:
            if failure.denied:
                self._may_trim = False
                logger().warning("lane_not_trimmed", lane=self._name, error=failure.message, instead="retention")
                return 0
            raise self._unavailable(failure) from failure

    async def ping(self) -> None:
        """Asks for the topic."""
        try:
            await self._admin.topic(self._topic, fresh=True)
        except KafkaUnavailable as failure:
            raise self._unavailable(failure) from failure

    async def close(self) -> None:
        """Finishes the appends under way and disconnects; harmless when not open."""
        await self._feed.close()
        await self._look.close()
        await self._admin.close()

    async def _trim(self, before_time: float) -> int:
        partitions = sorted((await self._admin.topic(self._topic)).leaders)
        starts = await self._admin.offsets(self._topic, dict.fromkeys(partitions, FIRST))
        ends = await self._admin.offsets(self._topic, dict.fromkeys(partitions, END))
        # A partition with nothing as new as that goes up to its end, but for the newest record.
        cuts = await self._admin.offsets(self._topic, dict.fromkeys(partitions, int(before_time * 1000)))
        wanted = {one: min(cuts.get(one, ends[one]), ends[one] - 1) for one in partitions}
        wanted = {one: cut for one, cut in wanted.items() if cut > starts[one]}
        if wanted:
            await self._admin.delete_before(self._topic, wanted)
        return sum(cut - starts[one] for one, cut in wanted.items())

    async def _choose(self) -> Sequence[int]:
        now = asyncio.get_running_loop().time()
        if now >= self._partitions_end:
            self._partitions = await self._feed.partitions()
            self._partitions_end = now + _PARTITIONS_AGE_S
        return self._partitions

    def _split(self, records: Sequence[Record], partitions: Sequence[int]) -> Mapping[int, list[Row]]:
        time_ms = int(self._clock.wall() * 1000)
        parts: dict[int, list[Row]] = {}
        for record in records:
            chosen = record.partition
            if chosen is None or chosen not in partitions:
                chosen = partitions[zlib.crc32(record.key) % len(partitions)]
            parts.setdefault(chosen, []).append((record.key, record.value, time_ms))
        return parts

    def _appended(self, partition: int, offset: int, rows: Sequence[Row]) -> None:
        first = 0
        for index in range(1, len(rows) + 1):
            if index == len(rows) or rows[index][2] != rows[first][2]:
                self._look.passed(partition, offset + first, offset + index - 1, rows[first][2] / 1000)
                first = index

    def _unavailable(self, failure: KafkaUnavailable) -> LaneUnavailable:
        return LaneUnavailable(f"lane {self._name}: {failure.message}", unknown=failure.unknown)

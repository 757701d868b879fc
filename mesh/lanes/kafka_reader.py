"""The reading end of a lane on Kafka: a member of the lane's group, which commits by hand.

A partition is read from the committed offset when it comes to this process, and goes on where it was read when it only
stays. What was fetched of a partition that left is dropped, and a commit for it is somebody else's business. Positions
never jump: one that is gone, or that belongs to another topic of this name, stops the lane. Must not look into the
records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

from mesh.clock import Clock
from mesh.kafka import Cluster, KafkaUnavailable
from mesh.kafka_admin import FIRST, Admin, Topic
from mesh.kafka_clients import Fetched, GroupConsumer, OutOfRange
from mesh.lanes import Lag, LaneUnavailable, Parked, PositionLost, Stored, offset_of, partition_of
from mesh.lanes.kafka_ledger import Ledger
from mesh.lanes.kafka_look import Look, stored
from mesh.lanes.kafka_topics import topic_of
from mesh.telemetry import logger

# How long a topic made anew may go unnoticed where no fetch failed.
_SURE_S: Final = 5.0
_SLICE_S: Final = 0.5
_JOIN_LIMIT_S: Final = 20.0


class KafkaLaneReader:
    """The reading end: one caller reads, and as many processes as there are partitions share a lane.

    Args:
        name: of the lane.
        cluster: where.
        clock: for ages and the time of parking.
    """

    def __init__(self, name: str, *, cluster: Cluster, clock: Clock) -> None:
        self._name = name
        self._cluster = cluster
        self._topic = topic_of(cluster, name)
        self._admin = Admin(cluster)
        self._look = Look(cluster, self._admin, self._topic, clock)
        self._clock = clock
        self._ledger = Ledger(cluster, self._admin, name, clock)
        self._consumer: GroupConsumer | None = None
        self._leave: Callable[[], Awaitable[None]] | None = None
        self._lost: str | None = None
        self._topic_id = ""
        # partitions that came and are not looked at yet; None: there are none
        self._fresh: frozenset[int] | None = None
        self._came = asyncio.Event()
        self._joining = asyncio.Lock()
        self._generation = -1
        self._unsure = False
        self._sure_until = 0.0
        # partition → offset: returned last; committed last; to be committed; ever returned
        self._read: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        self._ever: dict[int, int] = {}
        self._committing = asyncio.Lock()

    async def open(self) -> None:
        """Connects; a lane that is not there, or a Kafka that does not answer, is told in one line."""
        try:
            with self._translated():
                await self._admin.topic(self._topic)
                await self._joined()
        except BaseException:
            await self.close()
            raise

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that are read here; see the port."""
        return frozenset(self._read)

    def on_leave(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Registers the last moment before partitions leave; see the port."""
        self._leave = finish

    async def read(self, limit: int, wait: float) -> Sequence[Stored]:
        """Returns the next records of the partitions that this process has; see the port."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while True:
            if self._lost is not None:
                raise PositionLost(self._lost, metadata={"lane": self._name})
            with self._translated():
                consumer = await self._joined()
                await self._be_sure()
                if not self._read and not self._came.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._came.wait(), end - loop.time())
                    await self._be_sure()
                # In slices: an idle wait ends neither when partitions come nor when the topic goes.
                pages = await self._poll(consumer, limit, min(_SLICE_S, max(0.0, end - loop.time())))
            # From here on nothing is awaited: what was taken is returned.
            records = self._take(consumer, pages)
            if records or (loop.time() >= end and self._lost is None):
                return records

    async def commit(self, position: int) -> None:
        """Commits in the group; what overlaps shares a request; see the port."""
        partition, offset = partition_of(position), offset_of(position)
        if offset > self._ever.get(partition, -1):
            raise ValueError(f"position {position} of lane {self._name} was not read")
        if partition not in self._committed or offset <= self._committed[partition]:
            return
        self._wanted[partition] = max(offset, self._wanted.get(partition, -1))
        await self._commit()

    async def lag(self) -> Lag:
        """Returns the records above the committed offsets and the age of the oldest; see the port."""
        with self._translated():
            unfinished = await self._look.unfinished()
        return Lag(unfinished.count, unfinished.oldest_age)

    async def containing(self, part: bytes, limit: int) -> Sequence[Stored]:
        """Reads everything above the committed offsets; see the port."""
        with self._translated():
            return await self._look.containing(part, limit)

    async def park(self, record: Stored, reason: str) -> None:
        """Keeps a record that cannot be understood; see the port."""
        with self._translated():
            await self._ledger.park(self._topic_id, record, reason)

    async def parked(self, limit: int) -> Sequence[Parked]:
        """Returns the first parked records of all processes; see the port."""
        with self._translated():
            return await self._ledger.parked(limit)

    async def unpark(self, record: Parked) -> None:
        """Forgets a parked record; see the port."""
        with self._translated():
            await self._ledger.unpark(record)

    async def note(self, position: int, note: bytes) -> None:
        """Keeps how far the work on a record has come; see the port."""
        partition, offset = partition_of(position), offset_of(position)
        if not self._committed.get(partition, -1) < offset <= self._ever.get(partition, -1):
            raise ValueError(f"position {position} of lane {self._name} is not being worked on")
        with self._translated():
            await self._ledger.note(self._topic_id, position, note)

    async def notes(self) -> Mapping[int, bytes]:
        """Returns every note about what is not committed, of all processes; see the port."""
        with self._translated():
            topic = await self._admin.topic(self._topic)
            firsts = {one: first for one, (first, _) in (await self._look.spans()).items()}
            notes = await self._ledger.notes(topic.id)
        return {at: note for at, note in notes.items() if offset_of(at) >= firsts.get(partition_of(at), 0)}

    async def begin_life(self) -> int:
        """Counts those that ended without a word; see the port.

        Waits until this process is in the group: whoever died is out of it by then, whoever lives is in it.
        """
        with self._translated():
            await self._in_group()
            return await self._ledger.begin_life(await self._admin.members(self._topic))

    async def end_life(self) -> None:
        """Forgets this life and those that ended before it began; see the port."""
        with self._translated():
            await self._ledger.end_life()

    async def restart(self) -> None:
        """Commits the first record that exists of each partition that this process has; see the port."""
        with self._translated():
            # As a new member: this one may still believe in a topic that is gone.
            await self._retire()
            await self._in_group()
            consumer, fresh = await self._joined(), self._fresh
            generation = consumer.generation
            mine = sorted(fresh or ())
            topic = await self._admin.topic(self._topic, fresh=True)
            starts = await self._admin.offsets(self._topic, dict.fromkeys(mine, FIRST))
            if starts:
                await consumer.commit(starts, generation)
            await self._ledger.forget_notes()
            await self._ledger.own(topic.id, mine)
            self._topic_id, self._generation, self._lost = topic.id, generation, None
            self._ever.clear()
            for partition, start in starts.items():
                self._begin(consumer, partition, start)
            if self._fresh is fresh:
                self._fresh = None

    async def ping(self) -> None:
        """Asks for the topic."""
        with self._translated():
            await self._admin.topic(self._topic, fresh=True)

    async def close(self) -> None:
        """Leaves the group and disconnects; harmless when not open."""
        self._leave = None
        await self._retire()
        await self._ledger.close()
        await self._look.close()
        await self._admin.close()

    # ------------------------------------------------------------ the group

    async def _joined(self) -> GroupConsumer:
        async with self._joining:
            if self._consumer is None:
                consumer = GroupConsumer(
                    self._cluster,
                    topic=self._topic,
                    group=self._topic,
                    member=self._ledger.instance,
                    revoked=self._revoked,
                    assigned=self._assigned,
                    changed=self._suspect,
                )
                await consumer.start()
                self._consumer = consumer
            return self._consumer

    async def _retire(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._fresh, self._generation = None, -1
        self._came.clear()
        for held in (self._read, self._committed, self._wanted):
            held.clear()
        if consumer is not None:
            await consumer.stop()

    async def _in_group(self) -> None:
        """Waits until the group has given this process its share."""
        await self._joined()
        try:
            await asyncio.wait_for(self._came.wait(), _JOIN_LIMIT_S)
        except TimeoutError:
            raise KafkaUnavailable(f"group {self._topic}: not joined within {_JOIN_LIMIT_S:g} s") from None

    async def _revoked(self) -> None:
        if self._leave is not None and self._read:
            await self._leave()

    def _assigned(self, partitions: frozenset[int]) -> None:
        self._fresh = partitions
        self._came.set()

    def _suspect(self) -> None:
        self._unsure = True

    async def _be_sure(self) -> None:
        """Before anything is read: are these partitions ours, and is it still the same topic?"""
        while self._lost is None:
            if self._fresh is not None:
                await self._settle(self._fresh)
            elif self._read and (self._unsure or asyncio.get_running_loop().time() >= self._sure_until):
                self._unsure = False
                self._look_at(await self._admin.topic(self._topic, fresh=True))
            else:
                return

    def _look_at(self, topic: Topic) -> None:
        self._sure_until = asyncio.get_running_loop().time() + _SURE_S
        if topic.id != self._topic_id:
            self._lose("the topic was made anew")

    async def _settle(self, fresh: frozenset[int]) -> None:
        """Finds out where to go on with the partitions that this process was given."""
        consumer = await self._joined()
        generation = consumer.generation
        topic = await self._admin.topic(self._topic, fresh=True)
        if self._topic_id and self._topic_id != topic.id:
            self._lose("the topic was made anew")
            return
        # With no generation in between nobody else had them.
        stay = fresh & self._read.keys() if generation == self._generation + 1 else frozenset()
        came = sorted(fresh - stay)
        owned = await self._ledger.owned() if came else {}
        starts = await self._admin.offsets(self._topic, dict.fromkeys(came, FIRST)) if came else {}
        committed = await self._admin.committed(self._topic, self._topic, came) if came else {}
        for one in came:
            if one in owned and (owned[one] != topic.id or one not in committed):
                self._lose(
                    f"partition {one}: "
                    + ("the group's offset" if owned[one] == topic.id else "the topic")
                    + " is gone"
                )
            elif committed.get(one, starts[one]) < starts[one]:
                self._lose(f"partition {one} begins at {starts[one]}, {committed[one]} is next")
        if self._lost is not None:
            return
        new = {one: starts[one] for one in came if one not in committed}
        await self._take_on(consumer, topic.id, generation, new, owned)
        if self._fresh is not fresh:
            return
        for one in [one for one in self._read if one not in stay]:
            del self._read[one], self._committed[one]
            self._wanted.pop(one, None)
        for one in came:
            self._begin(consumer, one, committed.get(one, starts[one]))
        for one in stay:
            consumer.seek(one, self._read[one] + 1)
        self._topic_id, self._generation, self._fresh = topic.id, generation, None
        self._look_at(topic)
        await self._commit()

    async def _take_on(
        self,
        consumer: GroupConsumer,
        topic_id: str,
        generation: int,
        starts: Mapping[int, int],
        owned: Mapping[int, str],
    ) -> None:
        """Commits where a partition that nobody ever read begins: from now on it can be lost."""
        if starts:
            await consumer.commit(starts, generation)
            await self._ledger.own(topic_id, [one for one in starts if one not in owned])

    def _begin(self, consumer: GroupConsumer, partition: int, offset: int) -> None:
        self._read[partition] = self._committed[partition] = offset - 1
        self._ever.setdefault(partition, offset - 1)
        self._look.forget(partition)
        consumer.seek(partition, offset)

    def _lose(self, cause: str) -> None:
        self._lost = f"lane {self._name}: the position is lost, {cause}; restart the reader to go on from what is left"

    # ------------------------------------------------------------ records

    async def _poll(self, consumer: GroupConsumer, limit: int, wait: float) -> Mapping[int, Sequence[Fetched]]:
        try:
            return await consumer.poll(limit, wait)
        except OutOfRange as gone:
            if self._fresh is None and gone.partition in self._read:
                self._lose(str(gone))
            return {}
        except KafkaUnavailable:
            await self._retire()
            raise

    def _take(self, consumer: GroupConsumer, pages: Mapping[int, Sequence[Fetched]]) -> list[Stored]:
        found: list[Stored] = []
        for partition, page in pages.items():
            # Given anew while it was waited for: where it goes on is not settled.
            if self._fresh is not None or partition not in self._read:
                consumer.seek(partition, page[0].offset)
                continue
            for record in page:
                self._look.passed(partition, record.offset, record.offset, record.timestamp / 1000)
                found.append(stored(record))
            self._read[partition] = page[-1].offset
            self._ever[partition] = max(self._ever[partition], page[-1].offset)
        return found

    async def _commit(self) -> None:
        async with self._committing:
            wanted = {one: offset for one, offset in self._wanted.items() if offset > self._committed.get(one, offset)}
            if not wanted or self._consumer is None:
                return
            try:
                await self._consumer.commit({one: offset + 1 for one, offset in wanted.items()}, self._generation)
            except KafkaUnavailable as failure:
                if not failure.old_generation:
                    raise LaneUnavailable(f"lane {self._name}: {failure.message}", unknown=True) from failure
                # Whoever has the partition next repeats what was not committed; if we have it, we commit then.
                logger().info("old_generation_not_committed", lane=self._name, partitions=sorted(wanted))
                return
            for one, offset in wanted.items():
                if one in self._committed:
                    self._committed[one] = max(offset, self._committed[one])
        await self._ledger.finished(self._committed)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except KafkaUnavailable as failure:
            raise LaneUnavailable(f"lane {self._name}: {failure.message}", unknown=failure.unknown) from failure

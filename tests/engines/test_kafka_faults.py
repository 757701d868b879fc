"""What lanes bear of their Kafka: a broker killed or stilled, processes that come and go, topics that grow."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator

import pytest

from mesh.clock import SystemClock
from mesh.kafka import Cluster, parse_cluster
from mesh.kafka_admin import Admin
from mesh.lanes import LaneReader, LaneUnavailable, LowWater, Record, partition_of
from mesh.lanes.kafka import KafkaLaneWriter
from mesh.lanes.kafka_reader import KafkaLaneReader
from mesh.lanes.kafka_topics import MARKS, KafkaLaneAdmin
from tests.support.kafka_broker import KafkaBroker, kafka_broker
from tests.support.wait import until

# A broker takes some seconds to start, after a kill some more.
pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]

LANE = "normal"
CALLERS = 24


@pytest.fixture(scope="module")
async def broker() -> AsyncIterator[KafkaBroker]:
    """A broker of this module's own, running."""
    async with kafka_broker() as made:
        yield made


@pytest.fixture
async def cluster(broker: KafkaBroker) -> Cluster:
    """The topics of one test, four partitions each."""
    found = parse_cluster("lanes_url", broker.url(f"faults-{uuid.uuid4().hex}"))
    await KafkaLaneAdmin(found, [LANE, MARKS]).create(dry_run=False)
    return found


@contextlib.asynccontextmanager
async def opened_writer(cluster: Cluster) -> AsyncIterator[KafkaLaneWriter]:
    """An open writing end."""
    writer = KafkaLaneWriter(LANE, cluster=cluster, clock=SystemClock())
    await writer.open()
    try:
        yield writer
    finally:
        await writer.close()


@contextlib.asynccontextmanager
async def opened_reader(cluster: Cluster) -> AsyncIterator[KafkaLaneReader]:
    """An open reading end."""
    reader = KafkaLaneReader(LANE, cluster=cluster, clock=SystemClock())
    await reader.open()
    try:
        yield reader
    finally:
        await reader.close()


class Appending:
    """Callers that append one record after the other under a key each, and remember which were acknowledged."""

    def __init__(self, writer: KafkaLaneWriter) -> None:
        self._writer = writer
        self._ended = asyncio.Event()
        self.acked: dict[bytes, list[int]] = {b"caller-%d" % number: [] for number in range(CALLERS)}
        self.unknown: set[tuple[bytes, int]] = set()
        self.refused: set[tuple[bytes, int]] = set()

    @property
    def count(self) -> int:
        """How many were acknowledged."""
        return sum(map(len, self.acked.values()))

    async def run(self) -> None:
        """Appends until told to end."""
        async with asyncio.TaskGroup() as group:
            for key in self.acked:
                group.create_task(self._append(key))

    def end(self) -> None:
        """Ends after the appends under way."""
        self._ended.set()

    async def _append(self, key: bytes) -> None:
        number = 0
        while not self._ended.is_set():
            try:
                await self._writer.append([Record(key, b"%d" % number)])
            except LaneUnavailable as failure:
                (self.unknown if failure.unknown else self.refused).add((key, number))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), 0.05)
            else:
                self.acked[key].append(number)
            number += 1


class Reading:
    """Reads a lane and commits what it read, as fan-out does; remembers everything that came."""

    def __init__(self, reader: LaneReader) -> None:
        self.reader = reader
        self.came: dict[bytes, list[int]] = {}
        self.positions: list[int] = []
        self.failures = 0
        self._mark = LowWater()
        reader.on_leave(self.commit)

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            try:
                page = await self.reader.read(500, 0.2)
                for record in page:
                    self._mark.add(record.position)
                    self.came.setdefault(record.key, []).append(int(record.value))
                    self.positions.append(record.position)
                    self._mark.done(record.position)
                await self.commit()
            except LaneUnavailable:
                self.failures += 1
                await until(self._answers, 60.0, "the lane can be read")

    async def _answers(self) -> bool:
        with contextlib.suppress(LaneUnavailable):
            await self.reader.lag()
            return True
        return False

    async def commit(self) -> None:
        """Commits what is done."""
        for point in self._mark.commit_points():
            await self.reader.commit(point)


@contextlib.asynccontextmanager
async def running(*parts: Appending | Reading) -> AsyncIterator[None]:
    """Runs them until the block ends."""
    tasks = [asyncio.ensure_future(part.run()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def append_on(writer: KafkaLaneWriter) -> None:
    """Appends until it is refused."""
    while True:
        await writer.append([Record(b"probe", b"0")])


def without_repeats(numbers: list[int]) -> list[int]:
    """The first time that each came."""
    return list(dict.fromkeys(numbers))


def is_complete(appending: Appending, *readings: Reading) -> bool:
    """Whether everything that was acknowledged came."""
    came = {(key, number) for one in readings for key, numbers in one.came.items() for number in numbers}
    return all((key, number) in came for key, numbers in appending.acked.items() for number in numbers)


async def test_a_killed_broker_loses_nothing(broker: KafkaBroker, cluster: Cluster) -> None:
    """Killed under load and started again: every acknowledged record comes, in order; both ends go on by themselves."""
    async with opened_writer(cluster) as writer, opened_reader(cluster) as reader:
        appending, reading = Appending(writer), Reading(reader)
        async with running(reading):
            async with running(appending):
                await until(lambda: appending.count > 2_000, 30.0, "records before the kill")
                await broker.kill()
                killed = time.monotonic()
                with pytest.raises(LaneUnavailable):
                    await append_on(writer)
                assert time.monotonic() - killed < 8.0
                await broker.start()
                count = appending.count
                await until(lambda: appending.count > count + 2_000, 40.0, "records after the kill")
                appending.end()
            await until(lambda: is_complete(appending, reading), 30.0, "everything came")
        assert appending.count > 4_000
        for key, numbers in reading.came.items():
            if key in appending.acked:
                once = without_repeats(numbers)
                assert once == sorted(once)
                # What was surely not appended never came.
                assert not {(key, number) for number in once} & appending.refused


async def test_a_silent_broker_is_no_endless_wait(broker: KafkaBroker, cluster: Cluster) -> None:
    """A broker that takes connections and answers nothing: appends end in seconds, later ones at once."""
    async with opened_writer(cluster) as writer:
        await writer.append([Record(b"k", b"0")])
        broker.still()
        try:
            start = time.monotonic()
            with pytest.raises(LaneUnavailable) as caught:
                await writer.append([Record(b"k", b"1")])
            assert caught.value.unknown
            assert time.monotonic() - start < 6.0
            start = time.monotonic()
            with pytest.raises(LaneUnavailable) as caught:
                await writer.append([Record(b"k", b"2")])
            assert not caught.value.unknown
            assert time.monotonic() - start < 0.5
            with pytest.raises(LaneUnavailable):
                await writer.backlog()
        finally:
            broker.wake()

        async def goes_on() -> bool:
            with contextlib.suppress(LaneUnavailable):
                await writer.append([Record(b"k", b"3")])
                return True
            return False

        await until(goes_on, 20.0, "appends are taken again")
        async with opened_reader(cluster) as reader:
            reading = Reading(reader)
            async with running(reading):
                await until(lambda: 3 in reading.came.get(b"k", []), 20.0, "the last record")
            assert reading.came[b"k"][0] == 0
            assert reading.came[b"k"][-1] == 3
            assert 2 not in reading.came[b"k"]


async def test_processes_share_a_lane(cluster: Cluster) -> None:
    """Two readers have different partitions; when one leaves, the other has all, and nothing is lost or comes twice."""
    async with opened_writer(cluster) as writer, opened_reader(cluster) as first:
        appending, one = Appending(writer), Reading(first)
        async with running(one), running(appending):
            await until(lambda: len(first.partitions) == 4, 20.0, "one reader has every partition")
            async with opened_reader(cluster) as second:
                other = Reading(second)
                async with running(other):
                    await until(lambda: len(second.partitions) == 2, 20.0, "the lane is shared")
                    await until(lambda: len(first.partitions) == 2, 20.0, "the lane is shared")
                    assert not first.partitions & second.partitions
                    await until(lambda: len(other.positions) > 500, 20.0, "both read")
                    assert {partition_of(position) for position in other.positions[-100:]} <= second.partitions
                await other.commit()
            await until(lambda: len(first.partitions) == 4, 20.0, "one reader has every partition again")
            count = appending.count
            await until(lambda: appending.count > count + 500, 20.0, "it goes on")
            appending.end()
            await until(lambda: is_complete(appending, one, other), 30.0, "everything came")
        positions = one.positions + other.positions
        assert len(positions) == len(set(positions))


async def test_a_process_that_dies_leaves_its_partitions(cluster: Cluster) -> None:
    """A reader that vanishes without a word is counted by the next one, which gets what was not committed."""
    async with opened_writer(cluster) as writer:
        await writer.append([Record(b"%d" % number, b"%d" % number) for number in range(100)])
        dead = KafkaLaneReader(LANE, cluster=cluster, clock=SystemClock())
        await dead.open()
        assert await dead.begin_life() == 0
        found = list(await dead.read(10, 20.0))
        await dead.commit(found[-1].position)
        # As a killed process: its heart stops, nobody says goodbye.
        await _vanish(dead)
        async with opened_reader(cluster) as heir:
            reading = Reading(heir)
            assert await heir.begin_life() == 1
            async with running(reading):
                await until(lambda: len(reading.positions) == 90, 30.0, "the rest came")
            await heir.end_life()
        async with opened_reader(cluster) as next_one:
            assert await next_one.begin_life() == 0
        await dead.close()


async def test_a_stalled_process_comes_back(cluster: Cluster) -> None:
    """Longer than the group waits for its heart: its partitions come back, and what was not committed comes again."""
    async with opened_writer(cluster) as writer, opened_reader(cluster) as reader:
        await writer.append([Record(b"%d" % number, b"%d" % number) for number in range(100)])
        reading = Reading(reader)
        async with running(reading):
            await until(lambda: len(reading.positions) == 100, 20.0, "all came")
            await until(lambda: _is_committed(reader), 20.0, "all is committed")
        # One more record is read, and its commit comes too late.
        await writer.append([Record(b"late", b"100")])
        (late,) = await reader.read(10, 20.0)
        threading.Event().wait(12.0)
        await writer.append([Record(b"last", b"101")])
        with contextlib.suppress(LaneUnavailable):
            await reader.commit(late.position)
        async with running(reading):
            await until(lambda: 101 in reading.came.get(b"last", []), 30.0, "it reads on")
            await until(lambda: _is_committed(reader), 20.0, "everything is committed")
    # What it fetched before it noticed that its partitions were gone comes again.
    after = {key: reading.came.pop(key) for key in (b"late", b"last") if key in reading.came}
    assert set(map(len, reading.came.values())) == {1}
    assert all(len(came) <= 2 for came in after.values()), after


async def test_a_commit_that_comes_too_late_moves_nothing_back(cluster: Cluster) -> None:
    """While a process stands still another takes its partitions and goes on; the first one's commit counts no more.

    Neither at once when it goes on, nor when the other is gone again.
    """
    async with opened_writer(cluster) as writer, opened_reader(cluster) as reader:
        await writer.append([Record(b"key", b"%d" % number) for number in range(10)])
        first = (await reader.read(1, 20.0))[0]
        heir = Heir(cluster, 10)
        # This loop stands still, and with it the heart that the group hears, until the other has everything.
        heir.take_over()
        with contextlib.suppress(LaneUnavailable):
            await reader.commit(first.position)
        # A group without members takes a commit of nobody.
        heir.leave()
        with contextlib.suppress(LaneUnavailable):
            await reader.commit(first.position)
        assert (await reader.lag()).record_count == 0
        await writer.append([Record(b"key", b"10")])
        reading = Reading(reader)
        async with running(reading):
            await until(lambda: 10 in reading.came.get(b"key", ()), 30.0, "it reads on")
            await until(lambda: _is_committed(reader), 20.0, "it commits what it read")
    # What it had fetched before it stood still may come once more, in its order.
    assert reading.came[b"key"] == sorted(reading.came[b"key"])


class Heir:
    """A reader in a thread and a loop of its own: it goes on while the test's loop stands still.

    Args:
        cluster: where.
        count: so many records are to be read and committed.
    """

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster = cluster
        self._count = count
        self._done = threading.Event()
        self._left = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def take_over(self) -> None:
        """Returns, without letting the caller's loop run, when everything is read and committed."""
        self._thread.start()
        assert self._done.wait(60.0)

    def leave(self) -> None:
        """Leaves the group."""
        self._left.set()
        self._thread.join(20.0)

    async def _run(self) -> None:
        async with opened_reader(self._cluster) as reader:
            reading = Reading(reader)
            async with running(reading):
                await until(lambda: len(reading.positions) == self._count, 50.0, "the heir reads everything")
                await until(lambda: _is_committed(reader), 20.0, "the heir commits everything")
                self._done.set()
                await until(self._left.is_set, 60.0, "the heir is to leave")


async def _is_committed(reader: KafkaLaneReader) -> bool:
    with contextlib.suppress(LaneUnavailable):
        return (await reader.lag()).record_count == 0
    return False


async def _vanish(reader: KafkaLaneReader) -> None:
    consumer = reader._consumer
    assert consumer is not None
    await consumer._consumer._client.close()
    coordinator = consumer._consumer._coordinator
    for task in (coordinator._heartbeat_task, coordinator._coordination_task):
        task.cancel()
    await asyncio.gather(coordinator._heartbeat_task, coordinator._coordination_task, return_exceptions=True)


async def test_a_topic_may_grow(cluster: Cluster) -> None:
    """Records in a partition that was added later come from its first one on, without a restart."""
    admin = Admin(cluster)
    async with opened_writer(cluster) as writer, opened_reader(cluster) as reader:
        appending, reading = Appending(writer), Reading(reader)
        async with running(reading), running(appending):
            await until(lambda: len(reader.partitions) == 4, 20.0, "four partitions")
            await admin.grow(f"{cluster.prefix}.{LANE}", 6)
            await until(lambda: len(reader.partitions) == 6, 60.0, "six partitions")
            await until(lambda: len({partition_of(one) for one in reading.positions}) == 6, 60.0, "all have records")
            appending.end()
            await until(lambda: is_complete(appending, reading), 30.0, "everything came")
        assert len(reading.positions) == len(set(reading.positions))
    await admin.close()

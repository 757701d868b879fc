"""The producer and the consumers of Kafka, with types. See `mesh.kafka`; must not know what a topic is for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import aiokafka
from aiokafka import errors as kafka_errors
from aiokafka.structs import TopicPartition

from mesh.kafka import FAILURES, REQUEST_TIMEOUT_S, Cluster, KafkaUnavailable, translated

_STOP_LIMIT_S: Final = 3.0
_SESSION_S: Final = 10.0
_HEARTBEAT_S: Final = 1.0
# Whoever does not read for long keeps its partitions: the heartbeat says whether the process lives.
_LONGEST_PAUSE_MS: Final = 2**31 - 1
_PAGE_BYTES: Final = 1024 * 1024
# What one batch may hold, far above any topic's limit: the caller cuts them.
_LARGEST_BATCH: Final = 64 * 1024 * 1024


# Key, value (None deletes the key in a compacted topic) and Unix time in milliseconds.
Row: TypeAlias = tuple[bytes, bytes | None, int]


class OutOfRange(Exception):
    """The next record of a partition is not there any more, or not yet.

    Attributes:
        partition: which.
        offset: where the consumer wanted to go on.
    """

    def __init__(self, partition: int, offset: int) -> None:
        super().__init__(f"partition {partition} has no offset {offset}")
        self.partition = partition
        self.offset = offset


# ---------------------------------------------------------------- producer


class Producer:
    """Appends batches, each whole or not at all, in order and once: idempotent, acknowledged by all in-sync replicas.

    It repeats a batch whose fate it does not know until it knows it. After a failure it must be replaced: the broker
    expects the batch that is missing.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer: Any = None

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaUnavailable: Kafka does not answer.
        """
        producer = aiokafka.AIOKafkaProducer(
            **self._cluster.connection(), acks="all", enable_idempotence=True, max_batch_size=_LARGEST_BATCH
        )
        try:
            with translated(f"{self._cluster.text}: not reached"):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await producer.start()
        except BaseException:
            await _stop(producer)
            raise
        self._producer = producer

    async def partitions(self, topic: str) -> Sequence[int]:
        """Returns the partitions of a topic, as of some seconds ago.

        Raises:
            KafkaUnavailable: there is no such topic, or nobody to ask.
        """
        with translated(f"topic {topic}"):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return sorted(await self._producer.partitions_for(topic))

    async def send(self, topic: str, partition: int, rows: Iterable[Row]) -> int:
        """Appends rows as one batch; returns the offset of the first, or a negative number when it is not known.

        Raises:
            KafkaUnavailable: see its attributes.
        """
        with translated(f"topic {topic}", unknown=True):
            batch = self._producer.create_batch()
            for key, value, time_ms in rows:
                batch.append(timestamp=time_ms, key=key, value=value)
            batch.close()
            answer = await (await self._producer.send_batch(batch, topic, partition=partition))
            return int(answer.offset)

    async def stop(self) -> None:
        """Waits a moment for what is under way, and disconnects."""
        if self._producer is not None:
            await _stop(self._producer)
            self._producer = None


async def _stop(client: Any) -> None:
    # With nobody at the other end the goodbye would wait for its answer.
    with contextlib.suppress(*FAILURES):
        async with asyncio.timeout(_STOP_LIMIT_S):
            await client.stop()


# ---------------------------------------------------------------- consumers


class Fetched(Protocol):
    """A record as the client returns it; the timestamp is in milliseconds."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class GroupConsumer:
    """A member of a group that shares the partitions of one topic. Commits nothing by itself.

    Args:
        cluster: where.
        topic: what is read.
        group: its name.
        member: tells this member from the others, see `mesh.kafka_admin.Admin.members`.
        revoked: told before partitions go away.
        assigned: told which partitions there are from now on.
        changed: told that something about the topic may have changed.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        topic: str,
        group: str,
        member: str,
        revoked: Callable[[], Awaitable[None]],
        assigned: Callable[[frozenset[int]], None],
        changed: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._listener = _listener(revoked, assigned)
        self._changed = changed
        self._cluster = cluster
        self._consumer = aiokafka.AIOKafkaConsumer(
            **cluster.connection(),
            group_id=group,
            client_id=member,
            enable_auto_commit=False,
            auto_offset_reset="none",
            session_timeout_ms=int(_SESSION_S * 1000),
            heartbeat_interval_ms=int(_HEARTBEAT_S * 1000),
            max_poll_interval_ms=_LONGEST_PAUSE_MS,
            isolation_level="read_committed",
        )

    async def start(self) -> None:
        """Connects, and begins to join the group; does not wait for partitions.

        Raises:
            KafkaUnavailable: Kafka does not answer.
        """
        try:
            with translated(f"{self._cluster.text}: not reached"):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await self._consumer.start()
            self._consumer.subscribe([self._topic], listener=self._listener)
            _refuse_commits_of_nobody(self._consumer._coordinator)
            # The client tells nobody that a topic was made anew; it looks at the topic after every fetch that failed.
            self._consumer._client.cluster.add_listener(lambda _: self._changed())
        except BaseException:
            await _stop(self._consumer)
            raise

    async def poll(self, limit: int, wait: float) -> Mapping[int, Sequence[Fetched]]:
        """Returns the next records of each partition, at most `limit` in all; nothing when none come in time.

        Raises:
            OutOfRange: a partition has nothing where this consumer is.
            KafkaUnavailable: the consumer must be replaced.
        """
        try:
            with translated(f"topic {self._topic}"), contextlib.suppress(kafka_errors.NoOffsetForPartitionError):
                async with asyncio.timeout(wait + 0.001) as scope:
                    pages = await self._consumer.getmany(timeout_ms=int(wait * 1000), max_records=limit)
                    return {place.partition: page for place, page in pages.items()}
        except KafkaUnavailable as failure:
            cause = failure.__cause__
            if isinstance(cause, kafka_errors.OffsetOutOfRangeError):
                for place, offset in cause.args[0].items():
                    raise OutOfRange(place.partition, offset) from None
            if not (isinstance(cause, TimeoutError) and scope.expired()):
                raise
        return {}

    def seek(self, partition: int, offset: int) -> None:
        """Goes on with this offset, unless the partition is away."""
        with contextlib.suppress(kafka_errors.IllegalStateError):
            self._consumer.seek(TopicPartition(self._topic, partition), offset)

    async def commit(self, offsets: Mapping[int, int], generation: int) -> None:
        """Stores the offset of the next record of each partition, as a member of this generation of the group.

        Raises:
            KafkaUnavailable: see its attributes.
        """
        if generation != self.generation:
            raise KafkaUnavailable(f"topic {self._topic}: not committed: the group is another one", old_generation=True)
        with translated(f"topic {self._topic}: not committed"):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._consumer.commit({TopicPartition(self._topic, one): at for one, at in offsets.items()})

    @property
    def generation(self) -> int:
        """Grows by one whenever the group shares its partitions anew."""
        return int(self._consumer._coordinator.generation)

    async def stop(self) -> None:
        """Leaves the group and disconnects."""
        await _stop(self._consumer)


def _refuse_commits_of_nobody(coordinator: Any) -> None:
    """Lets a commit fail whose request would name no generation.

    The client forgets its own when the group does not know it any more. A group without members takes such a commit,
    whatever was committed since.
    """
    send = coordinator._do_commit_offsets

    async def send_as_a_member(assignment: object, offsets: object) -> None:
        if coordinator.generation < 0:
            raise kafka_errors.UnknownMemberIdError(coordinator.group_id)
        await send(assignment, offsets)

    coordinator._do_commit_offsets = send_as_a_member


def _listener(revoked: Callable[[], Awaitable[None]], assigned: Callable[[frozenset[int]], None]) -> Any:
    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # Untyped: the package has no types.
        async def on_partitions_revoked(self, _: Any) -> None:
            await revoked()

        async def on_partitions_assigned(self, places: Any) -> None:
            assigned(frozenset(place.partition for place in places))

    return Listener()


class Replay:
    """Reads what partitions of one topic hold between two offsets each, in no group; one reading at a time.

    Keeps its connection, and connects again by itself.

    Args:
        cluster: where.
        topic: its name.
        page_bytes: what a fetch of one partition brings, or one batch where that is larger.
    """

    def __init__(self, cluster: Cluster, topic: str, *, page_bytes: int = _PAGE_BYTES) -> None:
        self._cluster = cluster
        self._topic = topic
        self._page_bytes = page_bytes
        self._consumer: Any = None
        self._turn = asyncio.Lock()

    async def read(self, spans: Mapping[int, tuple[int, int]], take: Callable[[Fetched], bool]) -> None:
        """Hands records to `take`, in the order of each partition, until it says False.

        Args:
            spans: partition → first offset, and the one behind the last.
            take: gets each record; False ends the reading.

        Raises:
            KafkaUnavailable: not everything could be read.
        """
        open_spans = {one: span for one, span in spans.items() if span[0] < span[1]}
        if not open_spans:
            return
        async with self._turn:
            try:
                with translated(f"topic {self._topic}: not read"):
                    await self._read(open_spans, take)
                    self._consumer.unsubscribe()
            except BaseException:
                await self._disconnect()
                raise

    async def close(self) -> None:
        """Disconnects; harmless when not connected."""
        async with self._turn:
            await self._disconnect()

    async def _read(self, spans: dict[int, tuple[int, int]], take: Callable[[Fetched], bool]) -> None:
        async with asyncio.timeout(REQUEST_TIMEOUT_S) as scope:
            if self._consumer is None:
                self._consumer = aiokafka.AIOKafkaConsumer(
                    **self._cluster.connection(),
                    auto_offset_reset="earliest",
                    max_partition_fetch_bytes=self._page_bytes,
                )
                await self._consumer.start()
            consumer = self._consumer
            places = {one: TopicPartition(self._topic, one) for one in spans}
            consumer.assign(list(places.values()))
            for one, place in places.items():
                consumer.seek(place, spans[one][0])
            while spans:
                pages = await consumer.getmany(timeout_ms=200)
                # However much there is: it is late only when nothing comes.
                if pages:
                    scope.reschedule(asyncio.get_running_loop().time() + REQUEST_TIMEOUT_S)
                for place, page in pages.items():
                    for record in page:
                        if record.offset < spans[place.partition][1] and not take(record):
                            return
                    # By position: in a compacted topic the last offsets may hold nothing.
                    if await consumer.position(place) >= spans[place.partition][1]:
                        del spans[place.partition]
                        consumer.pause(place)

    async def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await _stop(consumer)

"""Batches on their way to a Kafka topic: calls that overlap share one, and each learns its own end.

While a batch of a partition is under way, what comes for it waits and makes the next one: batches grow with the load,
and an idle lane waits for nothing. A batch is appended whole or not at all. It must not choose partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from mesh.kafka import Cluster, KafkaUnavailable
from mesh.kafka_clients import Producer, Row
from mesh.lanes import LaneUnavailable

# A batch with no answer for so long may be anywhere: its calls are told so, and later ones are refused at once.
ANSWER_LIMIT_S: Final = 3.0
# Together with a record of the largest size it stays below what a topic must take.
_BATCH_BYTES: Final = 1024 * 1024
_ROW_BYTES: Final = 24
# After a failed connection nobody tries again for so long.
_PAUSE_S: Final = 0.5


class _Part:
    """The rows of one call for one partition."""

    __slots__ = ("done", "rows", "size")

    def __init__(self, rows: Sequence[Row], done: asyncio.Future[None]) -> None:
        self.rows = rows
        self.size = sum(len(key) + len(value or b"") + _ROW_BYTES for key, value, _ in rows)
        self.done = done


class _Partition:
    """What waits for one partition; one batch of it is under way."""

    __slots__ = ("number", "pending", "stalled", "work")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pending: deque[_Part] = deque()
        self.stalled = False
        self.work: asyncio.Task[None] | None = None

    def take(self) -> list[_Part]:
        """Takes calls for the next batch, at least one; those given up meanwhile are left out."""
        parts: list[_Part] = []
        size = 0
        while self.pending and (not parts or size + self.pending[0].size <= _BATCH_BYTES):
            part = self.pending.popleft()
            if not part.done.done():
                parts.append(part)
                size += part.size
        return parts


class _Connection:
    """A producer, and how many batches it has under way."""

    __slots__ = ("batches", "producer", "retired")

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.batches = 0
        self.retired = False


class Feed:
    """Appends to one topic.

    Args:
        cluster: where.
        topic: its name.
        what: begins every message.
        appended: told partition, offset and rows of each batch.
        answer_limit: seconds that a batch may be under way before its calls are told that nobody knows.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        what: str,
        appended: Callable[[int, int, Sequence[Row]], None] | None = None,
        answer_limit: float = ANSWER_LIMIT_S,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._what = what
        self._appended = appended
        self._limit = answer_limit
        self._partitions: dict[int, _Partition] = {}
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._failed: tuple[float, KafkaUnavailable] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    async def partitions(self) -> Sequence[int]:
        """Returns the partitions of the topic.

        Raises:
            LaneUnavailable: they are not known.
        """
        try:
            return await (await self._connect()).producer.partitions(self._topic)
        except KafkaUnavailable as failure:
            raise self._refusal(failure, unknown=False) from failure

    async def put(self, partition: int, rows: Sequence[Row]) -> None:
        """Appends rows next to each other, in their order, all or none; durable on return.

        Raises:
            LaneUnavailable: none was, or with `unknown` set perhaps all were.
        """
        feed = self._partitions.get(partition)
        if feed is None:
            feed = self._partitions[partition] = _Partition(partition)
        if feed.stalled:
            raise LaneUnavailable(f"{self._what}: partition {partition} does not answer")
        loop = asyncio.get_running_loop()
        part = _Part(rows, loop.create_future())
        feed.pending.append(part)
        if feed.work is None:
            feed.work = loop.create_task(self._work(feed))
        await part.done

    async def close(self) -> None:
        """Finishes what is under way, as far as that is possible soon, and disconnects."""
        tasks = [feed.work for feed in self._partitions.values() if feed.work is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._limit)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.producer.stop()
        if self._stopping:
            await asyncio.wait(self._stopping)

    async def _work(self, feed: _Partition) -> None:
        try:
            while feed.pending:
                # Whoever comes in the same turn of the loop shares the batch.
                await asyncio.sleep(0)
                if parts := feed.take():
                    await self._send(feed, parts)
        finally:
            feed.work = None
            self._fail([*feed.pending], LaneUnavailable(f"{self._what}: closed"))
            feed.pending.clear()

    async def _send(self, feed: _Partition, parts: list[_Part]) -> None:
        rows = [row for part in parts for row in part.rows]
        try:
            connection = await self._connect()
        except KafkaUnavailable as failure:
            self._fail(parts, self._refusal(failure, unknown=False))
            return
        connection.batches += 1
        watch = asyncio.get_running_loop().call_later(self._limit, self._stall, feed, parts)
        try:
            offset = await connection.producer.send(self._topic, feed.number, rows)
        except KafkaUnavailable as failure:
            self._retire(connection)
            if not failure.too_large or len(parts) == 1:
                self._fail(parts, self._refusal(failure, unknown=failure.unknown))
                parts = []
        except BaseException:
            self._fail(parts, LaneUnavailable(f"{self._what}: given up", unknown=True))
            raise
        else:
            self._succeed(feed, parts, offset, rows)
            parts = []
        finally:
            watch.cancel()
            feed.stalled = False
            connection.batches -= 1
            self._let_go(connection)
        # Too large together: one call must not harm another.
        for part in parts:
            if not part.done.done():
                await self._send(feed, [part])

    def _succeed(self, feed: _Partition, parts: Sequence[_Part], offset: int, rows: Sequence[Row]) -> None:
        for part in parts:
            if not part.done.done():
                part.done.set_result(None)
        if self._appended is not None and offset >= 0:
            self._appended(feed.number, offset, rows)

    def _stall(self, feed: _Partition, parts: Sequence[_Part]) -> None:
        """Lets nobody wait longer: the batch goes on alone, and shows by its end that the partition answers again."""
        feed.stalled = True
        text = f"{self._what}: partition {feed.number} does not answer"
        self._fail(parts, LaneUnavailable(text, unknown=True))
        self._fail([*feed.pending], LaneUnavailable(text))
        feed.pending.clear()

    def _fail(self, parts: Sequence[_Part], failure: LaneUnavailable) -> None:
        for part in parts:
            if not part.done.done():
                # One for each: a traceback grows with every raise.
                part.done.set_exception(LaneUnavailable(failure.message, unknown=failure.unknown))

    def _refusal(self, failure: KafkaUnavailable, *, unknown: bool) -> LaneUnavailable:
        hint = "; raise max.message.bytes of the topic" if failure.too_large else ""
        return LaneUnavailable(f"{self._what}: {failure.message}{hint}", unknown=unknown)

    async def _connect(self) -> _Connection:
        if self._connection is not None:
            return self._connection
        async with self._connecting:
            if self._connection is None:
                now = asyncio.get_running_loop().time()
                if self._failed is not None and now - self._failed[0] < _PAUSE_S:
                    raise KafkaUnavailable(self._failed[1].message)
                producer = Producer(self._cluster)
                try:
                    await producer.start()
                except KafkaUnavailable as failure:
                    self._failed = (asyncio.get_running_loop().time(), failure)
                    raise
                self._connection, self._failed = _Connection(producer), None
            return self._connection

    def _retire(self, connection: _Connection) -> None:
        # The broker waits for the batch that failed: what comes later needs a producer of its own.
        connection.retired = True
        if self._connection is connection:
            self._connection = None

    def _let_go(self, connection: _Connection) -> None:
        if connection.retired and connection.batches == 0:
            task = asyncio.get_running_loop().create_task(self._stop_quietly(connection.producer))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def _stop_quietly(self, producer: Producer) -> None:
        with contextlib.suppress(KafkaUnavailable):
            await producer.stop()

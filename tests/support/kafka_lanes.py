"""A lane on the Kafka of this run, with topics of its own. It must not assert anything."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from mesh.clock import ManualClock
from mesh.lanes import LaneReader, LaneWriter, open_reader, open_writer
from tests.support.engines import urls
from tests.support.lanes import NAME, LaneCase
from tests.support.wait import until

# Any topic of this size takes the small records of a test, and not the large ones.
_FULL = 20_000


class KafkaLaneCase:
    """A lane in a topic of its own: one partition, so that it has one order."""

    trims_at_once = True

    def __init__(self, url: str, data_dir: Path, run_dir: Path) -> None:
        from mesh.kafka import parse_cluster
        from mesh.kafka_admin import Admin

        self.url = url
        self.data_dir = data_dir
        self.run_dir = run_dir
        # Brokers remove what is older than the retention, by the time of the append.
        self.clock = ManualClock(float(int(time.time())))
        self.cluster = parse_cluster("lanes_url", url)
        self.admin = Admin(self.cluster)
        self._writer: LaneWriter | None = None
        self._reader: LaneReader | None = None

    @property
    def topic(self) -> str:
        """Of the lane."""
        return f"{self.cluster.prefix}.{NAME}"

    async def create(self) -> None:
        """Makes the topics."""
        from mesh.lanes.kafka_topics import MARKS, KafkaLaneAdmin

        await KafkaLaneAdmin(self.cluster, [NAME, MARKS]).create(dry_run=False)
        await until(self._is_there, 10.0, "the topics have leaders")

    async def writer(self) -> LaneWriter:
        """The writing end, opened anew."""
        await self._close_writer()
        self._writer = open_writer(self.url, NAME, data_dir=self.data_dir, run_dir=self.run_dir, clock=self.clock)
        await self._writer.open()
        return self._writer

    async def reader(self) -> LaneReader:
        """The reading end, opened anew."""
        await self._close_reader()
        self._reader = open_reader(
            self.url, NAME, data_dir=self.data_dir, run_dir=self.run_dir, clock=self.clock, positions=None
        )
        await self._reader.open()
        return self._reader

    async def remake(self) -> None:
        """Deletes the topic and makes it again; brokers forget the group's offsets with it."""
        await self._close_writer()
        await self.admin.delete([self.topic])
        await until(self._is_gone, 10.0, "the topic is gone")
        await self.create()

    async def fill_disk(self) -> None:
        """The topic takes small batches only."""
        await self._set({**self._settings(), "max.message.bytes": str(_FULL)})

    async def free_disk(self) -> None:
        """The topic takes what it took before."""
        await self._set(self._settings())

    async def close(self) -> None:
        """Closes both ends and deletes the topics."""
        from mesh.lanes.kafka_topics import MARKS

        await self._close_reader()
        await self._close_writer()
        await self.admin.delete([self.topic, f"{self.cluster.prefix}.{MARKS}"])
        await self.admin.close()

    async def _is_there(self) -> bool:
        topics = await self.admin.topics([self.topic])
        return self.topic in topics and min(topics[self.topic].leaders.values(), default=-1) >= 0

    async def _is_gone(self) -> bool:
        return not await self.admin.topics([self.topic])

    def _settings(self) -> dict[str, str]:
        from mesh.lanes.kafka_topics import settings_of

        return settings_of(self.cluster, NAME)

    async def _set(self, settings: Mapping[str, str]) -> None:
        await self.admin.set(self.topic, settings)
        wanted = settings["max.message.bytes"]

        async def is_set() -> bool:
            return (await self.admin.settings([self.topic]))[self.topic]["max.message.bytes"] == wanted

        await until(is_set, 10.0, "the topic is set")

    async def _close_writer(self) -> None:
        if self._writer is not None:
            await self._writer.close()
            self._writer = None

    async def _close_reader(self) -> None:
        if self._reader is not None:
            await self._reader.close()
            self._reader = None


@contextlib.asynccontextmanager
async def kafka_lane(data_dir: Path, run_dir: Path) -> AsyncIterator[LaneCase]:
    """An empty lane on Kafka."""
    url = f"{urls()['kafka'].rstrip('/')}/test-{uuid.uuid4().hex}?partitions=1&replicas=1"
    case = KafkaLaneCase(url, data_dir, run_dir)
    try:
        await case.create()
        yield case
    finally:
        await case.close()

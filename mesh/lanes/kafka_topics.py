"""The topics of the lanes on Kafka: their names, what each must be set to, and their upkeep.

A lane is a topic, its reading processes are a group of the same name, and what readers note about lanes is in one more
topic. Must not read or write a record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from mesh.errors import StartError
from mesh.kafka import Cluster, KafkaUnavailable
from mesh.kafka_admin import Admin, Topic
from mesh.stores import Finding
from mesh.telemetry import logger

# A call's records for one partition are one batch, and a call has as much as gRPC takes, 4 MiB.
LARGEST_BATCH_BYTES: Final = 8 * 1024 * 1024
RETENTION_MS: Final = 7 * 24 * 3600 * 1000
MARKS: Final = "marks"

_LEADER_LIMIT_S: Final = 10.0
_LEADER_PAUSE_S: Final = 0.1
_COMPACT: Final = "compact"


def topic_of(cluster: Cluster, lane: str) -> str:
    """Returns the topic of a lane; its group has the same name."""
    return f"{cluster.prefix}.{lane}"


def settings_of(cluster: Cluster, lane: str) -> dict[str, str]:
    """Returns what a topic must be set to."""
    found = {
        "min.insync.replicas": str(min(2, cluster.replicas)),
        "unclean.leader.election.enable": "false",
        "max.message.bytes": str(LARGEST_BATCH_BYTES),
    }
    if lane == MARKS:
        return found | {"cleanup.policy": _COMPACT}
    return found | {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS), "retention.bytes": "-1"}


def made_with(cluster: Cluster, lane: str) -> dict[str, str]:
    """Returns what a topic is made with: what it must be set to, and what is good for it."""
    # Marks are read whole: they are cleaned soon, and only closed segments are.
    small = {"segment.bytes": str(4 * LARGEST_BATCH_BYTES), "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}
    return settings_of(cluster, lane) | (small if lane == MARKS else {})


def judge(cluster: Cluster, lane: str, topic: Topic | None, settings: Mapping[str, str]) -> Finding:
    """Says whether a topic keeps what a lane promises; names the first setting that does not."""
    name = topic_of(cluster, lane)
    partitions = 1 if lane == MARKS else cluster.partitions
    if topic is None:
        return Finding(f"topic {name}", "missing", "is not there")
    wrong = ""
    if len(topic.leaders) < partitions:
        wrong = f"has {len(topic.leaders)} partitions, must have {partitions}"
    elif lane == MARKS and len(topic.leaders) > 1:
        wrong = f"has {len(topic.leaders)} partitions, must have one"
    elif topic.replicas < cluster.replicas:
        wrong = f"has {topic.replicas} replicas, must have {cluster.replicas}"
    else:
        wanted = settings_of(cluster, lane)
        for key, value in wanted.items():
            if not _is_enough(key, settings.get(key, ""), value):
                wrong = f"{key} is {settings.get(key, '') or 'not set'}, must be {value}"
                break
    return Finding(f"topic {name}", "wrong" if wrong else "ok", wrong)


def _is_enough(key: str, value: str, wanted: str) -> bool:
    if key == "retention.ms" and value == "-1":
        return True
    if key in ("min.insync.replicas", "max.message.bytes", "retention.ms"):
        return value.lstrip("-").isdigit() and int(value) >= int(wanted)
    return value == wanted


class KafkaLaneAdmin:
    """The upkeep of some lanes of one Kafka.

    Args:
        cluster: where.
        lanes: their names.
    """

    what = "event lanes"

    def __init__(self, cluster: Cluster, lanes: Sequence[str]) -> None:
        self._cluster = cluster
        self._lanes = lanes

    @property
    def url(self) -> str:
        """Where it is."""
        return self._cluster.text

    async def check(self) -> Sequence[Finding]:
        """Compares every topic with what it must be."""
        if self._cluster.replicas == 1:
            logger().warning("one_replica", where=self.url, consequence="the loss of one broker loses what it holds")
        admin = Admin(self._cluster)
        try:
            names = [topic_of(self._cluster, lane) for lane in self._lanes]
            topics = await admin.topics(names)
            settings = await admin.settings([name for name in names if name in topics]) if topics else {}
        except KafkaUnavailable as failure:
            raise self._refused(failure) from failure
        finally:
            await admin.close()
        return [
            judge(self._cluster, lane, topics.get(name), settings.get(name, {}))
            for lane, name in zip(self._lanes, names, strict=True)
        ]

    async def create(self, *, dry_run: bool) -> Sequence[str]:
        """Makes the topics that are not there."""
        admin = Admin(self._cluster)
        made: list[str] = []
        try:
            there = await admin.topics([topic_of(self._cluster, lane) for lane in self._lanes])
            for lane in self._lanes:
                name = topic_of(self._cluster, lane)
                partitions = 1 if lane == MARKS else self._cluster.partitions
                if name in there:
                    continue
                if dry_run or await admin.create(
                    name,
                    partitions=partitions,
                    replicas=self._cluster.replicas,
                    settings=made_with(self._cluster, lane),
                ):
                    made.append(f"topic {name}: {partitions} partitions, {self._cluster.replicas} replicas")
            if made and not dry_run:
                await self._await_leaders(admin)
        except KafkaUnavailable as failure:
            raise self._refused(failure) from failure
        finally:
            await admin.close()
        return made

    async def migrate(self, *, dry_run: bool) -> Sequence[str]:
        """There is no schema."""
        return []

    async def _await_leaders(self, admin: Admin) -> None:
        """Brokers learn of new topics a moment after the controller has made them, each by itself."""
        names = {topic_of(self._cluster, lane) for lane in self._lanes}
        # They are made, whatever becomes of the wait.
        with contextlib.suppress(TimeoutError, KafkaUnavailable):
            async with asyncio.timeout(_LEADER_LIMIT_S):
                for broker in await admin.brokers():
                    while True:
                        if _is_led(await admin.topics(sorted(names), broker=broker), names):
                            break
                        await asyncio.sleep(_LEADER_PAUSE_S)

    def _refused(self, failure: KafkaUnavailable) -> StartError:
        return StartError(f"{self.what}: {failure.message}; see that it runs, and that the URL and its files are right")


def _is_led(topics: Mapping[str, Topic], names: Collection[str]) -> bool:
    return all(name in topics and min(topics[name].leaders.values(), default=-1) >= 0 for name in names)

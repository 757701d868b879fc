"""Questions to Kafka: topics, their settings, offsets, groups. See `mesh.kafka`; must not know what a topic is for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final, TypeAlias, TypeVar

import aiokafka.admin
import msgspec
from aiokafka import errors as kafka_errors
from aiokafka.protocol.admin import DeleteGroupsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields
from aiokafka.structs import TopicPartition

from mesh.kafka import FAILURES, REQUEST_TIMEOUT_S, Cluster, KafkaUnavailable, translated

FIRST: Final = -2
END: Final = -1

_DESCRIPTION_AGE_S: Final = 10.0
_READ_COMMITTED: Final = 1
_TOPIC_RESOURCE: Final = 2
_EXISTS: Final = 36
_RETRY_S: Final = 0.1
_NOT_YET: Final = (
    kafka_errors.GroupCoordinatorNotAvailableError,
    kafka_errors.GroupLoadInProgressError,
    kafka_errors.NotCoordinatorForGroupError,
)

T = TypeVar("T")


class Topic(msgspec.Struct, frozen=True):
    """A topic as the brokers know it.

    Attributes:
        id: another one when the topic was deleted and made anew.
        leaders: partition → broker; -1 while it has none.
        replicas: copies of the partition that has the fewest.
    """

    id: str
    leaders: Mapping[int, int]
    replicas: int


class _Uuid:
    @staticmethod
    def encode(value: bytes) -> bytes:
        return value

    @staticmethod
    def decode(data: BytesIO) -> bytes:
        return data.read(16)

    @staticmethod
    def repr(value: bytes) -> str:
        return value.hex()


_TAGS: Final = ("tags", TaggedFields)


# The client's own request for metadata is older than the ids of topics.
class _TopicsAnswer(Response):  # type: ignore[misc]  # Untyped: the package has no types.
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                _TAGS,
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("in_sync", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class _TopicsStruct(RequestStruct):  # type: ignore[misc]  # Untyped: the package has no types.
    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _TopicsAnswer
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_operations", Boolean),
        _TAGS,
    )


_TopicsForm: TypeAlias = _TopicsStruct


class _TopicsRequest(Request[_TopicsForm]):  # type: ignore[misc]  # Untyped: the package has no types.
    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([(bytes(16), name, {}) for name in self._topics], False, False, {})


class Admin:
    """Asks one question at a time or several; connects at the first one, and again by itself."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin: Any = None
        self._starting = asyncio.Lock()
        self._known: dict[str, tuple[float, Topic]] = {}
        self._coordinators: dict[str, int] = {}

    async def close(self) -> None:
        """Disconnects; the next question would connect again."""
        if self._admin is not None:
            admin, self._admin = self._admin, None
            with contextlib.suppress(*FAILURES):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await admin.close()

    async def brokers(self) -> Sequence[int]:
        """Returns the brokers that are there.

        Raises:
            KafkaUnavailable: nobody answers.
        """
        answer = await self._ask("brokers", lambda admin: admin._send_request(_TopicsRequest([])))
        return [node for node, *_ in answer.brokers]

    async def topics(self, names: Sequence[str], *, broker: int | None = None) -> Mapping[str, Topic]:
        """Describes those of the topics that exist.

        Args:
            names: of the topics.
            broker: who is asked; None: any. What was made a moment ago is not known to each.

        Raises:
            KafkaUnavailable: nobody answers, or an answer is no answer.
        """
        found: dict[str, Topic] = {}
        answer = await self._ask("topics", lambda admin: admin._send_request(_TopicsRequest(names), broker))
        for error, name, topic_id, _, partitions, *_ in answer.topics:
            kind = kafka_errors.for_code(error)
            if kind is kafka_errors.UnknownTopicOrPartitionError:
                continue
            if kind is not kafka_errors.NoError and kind is not kafka_errors.LeaderNotAvailableError:
                raise KafkaUnavailable(f"topic {name}: {kind.__name__}", denied="Authorization" in kind.__name__)
            leaders = {partition: leader for _, partition, leader, *_ in partitions}
            copies = [len(replicas) for _, _, _, _, replicas, *_ in partitions]
            found[name] = Topic(topic_id.hex(), leaders, min(copies, default=0))
        now = asyncio.get_running_loop().time()
        self._known |= {name: (now, topic) for name, topic in found.items()}
        return found

    async def topic(self, name: str, *, fresh: bool = False) -> Topic:
        """Describes a topic, as it was ten seconds ago at most.

        Raises:
            KafkaUnavailable: there is no such topic, or nobody answers.
        """
        known = self._known.get(name)
        if not fresh and known is not None and asyncio.get_running_loop().time() - known[0] < _DESCRIPTION_AGE_S:
            return known[1]
        self._known.pop(name, None)
        found = (await self.topics([name])).get(name)
        if found is None:
            raise KafkaUnavailable(f"topic {name} does not exist")
        return found

    async def offsets(self, name: str, when: Mapping[int, int]) -> dict[int, int]:
        """Returns an offset for each partition: of the first record, behind the last, or the first not before a time.

        Args:
            name: of the topic.
            when: partition → `FIRST`, `END`, or Unix time in milliseconds; a partition that has nothing as new as that
                is not in the answer.

        Raises:
            KafkaUnavailable: not all are known.
        """
        topic = await self.topic(name)
        by_leader: dict[int, list[tuple[int, int]]] = {}
        for partition, moment in when.items():
            by_leader.setdefault(topic.leaders.get(partition, -1), []).append((partition, moment))
        found: dict[int, int] = {}
        for leader, asked in by_leader.items():
            request = OffsetRequest(-1, _READ_COMMITTED, [(name, asked)])
            answer = await self._ask(f"offsets of {name}", _sending(leader, request))
            for _, partitions in answer.topics:
                for partition, error, _, offset in partitions:
                    if error:
                        self._known.pop(name, None)
                        raise KafkaUnavailable(f"topic {name}: {kafka_errors.for_code(error).__name__}")
                    if offset >= 0:
                        found[partition] = offset
        return found

    async def committed(self, group: str, name: str, partitions: Sequence[int]) -> dict[int, int]:
        """Returns the committed offsets of a group; a partition without one is not in it.

        Raises:
            KafkaUnavailable: they are not known.
        """
        places = [TopicPartition(name, partition) for partition in partitions]

        async def ask(admin: Any) -> Any:
            if group not in self._coordinators:
                self._coordinators[group] = await admin.find_coordinator(group)
            try:
                return await admin.list_consumer_group_offsets(group, self._coordinators[group], places)
            except BaseException:
                self._coordinators.pop(group, None)
                raise

        answer = await self._ask(f"offsets of group {group}", ask)
        return {place.partition: one.offset for place, one in answer.items() if one.offset >= 0}

    async def delete_before(self, name: str, offsets: Mapping[int, int]) -> None:
        """Deletes the records before an offset of each partition.

        Raises:
            KafkaUnavailable: perhaps not all of them.
        """
        wanted = {TopicPartition(name, one): aiokafka.admin.RecordsToDelete(at) for one, at in offsets.items()}
        await self._ask(f"records of {name}", lambda admin: admin.delete_records(wanted))

    async def members(self, group: str) -> frozenset[str]:
        """Returns the names of a group's members, as they gave them.

        Raises:
            KafkaUnavailable: they are not known.
        """
        (answer,) = await self._ask(f"group {group}", lambda admin: admin.describe_consumer_groups([group]))
        return frozenset(member[1] if len(member) == 5 else member[2] for one in answer.groups for member in one[5])

    async def forget_group(self, group: str) -> None:
        """Deletes a group that has no members, with its offsets.

        Raises:
            KafkaUnavailable: it was not, or is not known to be, deleted.
        """

        async def ask(admin: Any) -> Any:
            coordinator = await admin.find_coordinator(group)
            return await admin._send_request(DeleteGroupsRequest([group]), coordinator)

        answer = await self._ask(f"group {group}", ask)
        for _, error in answer.results:
            if error:
                raise KafkaUnavailable(f"group {group}: {kafka_errors.for_code(error).__name__}")

    async def settings(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Returns every setting of topics that exist.

        Raises:
            KafkaUnavailable: they are not known.
        """
        kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
        asked = [aiokafka.admin.config_resource.ConfigResource(kind, name) for name in names]
        found: dict[str, Mapping[str, str]] = {}
        for answer in await self._ask("settings", lambda admin: admin.describe_configs(asked)):
            for error, text, _, name, entries in answer.resources:
                if error:
                    raise KafkaUnavailable(f"settings of {name}: {text or kafka_errors.for_code(error).__name__}")
                found[name] = {entry[0]: entry[1] or "" for entry in entries}
        return found

    async def set(self, name: str, settings: Mapping[str, str]) -> None:
        """Replaces the settings of a topic: those that are not named fall back to the broker's.

        Raises:
            KafkaUnavailable: they were not, or are not known to be, changed.
        """
        kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
        asked = [aiokafka.admin.config_resource.ConfigResource(kind, name, dict(settings))]
        for answer in await self._ask(f"settings of {name}", lambda admin: admin.alter_configs(asked)):
            for error, text, *_ in answer.resources:
                if error:
                    raise KafkaUnavailable(f"settings of {name}: {text}")

    async def create(self, name: str, *, partitions: int, replicas: int, settings: Mapping[str, str]) -> bool:
        """Makes a topic; False when it is there already.

        Raises:
            KafkaUnavailable: it was not, or is not known to be, made.
        """
        topic = aiokafka.admin.NewTopic(name, partitions, replicas, topic_configs=dict(settings))
        answer = await self._ask(f"topic {name}", lambda admin: admin.create_topics([topic]))
        for _, error, *text in answer.topic_errors:
            if error == _EXISTS:
                return False
            if error:
                kind = kafka_errors.for_code(error).__name__
                raise KafkaUnavailable(f"topic {name}: {(text and text[0]) or kind}", denied="Authorization" in kind)
        return True

    async def grow(self, name: str, partitions: int) -> None:
        """Gives a topic more partitions.

        Raises:
            KafkaUnavailable: it was not, or is not known to be, done.
        """
        wanted = {name: aiokafka.admin.NewPartitions(partitions)}
        await self._ask(f"topic {name}", lambda admin: admin.create_partitions(wanted))

    async def delete(self, names: Sequence[str]) -> None:
        """Deletes topics.

        Raises:
            KafkaUnavailable: they were not, or are not known to be, deleted.
        """
        await self._ask("topics", lambda admin: admin.delete_topics(list(names)))

    async def _ask(self, what: str, question: Any) -> Any:
        with translated(f"{self._cluster.text}: {what}", unknown=True):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                while True:
                    try:
                        return await question(await self._client())
                    except _NOT_YET:
                        # The first group of a broker waits for the topic of offsets to be made.
                        await asyncio.sleep(_RETRY_S)

    async def _client(self) -> Any:
        async with self._starting:
            if self._admin is None:
                admin = aiokafka.admin.AIOKafkaAdminClient(**self._cluster.connection())
                try:
                    await admin.start()
                except BaseException:
                    await admin.close()
                    raise
                self._admin = admin
            return self._admin


def _sending(leader: int, request: Any) -> Any:
    return lambda admin: admin._client.send(leader, request)

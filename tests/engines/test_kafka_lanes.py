"""Lanes on Kafka beyond the contract of all lanes: starts that are refused, several partitions, records too large."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.clock import SystemClock
from mesh.errors import StartError
from mesh.kafka import Cluster, parse_cluster
from mesh.kafka_admin import Admin
from mesh.kafka_clients import Producer
from mesh.lanes import LaneUnavailable, PositionLost, Record, Stored, lane_stores, partition_of
from mesh.lanes.kafka import KafkaLaneWriter
from mesh.lanes.kafka_reader import KafkaLaneReader
from mesh.lanes.kafka_topics import MARKS, KafkaLaneAdmin, settings_of, topic_of
from mesh.stores import require_all
from tests.support.engines import urls
from tests.support.wait import until

pytestmark = pytest.mark.engines

LANE = "normal"


def url_of(prefix: str, options: str = "partitions=4&replicas=1") -> str:
    """A prefix on the Kafka of this run."""
    return f"{urls()['kafka'].rstrip('/')}/{prefix}?{options}"


class Ends:
    """A lane with topics of its own and whatever ends of it are open."""

    def __init__(self) -> None:
        self.cluster: Cluster = parse_cluster("lanes_url", url_of(f"test-{uuid.uuid4().hex}"))
        self.admin = Admin(self.cluster)
        self.topic = topic_of(self.cluster, LANE)
        self._open: list[KafkaLaneWriter | KafkaLaneReader] = []

    async def writer(self) -> KafkaLaneWriter:
        """A writing end."""
        writer = KafkaLaneWriter(LANE, cluster=self.cluster, clock=SystemClock())
        await writer.open()
        self._open.append(writer)
        return writer

    async def reader(self) -> KafkaLaneReader:
        """One more reading end."""
        reader = KafkaLaneReader(LANE, cluster=self.cluster, clock=SystemClock())
        await reader.open()
        self._open.append(reader)
        return reader

    async def close(self) -> None:
        """Closes all and deletes the topics."""
        for end in self._open:
            await end.close()
        await self.admin.delete([self.topic, topic_of(self.cluster, MARKS)])
        await self.admin.close()


@pytest.fixture
async def lane() -> AsyncIterator[Ends]:
    """An empty lane of four partitions."""
    ends = Ends()
    await KafkaLaneAdmin(ends.cluster, [LANE, MARKS]).create(dry_run=False)
    try:
        yield ends
    finally:
        await ends.close()


async def read(reader: KafkaLaneReader, count: int) -> list[Stored]:
    """Reads so many records."""
    found: list[Stored] = []

    async def more() -> bool:
        found.extend(await reader.read(100, 1.0))
        return len(found) >= count

    await until(more, 20.0, f"{count} records")
    return found


async def refused(url: str) -> str:
    """Why a start is refused, in one line."""
    with pytest.raises(StartError) as caught:
        await require_all(lane_stores(url, [LANE], reads=True))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- starts


async def test_a_missing_topic_is_named_and_never_made(lane: Ends) -> None:
    """The start says what to do; nothing appears by surprise."""
    prefix = f"test-{uuid.uuid4().hex}"
    text = await refused(url_of(prefix))
    assert f"topic {prefix}.{LANE}" in text
    assert "heliograph stores create" in text
    cluster = parse_cluster("lanes_url", url_of(prefix))
    writer = KafkaLaneWriter(LANE, cluster=cluster, clock=SystemClock())
    with pytest.raises(LaneUnavailable, match="does not exist"):
        await writer.open()
    reader = KafkaLaneReader(LANE, cluster=cluster, clock=SystemClock())
    with pytest.raises(LaneUnavailable, match="does not exist"):
        await reader.open()
    assert await lane.admin.topics([f"{prefix}.{LANE}", f"{prefix}.{MARKS}"]) == {}


async def test_nobody_at_the_address_is_told() -> None:
    """One line with the address, soon."""
    assert "127.0.0.1:9" in await refused("kafka://127.0.0.1:9/hg?replicas=1")


async def test_credentials_where_none_are_taken_are_told(tmp_path: Path) -> None:
    """A listener without authentication ends the connection; the password is in no line."""
    path = tmp_path / "credentials"
    path.write_text("me:open sesame\n", encoding="utf-8")
    text = await refused(url_of("hg", f"replicas=1&credentials={path}"))
    assert "sesame" not in text


async def test_the_setting_that_breaks_a_promise_is_named(lane: Ends) -> None:
    """As brokers have it, not as it was made; a dry run and another create change nothing."""
    wrong = {**settings_of(lane.cluster, LANE), "retention.ms": "60000"}
    await lane.admin.set(lane.topic, wrong)
    (admin,) = lane_stores(lane.cluster.text, [LANE], reads=True)

    async def is_found() -> bool:
        return any("retention.ms is 60000" in one.detail for one in await admin.check())

    await until(is_found, 10.0, "the brokers know the setting")
    assert "retention.ms is 60000" in await refused(lane.cluster.text)
    assert list(await admin.create(dry_run=True)) == []
    assert list(await admin.create(dry_run=False)) == []
    assert "retention.ms is 60000" in await refused(lane.cluster.text)
    assert "1 replicas" in await refused(lane.cluster.text.replace("replicas=1", "replicas=3"))
    assert "4 partitions" in await refused(lane.cluster.text.replace("partitions=4", "partitions=5"))


async def test_create_says_what_it_makes(lane: Ends) -> None:
    """A dry run says the same and makes nothing."""
    prefix = f"test-{uuid.uuid4().hex}"
    (admin,) = lane_stores(url_of(prefix, "partitions=2&replicas=1"), ["high"], reads=True)
    planned = list(await admin.create(dry_run=True))
    assert {one.state for one in await admin.check()} == {"missing"}
    assert list(await admin.create(dry_run=False)) == planned
    assert {one.state for one in await admin.check()} == {"ok"}
    assert list(await admin.migrate(dry_run=False)) == []
    await lane.admin.delete([f"{prefix}.high", f"{prefix}.{MARKS}"])


# ---------------------------------------------------------------- partitions


async def test_records_of_a_key_keep_their_order(lane: Ends) -> None:
    """Over all partitions, whoever appends; one call's records of a partition lie next to each other."""
    writer, other, reader = await lane.writer(), await lane.writer(), await lane.reader()
    await asyncio.gather(
        *(
            (writer, other)[number % 2].append([Record(b"key-%d" % key, b"%d.%d" % (number, key)) for key in range(8)])
            for number in range(50)
        )
    )
    found = await read(reader, 400)
    assert len({partition_of(one.position) for one in found}) > 1
    assert len({one.position for one in found}) == 400
    by_key: dict[bytes, set[int]] = {}
    for one in found:
        by_key.setdefault(one.key, set()).add(partition_of(one.position))
    assert all(len(partitions) == 1 for partitions in by_key.values())
    for mine in range(2):
        for key in by_key:
            numbers = [int(one.value.split(b".")[0]) for one in found if one.key == key]
            assert [n for n in numbers if n % 2 == mine] == sorted(n for n in numbers if n % 2 == mine)


async def test_each_partition_has_its_own_position(lane: Ends) -> None:
    """What was committed of one says nothing about another."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append([Record(b"", b"%d" % number, number % 4) for number in range(40)])
    found = await read(reader, 40)
    for partition in (0, 2):
        await reader.commit(max(one.position for one in found if partition_of(one.position) == partition))
    assert (await reader.lag()).record_count == 20
    backlog = await writer.backlog()
    assert (backlog.record_count, backlog.finished) == (20, 20)
    await reader.close()
    again = await read(await lane.reader(), 20)
    assert {partition_of(one.position) for one in again} == {1, 3}


async def test_a_new_process_goes_on_where_the_last_one_was(lane: Ends) -> None:
    """Position, notes and parked records are where every process finds them."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append([Record(b"k", b"%d" % number) for number in range(5)])
    found = await read(reader, 5)
    await reader.park(found[0], "not understood")
    await reader.note(found[2].position, b"half")
    await reader.commit(found[1].position)
    await reader.close()
    heir = await lane.reader()
    assert [one.value for one in await read(heir, 3)] == [b"2", b"3", b"4"]
    assert await heir.notes() == {found[2].position: b"half"}
    assert [(one.position, one.reason) for one in await heir.parked(5)] == [(found[0].position, "not understood")]


async def test_an_offset_that_expired_is_no_silent_new_start(lane: Ends) -> None:
    """Once the group had an offset, a partition without one stops the lane: it is not known what was finished."""
    writer, reader = await lane.writer(), await lane.reader()
    await writer.append([Record(b"k", b"1")])
    await reader.commit((await read(reader, 1))[0].position)
    await reader.close()
    # As after offsets.retention.minutes: the group is as new.
    await lane.admin.forget_group(lane.topic)
    with pytest.raises(PositionLost):
        await read(await lane.reader(), 1)


# ---------------------------------------------------------------- refusals


async def test_a_record_too_large_is_refused_alone(lane: Ends) -> None:
    """It fails in one line that names the setting, is surely not there, and harms none of those beside it."""
    writer, reader = await lane.writer(), await lane.reader()
    large = bytes(9 * 1024 * 1024)
    ends = await asyncio.gather(
        *(writer.append([Record(b"k", large if number == 3 else b"%d" % number)]) for number in range(8)),
        return_exceptions=True,
    )
    failure = ends.pop(3)
    assert isinstance(failure, LaneUnavailable)
    assert not failure.unknown
    assert "max.message.bytes" in failure.message
    assert "\n" not in failure.message
    assert all(end is None for end in ends)
    assert sorted(one.value for one in await read(reader, 7)) == sorted(b"%d" % n for n in range(8) if n != 3)


async def test_a_call_that_fails_in_part_is_unknown(lane: Ends) -> None:
    """Where one partition took its records and another did not, nobody is told that nothing happened."""
    writer, reader = await lane.writer(), await lane.reader()
    with pytest.raises(LaneUnavailable) as caught:
        await writer.append([Record(b"", b"small", 0), Record(b"", bytes(9 * 1024 * 1024), 1)])
    assert caught.value.unknown
    assert [one.value for one in await read(reader, 1)] == [b"small"]


async def test_a_record_that_another_program_wrote_is_read(lane: Ends) -> None:
    """Without key or value: what it means is for the service to judge, which can park it."""
    reader = await lane.reader()
    producer = Producer(lane.cluster)
    await producer.start()
    await producer.send(lane.topic, 0, [(b"", None, 1_700_000_000_000)])
    await producer.stop()
    (odd,) = await read(reader, 1)
    assert (odd.key, odd.value, odd.append_time) == (b"", b"", 1_700_000_000.0)

"""Retry lanes that processes share: who has what, who takes over. Inboxes in Cassandra, their follow-ups in Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.clock import ManualClock
from mesh.errors import StartError
from mesh.lanes import LaneUnavailable, offset_of, partition_of
from svc_delivery.ports import FollowUpWrite
from svc_delivery.retry_lanes import place_of_record
from svc_delivery.store import InboxStore, open_store, store_admins
from tests.support.engines import urls
from tests.support.follow_ups import fresh_kafka, make
from tests.support.inbox import NOW_US, make_key, make_row
from tests.support.kafka_broker import kafka_broker
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(90)]

COUNT = 40


@contextlib.asynccontextmanager
async def process(folder: Path, lanes: str, name: str) -> AsyncIterator[InboxStore]:
    """A process with rows of its own and shared lanes."""
    with tempfile.TemporaryDirectory(prefix="hg-") as run_dir:
        clock = ManualClock(wall=NOW_US / 1e6)
        store = open_store(f"sqlite:///{name}.db", folder, follow_ups_url=lanes, run_dir=Path(run_dir), clock=clock)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


async def append(store: InboxStore, first: int, count: int = COUNT) -> set[bytes]:
    """Writes rows with a follow-up each that is due at once; returns the names of these."""
    names = [b"%d" % number for number in range(first, first + count)]
    for name in names:
        await store.inbox.write([make_row(int(name))], stamp=NOW_US, follow_up=FollowUpWrite(NOW_US, name))
    return set(names)


async def names(store: InboxStore) -> set[bytes]:
    """What is due."""
    return {record.record for record in await store.follow_ups.due(NOW_US, 1_000)}


async def partitions(store: InboxStore) -> set[int]:
    """Of what is due."""
    records = await store.follow_ups.due(NOW_US, 1_000)
    return {partition_of(place_of_record(record.record_id)[1]) for record in records}


async def test_processes_share_what_is_due_and_take_over(tmp_path: Path) -> None:
    """Each has its own part, and gets back what it appended; who leaves leaves what is not finished to the others."""
    lanes = fresh_kafka()
    await make(lanes)
    async with process(tmp_path, lanes, "first") as first:
        # Before its first look it has no partition of its own to append to.
        assert await names(first) == set()
        before = await append(first, 0)
        await until(lambda: _has(first, before), 20.0)
        async with process(tmp_path, lanes, "second") as second:

            async def are_two() -> bool:
                mine, others = await names(first), await names(second)
                return mine | others == before and not mine & others and bool(others)

            await until(are_two, 30.0)
            assert not await partitions(first) & await partitions(second)
            here, there = await append(first, 100), await append(second, 200)
            await until(lambda: _has(first, here), 20.0)
            await until(lambda: _has(second, there), 20.0)
            assert not await names(first) & there
            assert not await names(second) & here
            finished = await second.follow_ups.due(NOW_US, 30)
            await second.follow_ups.finish([record.record_id for record in finished])
        left = (before | here | there) - {record.record for record in finished}
        await until(lambda: _has(first, left), 30.0)
        # Those of one partition are committed up to its first that was not finished: few, if any, come again.
        assert len(await names(first) - left) <= len(finished)
        await first.follow_ups.finish([record.record_id for record in await first.follow_ups.due(NOW_US, 1_000)])
        assert await first.follow_ups.next_due() is None
    async with process(tmp_path, lanes, "third") as third:
        last = await append(third, 300, 1)
        await until(lambda: _has(third, last), 20.0)
        assert await names(third) == last


class Following:
    """Appends follow-ups, works what is due, and appends half of it again once; goes on whatever fails."""

    def __init__(self, store: InboxStore) -> None:
        self._store = store
        self._ended = asyncio.Event()
        self.acked: set[bytes] = set()
        self.worked: set[bytes] = set()
        self.failures = 0

    async def run(self) -> None:
        """Until it is told to end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._append())
            group.create_task(self._work())

    def end(self) -> None:
        """Ends after what is under way."""
        self._ended.set()

    async def step(self) -> bool:
        """Works what is due; says whether there was any."""
        due = await self._store.follow_ups.due(NOW_US, 32)
        again = [FollowUpWrite(NOW_US, b"again %s" % one.record) for one in due if one.record.endswith(b"0")]
        again = [one for one in again if one.record.count(b"again") == 1]
        await self._store.follow_ups.finish([one.record_id for one in due], again)
        self.worked |= {one.record for one in due}
        return bool(due)

    async def _append(self) -> None:
        number = 0
        while not self._ended.is_set():
            name = b"%d" % number
            number += 1
            try:
                await self._store.inbox.write([], stamp=NOW_US, follow_up=FollowUpWrite(NOW_US, name))
            except LaneUnavailable:
                await self._failed()
            else:
                self.acked |= {name, b"again %s" % name} if name.endswith(b"0") else {name}

    async def _work(self) -> None:
        while not self._ended.is_set():
            try:
                if not await self.step():
                    await self._pause()
            except LaneUnavailable:
                await self._failed()

    async def _failed(self) -> None:
        self.failures += 1
        await self._pause()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), 0.05)


async def test_a_killed_broker_costs_no_follow_up(tmp_path: Path) -> None:
    """SIGKILL while follow-ups are appended and worked: the process goes on by itself, and none of them is missed."""
    async with kafka_broker() as broker:
        lanes = broker.url("retry", partitions="2")
        await make(lanes)
        async with process(tmp_path, lanes, "only") as store:
            following = Following(store)
            running = asyncio.create_task(following.run())
            await until(lambda: len(following.worked) > 300, 20.0, "follow-ups are worked")
            await broker.kill()
            await until(lambda: following.failures > 0, 20.0, "the loss is noticed")
            await broker.start()
            count = len(following.acked)
            await until(lambda: len(following.acked) > count + 300, 40.0, "follow-ups are appended again")
            following.end()
            await running

            async def all_are_worked() -> bool:
                await following.step()
                return following.acked <= following.worked

            await until(all_are_worked, 20.0, "every follow-up that was acknowledged is worked")


async def _has(store: InboxStore, wanted: set[bytes]) -> bool:
    return wanted <= await names(store)


@pytest.mark.parametrize("client", ["cassandra", "cassandra+acsylla"])
async def test_rows_in_cassandra_and_follow_ups_in_kafka(tmp_path: Path, client: str) -> None:
    """Nothing is made at the start; once everything is made, rows and follow-ups outlive the process."""
    name = f"hgtest_{secrets.token_hex(6)}"
    url = f"{client}://{urls()['cassandra'].removeprefix('cassandra://')}/{name}?replicas=1"
    lanes = fresh_kafka()

    def store() -> InboxStore:
        return open_store(url, tmp_path, follow_ups_url=lanes, clock=ManualClock(wall=NOW_US / 1e6))

    rows, topics = store_admins(url, lanes)
    for made in (rows, topics):
        with pytest.raises(StartError, match="heliograph stores create"):
            await store().open()
        await made.create(dry_run=False)
    first = store()
    await first.open()
    await append(first, 1, 1)
    await first.close()
    second = store()
    await second.open()
    try:
        await until(lambda: _has(second, {b"1"}), 20.0)
        assert make_key(1) in await second.inbox.bodies([make_key(1)])
        (found,) = await second.follow_ups.containing(b"1", 10)
        lane, position = place_of_record(found.record_id)
        assert (lane, found.origin) == (0, f"retry-10s/{partition_of(position)}/{offset_of(position)}")
    finally:
        await second.close()

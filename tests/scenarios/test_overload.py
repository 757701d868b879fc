"""More than fanout takes: a whole Heliograph refuses bulk first, then normal, never high, and recovers by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from heliograph.ingest.v1 import ingest_service_pb2, ingest_service_pb2_grpc
from heliograph_cli.connection import Actor, Connection
from mesh.errors import ResourceExhausted
from tests.support.cluster import PRODUCER, TENANT, Cluster
from tests.support.publishing import publish_request
from tests.support.shapes import EVERY, running, stilled
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

# Bulk is refused while a lane holds half of it, normal while the normal lane holds all of it.
_BACKLOG = 40
_BULK, _NORMAL, _HIGH = "newsletter", "general", "security"


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=EVERY)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A cluster whose lanes are full soon."""
    async with running(request.param, settings={"INGEST_BACKLOG_LIMIT": str(_BACKLOG)}) as cluster:
        yield cluster


class _Producer:
    """Publishes without repeating, and keeps what was accepted."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.accepted: list[str] = []
        self.refused: list[ResourceExhausted] = []

    async def is_let_in(self, category: str) -> bool:
        """Publishes one event of a category."""
        try:
            answer: ingest_service_pb2.PublishResponse = await self._connection.call(
                "ingest",
                lambda channel: ingest_service_pb2_grpc.IngestServiceStub(channel).Publish,
                publish_request(category, to=["reader"], category=category),
                Actor("producer", PRODUCER, TENANT),
            )
        except ResourceExhausted as refused:
            self.refused.append(refused)
            return False
        self.accepted.append(answer.event_id)
        return True

    async def refuses(self, category: str) -> bool:
        """Publishes one event of a category and says whether it was refused."""
        return not await self.is_let_in(category)


async def _let_in(producer: _Producer) -> Sequence[bool]:
    return [await producer.is_let_in(category) for category in (_BULK, _NORMAL, _HIGH)]


async def test_bulk_makes_way_first_and_nothing_needs_a_restart(cluster: Cluster) -> None:
    """Refusals name a delay; what was accepted arrives once; the same ingest lets everybody in again."""
    pids = {name: one.pid for name, one in cluster.running.processes.items()}
    async with cluster.connection() as connection, cluster.subscriber("reader") as reader:
        producer = _Producer(connection)
        async with stilled(cluster, "fanout"):
            for _ in range(_BACKLOG // 2):
                assert await producer.is_let_in(_NORMAL)
            await until(lambda: producer.refuses(_BULK), 15.0, "bulk to be refused")
            assert await _let_in(producer) == [False, True, True]
            while len(producer.accepted) < _BACKLOG + 10 and await producer.is_let_in(_NORMAL):
                pass
            await until(lambda: producer.refuses(_NORMAL), 15.0, "normal to be refused")
            assert await _let_in(producer) == [False, False, True]
        assert {refused.reason for refused in producer.refused} == {"OVERLOADED"}
        assert all(refused.retry_delay for refused in producer.refused)

        async def everybody() -> bool:
            return all(await _let_in(producer))

        await until(everybody, 30.0, "everybody to be let in again")
        shown: list[str] = []
        while len(shown) < len(producer.accepted):
            shown.append((await anext(reader)).id)
    assert sorted(shown) == sorted(producer.accepted)
    assert {name: one.pid for name, one in cluster.running.processes.items()} == pids

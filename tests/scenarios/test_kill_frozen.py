"""A gateway node stands still for longer than its lease: the other one does not notice, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from heliograph.presence.v1 import presence_service_pb2, presence_service_pb2_grpc
from heliograph_cli.connection import OPERATOR, Actor
from tests.support.audience import audience, load
from tests.support.cluster import Cluster
from tests.support.ledger import Ledger
from tests.support.shapes import BOTH, frozen, name_of, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

_SETTLE_LIMIT_S = 40.0
# A lease of 15 s would have to be waited for.
_SHORT_LEASE = {"PRESENCE_LEASE": "3", "GATEWAY_LEASE": "3", "GATEWAY_LEASE_RENEWAL": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=BOTH)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A cluster whose leases are short."""
    async with running(request.param, settings=_SHORT_LEASE) as cluster:
        yield cluster


async def nodes(cluster: Cluster) -> dict[str, int]:
    """Returns the nodes whose lease is alive, with its epoch, as an operator sees them."""
    async with cluster.connection() as connection:
        answer = await connection.call(
            "presence",
            lambda channel: presence_service_pb2_grpc.PresenceServiceStub(channel).ListNodes,
            presence_service_pb2.ListNodesRequest(),
            Actor("operator", OPERATOR),
        )
    return {node.node_id: node.epoch for node in answer.nodes}


async def test_a_node_that_stood_still_disturbs_nobody_and_loses_nothing(cluster: Cluster) -> None:
    """Its neighbour goes on showing what comes; thawed it takes a new epoch, and its own screens catch up."""
    name, ledger = name_of(cluster, "gateway-1"), Ledger()
    recipients = {f"still-r{number}": number % 2 for number in range(6)}
    async with audience(cluster, ledger, recipients) as listeners:
        there = [screen for screen in listeners.screens if screen.node_id == name]
        healthy = [screen for screen in listeners.screens if screen.node_id != name]
        async with load(cluster, ledger, list(recipients), rate=10.0) as events:
            await events.flows()
            epoch = (await nodes(cluster))[name]
            with frozen(cluster, name):
                before, shown = len(ledger.accepted), [screen.shown for screen in there]

                async def forgotten() -> bool:
                    return name not in await nodes(cluster)

                await until(forgotten, 20.0, "the node's lease has run out")
                await until(lambda: len(ledger.accepted) >= before + 40, 20.0, "events go on being accepted")
                during = list(ledger.accepted)[before : before + 40]
                places = [(screen.recipient, screen.name) for screen in healthy]
                await until(
                    lambda: all(ledger.shown_on(places, id_) for id_ in during), 10.0, "the other node shows them"
                )
                # It did stand still, and nobody was disturbed by it.
                assert [screen.shown for screen in there] == shown

            async def back() -> bool:
                return (await nodes(cluster)).get(name, 0) > epoch

            await until(back, 20.0, "the node has a lease of a new epoch")
            await events.flows()
        await until(ledger.settled, _SETTLE_LIMIT_S, "everything that was answered OK is shown")
        assert [len(screen.sessions) for screen in healthy] == [1] * len(healthy)
        assert sum(screen.subscriber.stats.duplicates_on_wire for screen in healthy) == 0
        if cluster.shape == "processes":
            # A lost lease closes no session.
            assert [len(screen.sessions) for screen in there] == [1] * len(there)
    verdict = ledger.verdict()
    assert verdict.kept, verdict

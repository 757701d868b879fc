"""Any one process is killed under load and started again by `up`: what was answered OK is shown exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest
import pytest_asyncio

from heliograph.delivery.v1 import inbox_service_pb2, inbox_service_pb2_grpc
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.prefs.v1 import topic_service_pb2, topic_service_pb2_grpc
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState
from heliograph_cli.connection import OPERATOR, Actor, Connection
from heliograph_client.events import PriorityName
from tests.support.apps import Apps
from tests.support.audience import audience, load
from tests.support.cluster import TENANT, Cluster
from tests.support.ledger import Ledger
from tests.support.shapes import BOTH, MESH, frozen, name_of, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(120)

# The promise after any crash is 30 s; the rest is for a machine that is busy.
_SETTLE_LIMIT_S = 40.0
_LANES: Final[Sequence[PriorityName]] = ("high", "normal", "bulk")
# What counts as large is small.
_LARGE = {"FANOUT_LARGE_AUDIENCE": "50", "FANOUT_SLICE_SIZE": "20"}
_SERVICES = ("ingest", "fanout", "prefs", "presence", "delivery", "gateway-0", "gateway-1")
_ENVOYS = ("ingest-envoy", "fanout-envoy", "presence-envoy", "delivery-envoy", "gateway-1-envoy", "edge")


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=BOTH)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """One cluster for all tests here: each leaves everything running again, and has recipients of its own."""
    async with running(request.param, settings=_LARGE) as cluster:
        yield cluster


async def kill_under_load(cluster: Cluster, victim: str) -> None:
    """Kills one process while events flow to listeners on both nodes, and judges when all of them were answered."""
    name, ledger = name_of(cluster, victim), Ledger()
    recipients = {f"{victim}-r{number}": number % 2 for number in range(6)}
    async with audience(cluster, ledger, recipients) as listeners:
        async with load(cluster, ledger, list(recipients)) as events:
            await events.flows()
            disturbed = [screen for screen in listeners.screens if screen.node_id == name]
            before = await cluster.kill(name)
            after = await cluster.wait_restarted(before)
            await events.flows()
        await until(ledger.settled, _SETTLE_LIMIT_S, "everything that was answered OK is shown")
        await until(lambda: listeners.caught_up, 20.0, "every listener is there")
    # The fault happened: `up` saw it and counted it.
    assert after.restart_count == before.restart_count + 1
    assert f"{name} killed by SIGKILL" in " ".join(cluster.output().split())
    assert bool(disturbed) == (victim in ("gateway-0", "gateway-1"))
    assert all(len(screen.sessions) > 1 for screen in disturbed)
    verdict = ledger.verdict()
    assert verdict.kept, verdict
    assert verdict.due >= 80
    for recipient in recipients:
        due = {event_id for event_id, audience_ in ledger.accepted.items() if recipient in audience_}
        items = [item.notification.notification_id for item in await cluster.inbox(recipient)]
        assert sorted(items) == sorted(set(items))
        assert set(sorted(due)[-100:]) <= set(items)


@pytest.mark.parametrize("victim", _SERVICES)
async def test_a_killed_service_loses_nothing(cluster: Cluster, victim: str) -> None:
    """Every service in turn: lost 0, shown twice 0, every row in the list once."""
    await kill_under_load(cluster, victim)


@pytest.mark.parametrize("cluster", [MESH], indirect=True)
@pytest.mark.parametrize("victim", _ENVOYS)
async def test_a_killed_sidecar_or_edge_loses_nothing(cluster: Cluster, victim: str) -> None:
    """What stands between services and before them is no more precious than they are."""
    await kill_under_load(cluster, victim)


async def test_what_delivery_had_no_time_to_offer_comes_to_the_open_session(cluster: Cluster) -> None:
    """Killed between row and offer: the session looks when the next process's link begins, or the follow-up offers."""
    apps = Apps(cluster)
    async with apps.device("late") as phone, cluster.publisher() as publisher:
        await phone.ready()
        # Delivery asks presence between row and offer, so this is where it stands when it is killed.
        with frozen(cluster, "presence"):
            receipt = await publisher.publish(category="general", to="late", title="killed in between")

            async def is_durable() -> bool:
                return bool(await cluster.inbox("late"))

            await until(is_durable, 10.0, "the row is durable")
            before = await cluster.kill("delivery")
            assert phone.ids == []
        await cluster.wait_restarted(before)
        # The ack window is 10 s, and so is the time within which a session looks.
        await until(lambda: phone.ids == [receipt.event_id], 40.0, "it is there")
        assert phone.closed is None


async def test_an_ack_that_is_said_while_delivery_is_dead_is_stored_by_the_next_one(cluster: Cluster) -> None:
    """The node keeps it until a process has stored it, and only then the client is told so."""
    apps = Apps(cluster)
    async with apps.device("acker") as phone, cluster.publisher() as publisher:
        await phone.ready()
        receipt = await publisher.publish(category="general", to="acker", title="acked late")
        await phone.has(receipt.event_id)
        with frozen(cluster, "delivery"):
            number = await phone.mark(MarkKind.MARK_KIND_SEEN, receipt.event_id)
            before = await cluster.kill("delivery")
            assert phone.confirmed < number
        await cluster.wait_restarted(before)
        await phone.has_confirmed(number)
    (item,) = (await apps.list_inbox("acker")).items
    assert item.state == NotificationState.NOTIFICATION_STATE_SEEN


async def subscribe(connection: Connection, topic: str, recipients: Sequence[str]) -> None:
    """Subscribes recipients, each as itself."""

    async def one(recipient: str) -> None:
        await connection.call(
            "prefs",
            lambda channel: topic_service_pb2_grpc.TopicServiceStub(channel).Subscribe,
            topic_service_pb2.SubscribeRequest(topic_ids=[topic]),
            Actor("recipient", recipient, TENANT),
        )

    await asyncio.gather(*map(one, recipients))


async def listed(connection: Connection, recipient: str) -> list[str]:
    """Returns the ids in a recipient's list, newest first."""
    answer = await connection.call(
        "delivery",
        lambda channel: inbox_service_pb2_grpc.InboxServiceStub(channel).ListInbox,
        inbox_service_pb2.ListInboxRequest(page_size=200),
        Actor("recipient", recipient, TENANT),
    )
    return [item.notification.notification_id for item in answer.items]


async def lag(connection: Connection) -> Counter[str]:
    """Returns how many records fan-out has not finished, by lane; without lanes where nothing is left."""
    answer = await connection.call(
        "fanout",
        lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).GetLag,
        fanout_service_pb2.GetLagRequest(),
        Actor("operator", OPERATOR),
    )
    found = Counter[str]()
    for one in answer.lanes:
        found[one.lane] += one.record_count
    return +found


async def test_large_audiences_outlive_fanout(cluster: Cluster) -> None:
    """Killed between slices that nobody has answered yet: the next process sends them, and everybody has them once."""
    names = [f"subscriber-{number:03}" for number in range(100)]
    async with (
        cluster.connection() as connection,
        cluster.publisher() as publisher,
        cluster.subscriber(names[0]) as first,
        cluster.subscriber(names[-1]) as last,
    ):
        await subscribe(connection, "large", names)
        await until(lambda: bool(first.stats.checkpoints and last.stats.checkpoints), 20.0, "both are there")
        with frozen(cluster, "delivery"):
            receipts = [
                await publisher.publish(category="general", topics="large", title=f"{lane} to all", priority=lane)
                for lane in _LANES
            ]

            async def are_planned() -> bool:
                return await lag(connection) == {f"slices-{lane}": 5 for lane in _LANES}

            await until(are_planned, 10.0, "the events are finished, and slices of each priority are left of them")
            before = await cluster.kill("fanout")
        await cluster.wait_restarted(before)
        for name in names:

            async def has_all(name: str = name) -> bool:
                return len(await listed(connection, name)) >= len(receipts)

            await until(has_all, _SETTLE_LIMIT_S, f"{name} has all of them")
            assert sorted(await listed(connection, name)) == sorted(receipt.event_id for receipt in receipts)
        await publisher.publish(category="general", to=[names[0], names[-1]], title="to two")
        for screen in (first, last):
            async with asyncio.timeout(20.0):
                shown = [(await anext(screen)).title for _ in range(len(receipts) + 1)]
            assert sorted(shown) == ["bulk to all", "high to all", "normal to all", "to two"]

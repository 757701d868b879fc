"""SIGTERM: every process ends by itself, in time and with exit code 0, and nothing that was answered OK is lost."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from heliograph_cli.connection import Actor
from heliograph_cli.record import ProcessRecord
from heliograph_client import Cancelled, Failure, Publisher, Receipt, RetryPolicy, Unavailable
from tests.support.apps import Apps
from tests.support.audience import audience, load
from tests.support.cluster import PRODUCER, TENANT, Cluster
from tests.support.ledger import Ledger
from tests.support.shapes import BOTH, name_of, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

# `up` gives each step of a drain 5 s, and kills what does not end within 12 s.
_DRAIN_LIMIT_S = 11.0
_SETTLE_LIMIT_S = 40.0
_DRAINING = 4001


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=BOTH)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """One cluster for all tests here: each leaves everything running again, and has recipients of its own."""
    async with running(request.param) as cluster:
        yield cluster


async def end(cluster: Cluster, before: ProcessRecord) -> None:
    """Waits until a process that was told to stop has ended, and checks how."""
    name = before.name
    seen = len(cluster.output())
    await until(lambda: cluster.process(name).pid != before.pid, _DRAIN_LIMIT_S, f"{name} has ended")
    ended = re.compile(rf"{re.escape(name)}\s+ended with exit code 0;")
    await until(lambda: ended.search(cluster.output(), seen) is not None, 5.0, f"{name} ended with exit code 0")


@pytest.mark.parametrize("victim", ["ingest", "fanout", "prefs", "presence", "delivery"])
async def test_a_service_that_is_told_to_stop_loses_nothing(cluster: Cluster, victim: str) -> None:
    """Under load: it hands back what is unfinished, ends with 0 in time, and every event is shown exactly once."""
    ledger = Ledger()
    recipients = {f"{victim}-d{number}": number % 2 for number in range(6)}
    async with audience(cluster, ledger, recipients) as listeners:
        async with load(cluster, ledger, list(recipients)) as events:
            await events.flows()
            before = cluster.send(victim, signal.SIGTERM)
            await end(cluster, before)
            await cluster.wait_restarted(before)
            await events.flows()
        await until(ledger.settled, _SETTLE_LIMIT_S, "everything that was answered OK is shown")
        # None of this is a client's business.
        assert [len(screen.sessions) for screen in listeners.screens] == [1] * len(listeners.screens)
    verdict = ledger.verdict()
    assert verdict.kept, verdict


async def test_a_gateway_node_that_is_told_to_stop_sends_its_clients_away(cluster: Cluster) -> None:
    """It says so first, clients come back elsewhere or when it is there again, and see everything exactly once."""
    ledger, name = Ledger(), name_of(cluster, "gateway-0")
    recipients = {f"moving-d{number}": number % 2 for number in range(6)}
    async with audience(cluster, ledger, recipients) as listeners:
        moved = [screen for screen in listeners.screens if screen.node_id == name]
        stayed = [screen for screen in listeners.screens if screen.node_id != name]
        assert moved
        assert stayed
        # Slow enough for the window to hold what comes while a client waits for its turn to come back.
        async with load(cluster, ledger, list(recipients), rate=5.0) as events:
            await events.flows(10)
            before = cluster.send(name, signal.SIGTERM)
            await end(cluster, before)
            await cluster.wait_restarted(before)
            await until(lambda: all(len(screen.sessions) > 1 for screen in moved), 20.0, "all have moved")
            await events.flows(10)
        await until(ledger.settled, _SETTLE_LIMIT_S, "everything that was answered OK is shown")
        # They left by themselves when they were told to, or were closed: none of them was cut off.
        assert {screen.endings[0] for screen in moved} <= {"closed with 1000", f"closed with {_DRAINING} DRAINING"}
        assert [len(screen.sessions) for screen in stayed] == [1] * len(stayed)
        if cluster.shape == "mesh":
            # The edge knows where else to go, and does not send them back to a node that is leaving.
            other = name_of(cluster, "gateway-1")
            assert {screen.sessions[1].rpartition("-")[0] for screen in moved} == {other}
    verdict = ledger.verdict()
    assert verdict.kept, verdict


async def test_a_client_that_stays_is_closed_when_the_node_leaves(cluster: Cluster) -> None:
    """It hears "go away" with a delay first, has what is live until it is closed with 4001, and everything later."""
    apps = Apps(cluster)
    async with apps.device("stayer") as phone, cluster.publisher() as publisher:
        await phone.ready()
        before = cluster.send(phone.node_id, signal.SIGTERM)
        await until(lambda: bool(phone.farewells), 10.0, "the client is told to go away")
        (farewell,) = phone.farewells
        assert (farewell.reason, farewell.reconnect) == ("DRAINING", True)
        assert farewell.reconnect_delay.ToMilliseconds() > 0
        receipt = await publisher.publish(category="general", to="stayer", title="on the way out")
        await phone.has(receipt.event_id)
        assert phone.closed is None
        assert await phone.is_closed() == _DRAINING
        await end(cluster, before)
        await cluster.wait_restarted(before)
        async with apps.device("stayer", device_id="again") as again:
            await again.ready()
            await again.has(receipt.event_id)


async def test_ingest_answers_what_it_has_taken_before_it_ends(cluster: Cluster) -> None:
    """A producer that tries each event only once gets OK, which holds, or what is safe to repeat, and at once."""
    answers: list[Receipt | Failure] = []
    stopping = asyncio.Event()

    async def publish(publisher: Publisher, worker: int) -> None:
        count = 0
        while not (stopping.is_set() and isinstance(answers[-1], Failure)):
            try:
                answers.append(await publisher.publish(category="general", to=f"taken-{worker}", title=f"{count}"))
            except Failure as failure:
                answers.append(failure)
                if not stopping.is_set():
                    raise
                return
            count += 1

    async with cluster.connection() as connection:
        once = connection.publisher(Actor("producer", PRODUCER, TENANT), RetryPolicy(tries=1, attempt_timeout=8.0))
        async with once as publisher, asyncio.TaskGroup() as group:
            for worker in range(8):
                group.create_task(publish(publisher, worker))
            await until(lambda: len(answers) >= 100, 20.0, "events flow")
            before = cluster.send("ingest", signal.SIGTERM)
            stopping.set()
            await end(cluster, before)
    await cluster.wait_restarted(before)
    accepted = [answer.event_id for answer in answers if isinstance(answer, Receipt)]
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    assert len(accepted) >= 100
    assert [failure for failure in failures if not isinstance(failure, Unavailable | Cancelled)] == []

    async def listed() -> bool:
        lists = [await cluster.inbox(f"taken-{worker}") for worker in range(8)]
        found = {item.notification.notification_id for items in lists for item in items}
        newest = sorted(accepted)[-50:]
        return set(newest) <= found

    await until(listed, 20.0, "what was answered OK is in the inboxes")

"""Processes die, stand still and are replaced under load; the checker judges what everybody saw.

One run has several faults in a row: what the first left behind meets the second.
"""

from __future__ import annotations

import pytest

from bench.demo_letters import CATEGORY
from tests.faults.aside import ROWS_REFUSED
from tests.faults.judging import judged
from tests.faults.rig import Habits
from tests.support import damage
from tests.support.cluster import Cluster
from tests.support.shapes import BOTH, MESH, PROCESSES
from tests.support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]
# What the store refuses is given up while a run lasts.
SETTINGS = {"DELIVERY_RETRY_DELAYS": "0.2,0.2"}
# An ack is waited for ten seconds.
_TOO_LATE_S = 12.0
_GIVEN_UP_LIMIT_S = 30.0
# The number of an event of the test's own: the load's are smaller.
_REFUSED = 1_000_000
_in_both = pytest.mark.parametrize("cluster", BOTH, indirect=True)

# Who dies, under the row of the catalogue that it is.
_KILLS = (
    ("F-16", "ingest"),
    ("F-21", "fanout"),
    ("F-36", "prefs"),
    ("F-41", "presence"),
    ("F-63", "delivery"),
    ("F-61", "gateway-0"),
    ("F-43", "gateway-1"),
)


@_in_both
async def test_every_service_is_killed_under_load(cluster: Cluster) -> None:
    """SIGKILL of each in turn, each when the one before has just come back: lost 0, shown twice 0.

    Meanwhile there is a record that nobody can read: it is put aside, and nobody waits for it.
    """
    async with judged(cluster, "killed-") as run:
        await run.nemesis.spoil("normal")
        for row, victim in _KILLS:
            await run.nemesis.kill(row, victim)
            await run.flows(5)


# On Cassandra a refused partition takes no acks either: this is of one row.
@pytest.mark.thorough
@_in_both
async def test_what_is_given_up_under_load_comes_when_it_is_redriven(cluster: Cluster) -> None:
    """A store refuses a row: its dead letter has what it needs, outlives delivery, and lost is nothing."""
    async with judged(cluster, "given-up-") as run:
        recipients = [run.screens[0].device.recipient, run.screens[-1].device.recipient]
        async with run.nemesis.fault(ROWS_REFUSED, "inbox") as evidence:
            with damage.refusing_store(cluster, recipients[0]).refusing():
                event_id = await run.producer.publish(recipients, number=_REFUSED, category=CATEGORY)
                assert event_id is not None
                await until(run.has_letters, _GIVEN_UP_LIMIT_S, "the row is given up")
                evidence.append(f"the row of {event_id} was given up")
        await run.nemesis.kill("F-63", "delivery")
        await until(lambda: event_id in run.screens[-1].shown, _GIVEN_UP_LIMIT_S, "the other row is there")
        assert event_id not in run.screens[0].shown
        assert await run.redrive() == 1


@pytest.mark.thorough
@_in_both
async def test_every_service_is_replaced_in_order(cluster: Cluster) -> None:
    """SIGTERM of each in turn, callees first, as an upgrade does: in-flight work is answered or handed on."""
    async with judged(cluster, "rolled-") as run:
        for victim in ("presence", "prefs", "gateway-0", "gateway-1", "delivery", "fanout", "ingest"):
            row = "F-75" if victim.startswith("gateway") else "F-76"
            await run.nemesis.end(row, victim)
            await run.flows(5)


@pytest.mark.parametrize("cluster", [PROCESSES], indirect=True)
async def test_without_faults_the_wire_carries_each_notification_once(cluster: Cluster) -> None:
    """The same load and nothing else: not one copy too many, also on a device that acks after its window is over."""
    async with judged(cluster, "calm-", rate=40.0, habits=Habits(late=_TOO_LATE_S)) as run:
        await run.flows(200)
        screens = list(run.screens)
    assert [screen.late.said for screen in screens if screen.late is not None] == [20]
    assert run.producer.refused > 0
    assert sum(screen.subscriber.stats.duplicates_on_wire for screen in screens) == 0


@pytest.mark.parametrize("cluster", [MESH], indirect=True)
async def test_sidecars_and_the_edge_are_killed_under_load(cluster: Cluster) -> None:
    """What stands between services is no more precious than they are."""
    async with judged(cluster, "proxies-") as run:
        for victim in ("fanout-envoy", "delivery-envoy", "gateway-1-envoy", "edge"):
            await run.nemesis.kill("F-57" if victim != "edge" else "F-01", victim)
            await run.flows(5)

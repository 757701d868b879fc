"""Processes die, stand still and are replaced under load; the checker judges what everybody saw.

One run has several faults in a row: what the first left behind meets the second.
"""

from __future__ import annotations

import pytest

from tests.faults.judging import judged
from tests.faults.rig import Habits
from tests.support.cluster import Cluster
from tests.support.shapes import BOTH, MESH, PROCESSES

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]
# An ack is waited for ten seconds.
_TOO_LATE_S = 12.0
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
    """SIGKILL of each in turn, each when the one before has just come back: lost 0, shown twice 0."""
    async with judged(cluster, "killed-") as run:
        for row, victim in _KILLS:
            await run.nemesis.kill(row, victim)
            await run.flows(5)


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

"""Processes stand still for longer than leases, silence limits and group memberships last, and then go on."""

from __future__ import annotations

import pytest

from mesh.telemetry import LAG_INTERVAL_S
from tests.faults.counters import count_of
from tests.faults.judging import judged
from tests.support.cluster import Cluster
from tests.support.shapes import PROCESSES, name_of
from tests.support.wait import until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("cluster", [PROCESSES], indirect=True),
]

# A lease of 15 s would have to be waited for.
SETTINGS = {"PRESENCE_LEASE": "3", "GATEWAY_LEASE": "3", "GATEWAY_LEASE_RENEWAL": "1"}
# Longer than the lease, the three seconds of silence after which links are left, and W.
_STILL_S = 6.0


@pytest.mark.parametrize(
    ("row", "victim"),
    [
        ("F-25", "delivery"),
        ("F-24", "fanout"),
        ("F-62", "gateway-0"),
        pytest.param("F-41", "presence", marks=pytest.mark.thorough),
    ],
)
async def test_a_process_that_wakes_up_late_does_no_harm(cluster: Cluster, row: str, victim: str) -> None:
    """SIGSTOP for six seconds: what it had in hand is repeated or refused, and nobody sees it twice.

    It says itself that its loop stood still.
    """
    late = f"heliograph_{victim.partition('-')[0]}_loop_lag_seconds_sum"
    name = name_of(cluster, victim)
    async with judged(cluster, f"still-{victim}-") as run:
        before = await count_of(cluster, name, late)
        await run.nemesis.freeze(row, victim, _STILL_S)

        async def is_told() -> bool:
            return await count_of(cluster, name, late) >= before + _STILL_S - LAG_INTERVAL_S

        await until(is_told, what=f"{name} tells how late its loop was")
        await run.flows(5)


@pytest.mark.thorough
async def test_a_sleeper_is_killed_before_it_wakes(cluster: Cluster) -> None:
    """A gateway that stood still past its lease and then dies: its clients have moved, or move now."""
    async with judged(cluster, "asleep-") as run:
        await run.nemesis.freeze("F-62", "gateway-1", _STILL_S)
        await run.nemesis.kill("F-61", "gateway-1")
        await run.flows(5)

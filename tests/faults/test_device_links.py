"""The way between devices and gateway nodes fails as networks do; the checker judges what every device saw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import pytest

from tests.faults.between import before_nodes
from tests.faults.judging import judged
from tests.faults.proxy import BLACK_HOLE, Proxy, Toxics
from tests.support.cluster import Cluster
from tests.support.shapes import PROCESSES
from tests.support.wait import until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("cluster", [PROCESSES], indirect=True),
]

# Silence is noticed after two heartbeats, by either end.
SETTINGS = {"GATEWAY_HEARTBEAT_INTERVAL": "2"}
_SILENT_S = 6.0

# In the handshake, in the welcome, in the replay, in a frame, and behind some of them.
_CUTS: Final = (0, 131, 700, 4_000)
_MORE_CUTS: Final = (1, 60, 129, 140, 260, 400, 1_000, 1_500, 2_500)


async def test_a_slow_way_delays_and_nothing_else(cluster: Cluster) -> None:
    """Late by 300 ms, 4,000 bytes a second, crumbs of three bytes: all arrives, once, in whole frames."""
    async with before_nodes(cluster) as (proxies, url), judged(cluster, "slow-", url=url, rate=10.0) as run:
        for toxics in (Toxics(latency=0.3), Toxics(bandwidth=4_000.0), Toxics(slice=3)):
            await run.nemesis.poison("F-72", "devices", proxies, toxics, 3.0, device=True)
            await run.flows(5)


async def test_a_silent_way_is_noticed_from_both_ends(cluster: Cluster) -> None:
    """Nothing comes through, or nothing one way, without a reset: two heartbeats later both ends are rid of it."""
    async with before_nodes(cluster) as (proxies, url), judged(cluster, "silent-", url=url) as run:
        for row, toxics in (
            ("F-67", BLACK_HOLE),
            ("F-68", Toxics(silent=frozenset({"up"}))),
            ("F-67", Toxics(silent=frozenset({"down"}))),
            ("F-72", Toxics(held=frozenset({"up", "down"}))),
        ):
            await run.nemesis.poison(row, "devices", proxies, toxics, _SILENT_S, device=True)
            await run.flows(5)
    assert sum(screen.sessions for screen in run.screens) > len(run.screens) * 2


@pytest.mark.parametrize("cuts", [_CUTS, pytest.param(_MORE_CUTS, marks=pytest.mark.thorough)], ids=["few", "more"])
async def test_a_way_that_is_cut_anywhere_loses_nothing(cluster: Cluster, cuts: Sequence[int]) -> None:
    """Connections are reset after so many bytes, wherever in a frame that is, and all at once in between."""
    # Slow enough for the window to hold what comes while a device waits for its next try.
    async with before_nodes(cluster) as (proxies, url), judged(cluster, f"cut-{len(cuts)}-", url=url, rate=6.0) as run:
        for number in cuts:
            await run.nemesis.poison("F-70", "devices", proxies, Toxics(cut_after=number), 1.5, device=True)
        await run.flows(5)
        await run.nemesis.reset("F-70", "devices", proxies, device=True)
        await run.nemesis.poison("F-70", "devices", proxies, Toxics(refuse=True), 0.1, device=True)
        await run.flows(5)


async def test_an_ack_is_lost_and_its_node_dies(cluster: Cluster) -> None:
    """What was shown and acked into the void comes again at most on the wire; the next node takes the ack.

    The node dies while its acks are being swallowed: it never hears of them.
    """
    async with before_nodes(cluster) as (proxies, url), judged(cluster, "void-", url=url) as run:
        way = Toxics(silent=frozenset({"up"}))
        for victim, proxy in zip(("gateway-0", "gateway-1"), proxies, strict=True):
            async with run.nemesis.poisoned("F-68", "devices", proxies, way, device=True):
                await until(partial(_swallows, proxy), 10.0, f"what devices say to {victim} is lost")
                await run.nemesis.kill("F-68", victim)
            await run.flows(5)


def _swallows(proxy: Proxy) -> bool:
    return proxy.evidence.swallowed > 0

"""The ways between services fail as networks do: each socket has a proxy at its place, and no process knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import pytest

from tests.faults.between import before
from tests.faults.judging import judged
from tests.faults.proxy import BLACK_HOLE, Proxy, Toxics
from tests.faults.rig import Run
from tests.support.cluster import Cluster
from tests.support.shapes import PROCESSES

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("cluster", [PROCESSES], indirect=True),
]

_UP, _DOWN = Toxics(silent=frozenset({"up"})), Toxics(silent=frozenset({"down"}))
_SLOW: Final = Toxics(latency=0.1, slice=200)
# Some of the frames of a second take longer than that.
_NARROW: Final = Toxics(bandwidth=20_000.0)
_CUTS: Final = (40, 300, 900, 2_500)
# Links notice silence after three seconds.
_SILENT_S = 4.5


async def _every_way(run: Run, row: str, name: str, proxies: Sequence[Proxy], cuts: Sequence[int]) -> None:
    await run.nemesis.reset(row, name, proxies)
    await run.flows(3)
    for toxics in (_SLOW, _NARROW):
        await run.nemesis.poison(row, name, proxies, toxics, 1.0)
    for toxics in (BLACK_HOLE, _UP, _DOWN):
        await run.nemesis.poison(row, name, proxies, toxics, _SILENT_S)
        await run.flows(3)
    for number in cuts:
        await run.nemesis.poison(row, name, proxies, Toxics(cut_after=number), 0.5)
    await run.flows(3)


@pytest.mark.parametrize(
    ("row", "callees", "callers", "asked"),
    [
        ("F-57", ("delivery",), ("fanout",), ("gateway-0", "gateway-1")),
        ("F-58", ("gateway-0", "gateway-1"), ("delivery",), ()),
        pytest.param("F-41", ("presence",), ("delivery", "gateway-0", "gateway-1"), (), marks=pytest.mark.thorough),
        pytest.param("F-36", ("prefs",), ("fanout",), (), marks=pytest.mark.thorough),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
async def test_a_link_between_services_fails_in_every_way(
    cluster: Cluster, row: str, callees: tuple[str, ...], callers: tuple[str, ...], asked: tuple[str, ...]
) -> None:
    """Reset, slow, silent both ways and each way, cut after so many bytes: delayed at most, and once for everybody.

    What fails is the way of each caller: dispatches, offers to both nodes, and what nodes ask delivery for, which is
    replays and marks.
    """
    name = callees[0]
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(before(cluster, callee, callers, asked)) for callee in callees]
        run = await stack.enter_async_context(judged(cluster, f"{name}-way-"))
        through = [proxy.open_connections for proxy in proxies]
        # Wishes are remembered: fewer bytes go that way.
        await _every_way(run, row, " and ".join(callees), proxies, (40, 150) if name == "prefs" else _CUTS)
    assert through >= [len(callers) + len(asked)] * len(proxies)


@pytest.mark.parametrize("step", [80, pytest.param(20, marks=pytest.mark.thorough)])
async def test_an_answer_to_a_producer_is_cut_at_any_byte(cluster: Cluster, step: int) -> None:
    """After the request and before the answer, in steps of a few bytes: the repeat is the same event."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(before(cluster, "ingest", ()))
        run = await stack.enter_async_context(judged(cluster, f"answer-cut-{step}-"))
        for number in range(0, 640, step):
            await run.nemesis.poison("F-01", "ingest", [proxy], Toxics(cut_after=number), 0.4)
        await run.nemesis.poison("F-15", "ingest", [proxy], _DOWN, 3.0)
        await run.flows(5)

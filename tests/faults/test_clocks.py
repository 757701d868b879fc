"""The wall clock of one service is set while it runs, by an hour in either direction and by minutes.

Its process takes no work until the clock is right again, or until it is started anew because it is right now; where
presence knows another time, it takes none at all.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from heliograph_cli import health
from tests.faults.clocks import Clocks
from tests.faults.judging import judged
from tests.faults.rig import Habits, Run
from tests.support.cluster import Cluster
from tests.support.shapes import PROCESSES
from tests.support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

_HOUR_S = 3600.0
# A process whose clock is wrong takes an event's end for another one.
_HABITS = Habits(ends=False)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=[PROCESSES])
async def stepped(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Cluster, Clocks]]:
    """A cluster whose services have wall clocks of their own."""
    folder = Path(tempfile.mkdtemp(prefix="hg-"))
    clocks = Clocks(folder / "clocks")
    try:
        async with Cluster(folder, shape=request.param, environ=clocks.environ) as cluster:
            yield cluster, clocks
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    "service", ["delivery", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("fanout", "presence"))]
)
async def test_a_wall_clock_is_set_and_set_back(stepped: tuple[Cluster, Clocks], service: str) -> None:
    """The process says so and stores nothing; it goes on by itself, and what was accepted arrives.

    Presence goes by the other clock, and serves all the time.
    """
    cluster, clocks = stepped
    async with judged(cluster, f"clock-{service}-", habits=_HABITS) as run:
        for step in (300.0, -300.0, _HOUR_S, -_HOUR_S):
            async with run.nemesis.fault("F-96", service) as evidence:
                clocks.step(service, step)
                try:
                    await until(partial(_doubts, cluster, service), 10.0, f"{service} notices its clock")
                    assert clocks.seen(service) == step
                    assert await _serves(cluster, service) is (service == "presence")
                    asked = run.producer.open + len(run.producer.accepted)
                    await until(partial(_went_on, run, asked + 40), 20.0, "events are published meanwhile")
                    evidence.append(f"{service} ran {step:+g} s from the true time")
                finally:
                    clocks.step(service, 0.0)
                await until(partial(_is_well, cluster, service), 10.0, f"{service} serves and trusts its clock again")
            await run.flows(5)


async def test_a_clock_that_is_right_now_is_taken_over_by_a_restart(stepped: tuple[Cluster, Clocks]) -> None:
    """A delivery that is started anew goes by the time it finds, unless presence knows another one."""
    cluster, clocks = stepped
    async with judged(cluster, "clock-anew-", habits=_HABITS) as run:
        async with run.nemesis.fault("F-97", "delivery") as evidence:
            for step in (60.0, -60.0):
                clocks.step("delivery", step)
                await until(partial(_doubts, cluster, "delivery"), 10.0, "delivery notices its clock")
                await run.nemesis.end("F-97", "delivery")
                await until(partial(_doubts, cluster, "delivery"), 20.0, "delivery notices presence's")
                assert not await _serves(cluster, "delivery")
                evidence.append(f"delivery was started anew {step:+g} s from the true time, and waited")
            clocks.step("delivery", 0.0)
            await run.nemesis.end("F-97", "delivery")
            await until(partial(_serves, cluster, "delivery"), 20.0, "delivery serves")
            assert not await _doubts(cluster, "delivery")
        await run.flows(5)


def _went_on(run: Run, count: int) -> bool:
    return run.producer.open + len(run.producer.accepted) >= count


async def _doubts(cluster: Cluster, service: str) -> bool:
    return await health.clock_was_set(_socket(cluster, service), direct=True)


async def _serves(cluster: Cluster, service: str) -> bool:
    return await health.serves(_socket(cluster, service), direct=True)


async def _is_well(cluster: Cluster, service: str) -> bool:
    return await _serves(cluster, service) and not await _doubts(cluster, service)


def _socket(cluster: Cluster, service: str) -> Path:
    return Path(cluster.running.run_dir) / f"{service}.sock"

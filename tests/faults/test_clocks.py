"""The wall clock of one service is set while it runs, by an hour in either direction and by minutes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.clocks import Clocks
from tests.faults.judging import judged
from tests.faults.rig import Run
from tests.support.cluster import Cluster
from tests.support.shapes import PROCESSES
from tests.support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

_HOUR_S = 3600.0


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
    """Leases, silence limits and pauses go by the other clock; what was accepted arrives all the same.

    Delivery counts no write while its wall clock is ahead of its stamps: what is published meanwhile comes afterwards.
    """
    cluster, clocks = stepped
    async with judged(cluster, f"clock-{service}-") as run:
        for step in (300.0, -300.0, _HOUR_S, -_HOUR_S):
            async with run.nemesis.fault("F-96", service) as evidence:
                clocks.step(service, step)
                try:
                    await until(partial(_is, clocks, service, step), 10.0, f"the clock of {service} is stepped")
                    asked = run.producer.open + len(run.producer.accepted)
                    await until(partial(_went_on, run, asked + 40), 20.0, "events are published meanwhile")
                    evidence.append(f"{service} ran {step:+g} s from the true time")
                finally:
                    clocks.step(service, 0.0)
                await until(partial(_is, clocks, service, 0.0), 10.0, f"the clock of {service} is right again")
            await run.flows(5)


def _went_on(run: Run, count: int) -> bool:
    return run.producer.open + len(run.producer.accepted) >= count


def _is(clocks: Clocks, service: str, step: float) -> bool:
    return clocks.seen(service) == step

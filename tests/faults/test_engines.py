"""The engines themselves die in the middle of a run, or forget; what was accepted is there all the same.

Needs STORES=engines and engines of the run's own (HELIOGRAPH_ENGINES): they are killed and started again.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from deploy.engines.running import Engines
from tests.faults.judging import judged
from tests.faults.outages import pids_of, silence
from tests.support.cluster import Cluster
from tests.support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.engines, pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("row", "engine"), [("F-13", "kafka"), ("F-53", "cassandra"), ("F-10", "redis")])
async def test_an_engine_is_killed_in_the_middle_of_a_run(
    on_engines: Cluster, engines: Engines, row: str, engine: str
) -> None:
    """SIGKILL under load, some seconds without it, and a new start: refused or delayed meanwhile, nothing is lost.

    Of an engine with three servers one dies.
    """
    pids, engine = pids_of(on_engines), _victim(engines, engine)
    async with judged(on_engines, f"engine-{engine}-", rate=10.0, settle=90.0) as run:
        async with run.nemesis.fault(row, engine) as evidence:
            (before,) = [state for state in engines.states() if state.name == engine]
            async with silence(run) as pause:
                await asyncio.to_thread(engines.kill, engine)
                asked = run.producer.open + len(run.producer.accepted)
                await until(lambda: run.producer.open + len(run.producer.accepted) >= asked + 60, 20.0, "load goes on")
                (gone,) = [state for state in engines.states() if state.name == engine]
                waiting = run.producer.open
                await asyncio.to_thread(engines.restart, engine)
            evidence.append(
                f"{engine} {before.pid} killed, {gone.state}, {waiting} publishes unanswered meanwhile, "
                f"at most {pause.seconds:.1f} s without a delivery"
            )
        assert gone.state == "stopped"
        await run.flows(10)
    assert pids_of(on_engines) == pids, "nobody was started anew"


def _victim(engines: Engines, engine: str) -> str:
    """Returns an engine's only server, or the second of several; a Redis Cluster is another engine than a Redis."""
    names = [state.name for state in engines.states() if re.fullmatch(rf"{engine}(-\d+)?", state.name)]
    return names[min(1, len(names) - 1)]


async def test_redis_is_emptied_in_the_middle_of_a_run(on_engines: Cluster, engines: Engines) -> None:
    """FLUSHALL under load: nodes put their sessions back, no session ends, and what came meanwhile is caught up."""
    (place,) = [state.address for state in engines.states() if state.name == "redis"]
    host, _, port = place.rpartition(":")
    async with judged(on_engines, "emptied-", rate=10.0) as run:
        sessions = [screen.sessions for screen in run.screens]
        for _ in range(3):
            async with run.nemesis.fault("F-42", "redis") as evidence:
                evidence.append(f"{await _flush(host, int(port))} to FLUSHALL")
                await run.flows(5)
        assert [screen.sessions for screen in run.screens] == sessions


async def _flush(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"FLUSHALL\r\n")
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()

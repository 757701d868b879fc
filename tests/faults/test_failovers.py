"""An engine's primary dies under load and its replica takes over; nobody is started anew, and nothing is lost.

Needs STORES=engines. Kafka and Cassandra are those that HELIOGRAPH_ENGINES names; what is killed is the test's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.judging import judged
from tests.faults.outages import longest_pause, pids_of
from tests.support.apps import Apps
from tests.support.postgres_server import postgres_server
from tests.support.redis_servers import RedisServer, watched
from tests.support.redis_servers import cluster as redis_cluster
from tests.support.shapes import running
from tests.support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.engines, pytest.mark.processes, pytest.mark.timeout(300)]

SERVICE = "heliograph"
LIMIT_S = 30.0

# Where presence and the request log are, who dies, and who must be the primary then.
Place = tuple[str, RedisServer, RedisServer]


@asynccontextmanager
async def behind_sentinel(folder: Path) -> AsyncIterator[Place]:
    """A primary with a replica, and a sentinel."""
    async with watched(folder, SERVICE) as (primary, replica, sentinel):
        yield f"redis+sentinel://{sentinel.host}/{SERVICE}", primary, replica


@asynccontextmanager
async def in_cluster(folder: Path) -> AsyncIterator[Place]:
    """A Cluster whose first part has a replica."""
    async with redis_cluster(folder) as servers:
        yield f"redis+cluster://{','.join(str(server.host) for server in servers)}/", servers[0], servers[-1]


@pytest.mark.parametrize("place", [behind_sentinel, in_cluster], ids=["sentinel", "cluster"])
async def test_the_primary_of_redis_dies(
    tmp_path: Path, place: Callable[[Path], AbstractAsyncContextManager[Place]]
) -> None:
    """Sessions stay open, publishing goes on, and live delivery is back as soon as the replica is the primary."""
    async with place(tmp_path) as (url, primary, replica), running("processes", stores={"redis": url}) as cluster:
        assert cluster.on_engines, "STORES=engines is not set"
        pids = pids_of(cluster)
        async with judged(cluster, "redis-", rate=10.0, settle=90.0) as run:
            sessions = [screen.sessions for screen in run.screens]
            await primary.ask(("WAIT", 1, 5_000))
            async with run.nemesis.fault("F-42", "redis") as evidence:
                primary.kill()

                async def is_primary() -> bool:
                    return (await replica.info("replication"))["role"] == "master"

                pause = await longest_pause(run, 20)
                await until(is_primary, LIMIT_S, "the replica is the primary")
                evidence.append(f"killed, the replica is primary; longest time without an accepted event {pause:.1f} s")
            await run.flows(10)
            assert [screen.sessions for screen in run.screens] == sessions
        assert pids_of(cluster) == pids, "nobody was started anew"


async def test_the_primary_of_postgresql_dies() -> None:
    """Its standby is promoted: wishes of before count, new ones are taken, events go on."""
    async with postgres_server() as primary, postgres_server() as standby:
        await primary.make()
        await primary.start()
        await standby.copy(primary)
        await standby.start()
        url = f"postgresql://127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        async with running("processes", stores={"postgresql": url}) as cluster:
            assert cluster.on_engines, "STORES=engines is not set"
            pids, apps = pids_of(cluster), Apps(cluster)
            await apps.choose("anna", "mention", enabled=False)

            async def is_copied() -> bool:
                return await standby.query(f"select count(*) from {cluster.name}.preferences") == "1"

            await until(is_copied, LIMIT_S, "the standby has everything")
            async with judged(cluster, "wishes-", rate=10.0, settle=90.0) as run:
                async with run.nemesis.fault("F-39", "postgresql") as evidence:
                    await primary.kill()
                    pause = await longest_pause(run, 20)
                    await standby.promote()
                    evidence.append(
                        f"killed, the standby promoted; longest time without an accepted event {pause:.1f} s"
                    )
                await run.flows(10)
            async with apps.device("anna") as device:
                await device.ready()
                await apps.choose("anna", "deploy", enabled=False)
                for category in ("mention", "deploy"):
                    await cluster.publish("anna", title=category, category=category)
                wanted = await cluster.publish("anna")
                await device.has(wanted)
                assert device.ids == [wanted]
            assert pids_of(cluster) == pids, "nobody was started anew"

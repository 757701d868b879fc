"""Processes run out of room and of descriptors, and stores forget, under load."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.judging import judged
from tests.support.cluster import Cluster
from tests.support.shapes import PROCESSES, name_of
from tests.support.wait import until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("cluster", [PROCESSES], indirect=True),
]

# No page of a store and no line of a log fits any more.
_NOTHING_FITS = 4096


@pytest.mark.parametrize(("row", "most"), [("F-11", 1_000_000), ("F-12", 2)])
async def test_the_request_log_forgets_between_a_publish_and_its_repeat(cluster: Cluster, row: str, most: int) -> None:
    """All of it, as after a flush, or the last writes, as after a fail-over: the repeat has the same id, once."""
    path = cluster.place.data / "requests.db"
    gone = 0

    async def forget() -> None:
        nonlocal gone
        gone += await asyncio.to_thread(_forget, path, most)

    async with judged(cluster, f"forgot-{most}-", rate=5.0) as run:
        recipients = [screen.device.recipient for screen in run.screens[:3]]
        async with run.nemesis.fault(row, "requests.db") as evidence:
            for number in range(10):
                await run.producer.publish(recipients, number=10_000 + number, twins=2, repeat_after=forget)
            evidence.append(f"{gone} requests forgotten")
        await run.flows(5)
    assert gone >= 10


def _forget(path: Path, most: int) -> int:
    """Deletes the newest rows, and returns how many there were."""
    with closing(sqlite3.connect(path, timeout=10.0)) as connection, connection:
        newest = "select number from request order by begin_micros desc, number desc limit ?"
        return connection.execute(f"delete from request where number in ({newest})", (most,)).rowcount


@pytest.mark.parametrize("victim", ["ingest", "delivery", "fanout"])
async def test_a_store_has_no_room(cluster: Cluster, victim: str) -> None:
    """Neither its store nor its log takes a byte for some seconds: refused or delayed, and nothing accepted is lost."""
    async with judged(cluster, f"full-{victim}-") as run:
        pid = cluster.process(victim).pid
        async with run.nemesis.limited("F-100", victim, resource.RLIMIT_FSIZE, _NOTHING_FITS) as evidence:
            before, shown = len(run.producer.accepted), sum(len(screen.shown) for screen in run.screens)
            await until(lambda: run.producer.open >= 20 or len(run.producer.accepted) >= before + 60, 20.0, "it shows")
            accepted = len(run.producer.accepted) - before
            shown = sum(len(screen.shown) for screen in run.screens) - shown
            evidence.append(
                f"{run.producer.open} publishes unanswered, {accepted} accepted and {shown} shown meanwhile"
            )
            # Who cannot write takes nothing, or hands nothing on; who cannot move its position goes on.
            assert victim == "fanout" or accepted < 20 or shown < accepted, evidence
        await run.flows(5)
        assert cluster.process(victim).pid == pid, "nobody had to start it again"


async def test_a_node_has_no_descriptors_left(cluster: Cluster) -> None:
    """Who is there stays; who comes waits, and comes in when there are some again."""
    async with judged(cluster, "descriptors-") as run:
        name = name_of(cluster, "gateway-0")
        open_ = len(list(Path(f"/proc/{cluster.process(name).pid}/fd").iterdir()))  # noqa: ASYNC240
        async with run.nemesis.limited("F-101", "gateway-0", resource.RLIMIT_NOFILE, open_) as evidence:
            tries = 0
            for _ in range(20):
                with pytest.raises((OSError, TimeoutError)):
                    await _connect(cluster)
                tries += 1
            evidence.append(f"{tries} connections got no answer")
            await run.flows(5)
        await run.flows(5)


async def _connect(cluster: Cluster) -> None:
    """Connects to the first node and waits shortly for an answer to half a word."""
    host, _, port = next(iter(cluster.running.live_urls.values())).split("/")[2].rpartition(":")
    async with asyncio.timeout(1.0):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            if not await reader.read(1):
                raise OSError("closed")
        finally:
            writer.close()

"""Engines that are away for a while, and what a cluster says meanwhile. It must not say what is right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from deploy.engines.running import Engines
from heliograph_cli import health
from heliograph_cli.connection import Actor
from heliograph_client import PreparedEvent, Publisher, RetryPolicy
from mesh.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from tests.faults import reading
from tests.faults.rig import Run
from tests.support.cluster import PRODUCER, TENANT, Cluster
from tests.support.explaining import asked
from tests.support.wait import until

# Health asks once a second, and a store that is silent has its own limit.
HEALTH_LIMIT_S = 15.0
# An engine that was killed needs some seconds to serve again, and drivers some to see it.
BACK_S = 60.0
_FLOW_LIMIT_S = 60.0


def pids_of(cluster: Cluster) -> Mapping[str, int]:
    """Which process is which: others after an outage mean that somebody was started anew."""
    return {name: one.pid for name, one in cluster.running.processes.items()}


@asynccontextmanager
async def without(engines: Engines, name: str) -> AsyncIterator[None]:
    """Kills an engine, or one server of it (SIGKILL); it is away while the context is open, and serves afterwards."""
    await asyncio.to_thread(engines.kill, name)
    try:
        yield
    finally:
        await asyncio.to_thread(engines.restart, name)


async def says(cluster: Cluster, gone: Mapping[str, Sequence[str]]) -> None:
    """Waits until each of these services names exactly these dependencies as gone."""
    for service, names in gone.items():
        await until(
            partial(_misses, cluster, service, list(names)), HEALTH_LIMIT_S, f"{service} misses {names or 'nothing'}"
        )


async def _misses(cluster: Cluster, service: str, names: list[str]) -> bool:
    return await health.missing(cluster.place.run / f"{service}.sock", direct=cluster.running.direct) == names


@asynccontextmanager
async def asking_once(cluster: Cluster, limit_s: float = 5.0) -> AsyncIterator[Publisher]:
    """A publisher that does not try again: what it gets is what the service answered."""
    async with cluster.connection() as connection:
        policy = RetryPolicy(tries=1, time_limit=limit_s, attempt_timeout=limit_s)
        async with connection.publisher(Actor("producer", PRODUCER, TENANT), policy) as publisher:
            yield publisher


async def at_last(publisher: Publisher, prepared: PreparedEvent) -> str:
    """Repeats a request until it is accepted, as an engine comes back; returns the id."""
    found: list[str] = []

    async def accepted() -> bool:
        try:
            found.append((await publisher.publish(prepared)).event_id)
        except (Unavailable, DeadlineExceeded, ResourceExhausted):
            return False
        return True

    await until(accepted, BACK_S, "the repeated request is accepted")
    return found[0]


async def waiting_events(cluster: Cluster) -> int:
    """How many events fanout has still before it."""
    async with cluster.connection() as connection:
        return sum(lane.record_count for lane in await reading.lanes(connection))


async def is_through(cluster: Cluster) -> bool:
    """Whether fanout has nothing before it any more."""
    return await waiting_events(cluster) == 0


async def awaits_first_look(cluster: Cluster, recipient: str, event_id: str) -> bool:
    """Whether delivery is still to look for the first time at what became of an event at a recipient."""
    answer = await asked(cluster, event_id, recipient)
    return any(step.decision == "follow-up" and step.detail.endswith("tries again: 0") for step in answer.steps)


async def longest_pause(run: Run, count: int) -> float:
    """Waits until so many more events were accepted; returns the longest time without any, in seconds."""
    longest, since, last = 0.0, time.monotonic(), len(run.producer.accepted)
    end = last + count

    def seen() -> bool:
        nonlocal longest, since, last
        now = time.monotonic()
        if len(run.producer.accepted) > last:
            longest, since, last = max(longest, now - since), now, len(run.producer.accepted)
        return last >= end

    await until(seen, _FLOW_LIMIT_S, f"{count} more events are accepted")
    return longest


class Silence(msgspec.Struct):
    """Attributes: seconds: the longest time in which no device received anything."""

    seconds: float = 0.0


@asynccontextmanager
async def silence(run: Run) -> AsyncIterator[Silence]:
    """Measures the longest time without a delivery, from here until there are some again after the context's end."""
    found, since, last, over = Silence(), time.monotonic(), _received(run), False

    def seen() -> bool:
        nonlocal since, last
        count, now = _received(run), time.monotonic()
        if count == last:
            return False
        found.seconds, since, last = max(found.seconds, now - since), now, count
        return over

    watching = asyncio.create_task(until(seen, _FLOW_LIMIT_S + BACK_S, "deliveries go on"))
    try:
        yield found
        over = True
        await watching
    finally:
        watching.cancel()


def _received(run: Run) -> int:
    return sum(len(screen.received) for screen in run.screens)

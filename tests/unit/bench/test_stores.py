"""The benchmark of stores: what is counted, and how it is shown."""

from __future__ import annotations

import asyncio
import os
import socket
from itertools import pairwise

from bench.stores import places, report
from bench.stores_cost import Cost, Load, cost, measure, processes

ENGINES = {
    "kafka": "kafka://127.0.0.1:9092",
    "redis": "redis://127.0.0.1:6379",
    "redis_cluster": "redis+cluster://127.0.0.1:7001,127.0.0.1:7002",
    "cassandra": "cassandra://127.0.0.1:9042",
    "postgresql": "postgresql://127.0.0.1:5432/postgres",
}


async def test_an_operation_is_repeated_by_all_callers() -> None:
    """Every call has a number of its own; only those after the warm-up count, each for all its items."""
    numbers: list[int] = []
    at_once = most = 0

    async def call(number: int) -> None:
        nonlocal at_once, most
        numbers.append(number)
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1

    found = await measure(Load("work", "here", call, items=10, callers=3), {}, 0.05)
    assert most == 3
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert 0 < found.rate * 0.05 < 10 * len(numbers)
    assert found.client_us > 0.0
    assert (found.what, found.store, found.engine_us) == ("work", "here", 0.0)


def test_costs_are_for_each_item() -> None:
    """Seconds become microseconds of an item, and latencies milliseconds of a call."""
    found = cost("work", "there", 1_000, 2.0, 0.5, 0.25, [1_000] * 50)
    assert (found.rate, found.client_us, found.engine_us, found.all_us) == (500, 500.0, 250.0, 750.0)
    assert (found.p50, found.p99) == (1.0, 1.0)


def test_the_process_behind_a_port_is_found() -> None:
    """By what it listens on; a port where nobody listens has none."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert processes([port]) == {}
        listening.listen()
        assert os.getpid() in processes([port]).values()


def test_every_engine_stands_beside_its_embedded_store() -> None:
    """Each operation begins with the store in the process, and names on engines are the run's own."""
    found = places(ENGINES, "bench_0")
    assert {place.engine for place in found} == {"", *ENGINES}
    for before, place in pairwise(found):
        if place.opening is not before.opening:
            assert place.engine == ""
    assert all("bench_0" in place.url for place in found if place.engine)


def test_the_table_shows_ratios_to_the_embedded_store() -> None:
    """CPU of client and engine together beside that of the first store of the operation; no p99 where there is none."""
    costs = [
        Cost("read", "sqlite", 1_000.0, 10.0, 0.0, 1.0, 2.0),
        Cost("write", "sqlite", 1_000.0, 20.0, 0.0, 1.0, 2.0),
        Cost("read", "engine", 2_000.0, 15.0, 10.0, 3.0, 0.0),
    ]
    lines = report(costs).splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [["read", "sqlite"], ["read", "engine"], ["write", "sqlite"]]
    assert lines[1].rstrip().endswith("2.5 ×       3")

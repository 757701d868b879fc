"""What the stores cost, embedded and on engines, beside the engines' own tools: `python -m bench.stores`.

The engines are those of `engines.json` (`make engines` says where it is). Each operation goes through the adapter as
the services use it, by as many callers on every store; CPU of this process and of the engine are counted apart.
Milliseconds are of this machine, ratios of CPU carry over.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from bench import stores_loads, stores_tools
from bench.engines import PORTS, parsed, pids, read
from bench.measures import machine, table
from bench.stores_clean import clean
from bench.stores_cost import Cost, Load, measure
from mesh.process import loop_factory

_SECONDS: Final = 2.0
_VARIABLE: Final = "HELIOGRAPH_ENGINES"

Opening: TypeAlias = Callable[[str, str, Path], AbstractAsyncContextManager[list[Load]]]


class Place(msgspec.Struct, frozen=True):
    """One store: what it is called, the engine's key ("" for an embedded one), its URL, and its operations."""

    name: str
    engine: str
    url: str
    opening: Opening


def places(engines: dict[str, str], name: str) -> list[Place]:
    """Returns every store, embedded ones before those on engines; what is made is called `name`."""
    kafka, cassandra = engines["kafka"].rstrip("/"), engines["cassandra"].rstrip("/")
    prefix = f"/?prefix={name}"
    inboxes = f"{cassandra}/{name}?replicas=1"
    return [
        Place("sqlite", "", "sqlite:///bench-lanes-file", stores_loads.lanes),
        Place("kafka", "kafka", f"{kafka}/{name}?partitions=1&replicas=1", stores_loads.lanes),
        Place("sqlite", "", "sqlite:///bench-requests.db", stores_loads.request_log),
        Place("redis", "redis", engines["redis"].rstrip("/") + prefix, stores_loads.request_log),
        Place(
            "redis cluster", "redis_cluster", engines["redis_cluster"].rstrip("/") + prefix, stores_loads.request_log
        ),
        Place("memory", "", "memory://", stores_loads.presence),
        Place("redis", "redis", engines["redis"].rstrip("/") + prefix, stores_loads.presence),
        Place("redis cluster", "redis_cluster", engines["redis_cluster"].rstrip("/") + prefix, stores_loads.presence),
        Place("sqlite", "", "sqlite:///bench-inbox.db", stores_loads.inbox),
        Place("cassandra", "cassandra", inboxes, stores_loads.inbox),
        Place("acsylla", "cassandra", inboxes.replace("cassandra:", "cassandra+acsylla:", 1), stores_loads.inbox),
        Place("sqlite", "", "sqlite:///bench-prefs.db", stores_loads.prefs),
        Place("postgresql", "postgresql", f"{engines['postgresql']}?schema={name}", stores_loads.prefs),
    ]


async def measured(engines: dict[str, str], name: str, folder: Path, seconds: float) -> AsyncIterator[Cost]:
    """Measures every operation on every store, and each tool after the engine that it belongs to."""
    for number, place in enumerate(places(engines, name)):
        # Its own folder: two embedded stores must not meet.
        own = folder / str(number)
        own.mkdir()
        async with place.opening(place.url, place.name, own) as loads:
            engine = pids(engines, place.engine)
            for load in loads:
                yield await measure(load, engine, seconds)
            async for cost in _tool(engines, place, name, seconds):
                yield cost


async def _tool(engines: dict[str, str], place: Place, name: str, seconds: float) -> AsyncIterator[Cost]:
    engine = pids(engines, place.engine)
    if place.name == "kafka":
        host = parsed(engines, "kafka").hosts[0]
        yield await asyncio.to_thread(stores_tools.kafka, host, f"{name}.{stores_loads.LANE}", engine)
    elif place.name == "redis" and place.opening is stores_loads.presence:
        yield await stores_tools.redis(parsed(engines, "redis").hosts[0], engine, seconds)
    elif place.name == "cassandra":
        url = msgspec.structs.replace(parsed(engines, "cassandra"), name=name)
        yield await asyncio.to_thread(stores_tools.cassandra, url, engine, seconds)
    elif place.name == "postgresql" and (program := _pgbench()) is not None:
        url = parsed(engines, "postgresql")
        yield await asyncio.to_thread(
            stores_tools.pgbench, program, url.hosts[0], url.name, name, engine, max(1, round(seconds))
        )


def _pgbench() -> Path | None:
    folders = [*map(Path, os.environ.get("PATH", "").split(os.pathsep)), *Path("/usr/lib/postgresql").glob("*/bin")]
    return next((folder / "pgbench" for folder in folders if (folder / "pgbench").exists()), None)


def report(costs: Sequence[Cost]) -> str:
    """Returns the table: each operation's stores under each other, with the CPU beside that of the embedded one."""
    rows = []
    first: dict[str, Cost] = {}
    for cost in sorted(costs, key=lambda one: list(dict.fromkeys(each.what for each in costs)).index(one.what)):
        embedded = first.setdefault(cost.what, cost)
        ratio = cost.all_us / embedded.all_us if embedded.all_us else 0.0
        rows.append(
            (
                cost.what,
                cost.store,
                f"{cost.rate:,.0f}",
                f"{cost.client_us:g}",
                f"{cost.engine_us:g}",
                f"{ratio:.1f} ×",
                f"{cost.p50:g}",
                f"{cost.p99:g}" if cost.p99 else "",
            )
        )
    columns = ("operation", "store", "items/s", "client µs", "engine µs", "CPU", "p50 ms", "p99 ms")
    return table(columns, rows)


async def run(engines: dict[str, str], seconds: float) -> list[Cost]:
    """Measures everything on engines, and removes what it made."""
    name = f"bench_{secrets.token_hex(4)}"
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="hg-bench-") as folder:
        try:
            async for cost in measured(engines, name, Path(folder), seconds):
                print(f"{cost.what}, {cost.store} …", file=sys.stderr, flush=True)
                costs.append(cost)
        finally:
            await clean(engines, {key: parsed(engines, key) for key in PORTS}, name)
    return costs


def _named() -> Path | None:
    named = os.environ.get(_VARIABLE, "")
    return Path(named) if named else None


def main(arguments: Sequence[str]) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.stores", description="What the stores cost.")
    parser.add_argument("--engines", type=Path, default=_named(), help="engines.json")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of each operation")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    given = parser.parse_args(arguments)
    if given.engines is None:
        parser.error(
            f"name engines.json with --engines or {_VARIABLE}; `make engines` starts them and says where it is"
        )
    with asyncio.Runner(loop_factory=loop_factory(True)) as runner:
        costs = runner.run(run(read(given.engines), given.seconds))
    if given.json:
        print(msgspec.json.encode(costs).decode())
        return
    print(report(costs))
    print("  ".join(f"{name} {value}" for name, value in machine().items()))


if __name__ == "__main__":
    main(sys.argv[1:])

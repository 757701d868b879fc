"""What the processes of a cluster have counted, as their metrics say. It must not judge."""

from __future__ import annotations

import httpx2

from tests.support.cluster import Cluster
from tests.support.wait import until

_SERVES_LIMIT_S = 30.0


async def count_of(cluster: Cluster, process: str, name: str) -> float:
    """Returns what one of a process's numbers stands at, all its labels added up; waits for a process to be there."""
    found: list[float] = []

    async def is_told() -> bool:
        try:
            found.append(await _ask(cluster, process, name))
        except httpx2.HTTPError:
            return False
        return True

    await until(is_told, _SERVES_LIMIT_S, f"{process} tells its numbers")
    return found[0]


async def _ask(cluster: Cluster, process: str, name: str) -> float:
    words = cluster.process(process).argv
    port = words[words.index("--metrics-port") + 1]
    async with httpx2.AsyncClient() as client:
        page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    found = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in found)

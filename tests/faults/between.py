"""Puts proxies into links of a cluster: between devices and gateway nodes, and between services.

A service's socket is renamed and a proxy listens at its place. Must not make a fault.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from tests.faults.proxy import Proxy, proxied
from tests.support.cluster import Cluster
from tests.support.shapes import name_of
from tests.support.wait import until

_RECONNECT_LIMIT_S = 20.0


@asynccontextmanager
async def before_nodes(cluster: Cluster) -> AsyncIterator[tuple[list[Proxy], Callable[[int], str]]]:
    """Opens a proxy before each gateway node; yields them and where the device of a number connects."""
    urls = list(cluster.running.live_urls.values())
    async with AsyncExitStack() as stack:
        places, proxies = [], []
        for url in urls:
            scheme, _, rest = url.partition("://")
            end, slash, path = rest.partition("/")
            proxy = await stack.enter_async_context(proxied(end))
            proxies.append(proxy)
            places.append(f"{scheme}://{proxy.address}{slash}{path}")
        yield proxies, lambda number: places[number % len(places)]


@asynccontextmanager
async def before(
    cluster: Cluster, callee: str, callers: Sequence[str], asked: Sequence[str] = ()
) -> AsyncIterator[Proxy]:
    """Puts a proxy before a service, and waits until those who call it come through; undone in the end.

    Connections that are open stay with the socket they were made to. So the service is killed while its callers stand
    still: when they go on they find the proxy.

    Args:
        cluster: in the shape `processes`, with every process serving.
        callee: which service, such as "presence" or "gateway-0".
        callers: the processes that call it on their own, without being asked.
        asked: the processes that call it only when they are asked something: they find the proxy then.
    """
    name = name_of(cluster, callee)
    path = Path(cluster.running.run_dir) / f"{name}.sock"
    moved = path.with_suffix(".behind")
    with _still(cluster, (*callers, *asked)):
        await cluster.wait_restarted(await cluster.kill(name))
        path.rename(moved)
        proxy = Proxy(str(moved))
        await proxy.start(str(path))
    try:
        await until(
            lambda: proxy.open_connections >= len(callers), _RECONNECT_LIMIT_S, f"{name} is called through its proxy"
        )
        yield proxy
    finally:
        moved.replace(path)
        await proxy.stop()


@contextmanager
def _still(cluster: Cluster, names: Sequence[str]) -> Iterator[None]:
    pids = [cluster.send(name_of(cluster, name), signal.SIGSTOP).pid for name in names]
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

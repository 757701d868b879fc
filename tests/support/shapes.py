"""The shapes a scenario runs in, and a cluster of its own in one of them. Each body is written once.

Must not know what a scenario does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.cluster import Cluster, Shape
from tests.support.one_loop import LoopCluster

# The services in the loop of the tests; alone; behind their sidecars and the edge, with mTLS.
LOOP: Final = pytest.param("loop")
PROCESSES: Final = pytest.param("processes", marks=pytest.mark.processes)
MESH: Final = pytest.param("mesh", marks=pytest.mark.mesh)
BOTH: Final = (PROCESSES, MESH)
EVERY: Final = (LOOP, *BOTH)


@asynccontextmanager
async def running(
    shape: Shape,
    *,
    gateways: int = 2,
    trace: bool = False,
    settings: Mapping[str, str] | None = None,
    stores: Mapping[str, str | int] | None = None,
    program: str = "heliograph_cli",
) -> AsyncIterator[Cluster]:
    """Runs a cluster while the context is open.

    Args:
        shape: in this loop, or as processes without or with Envoys.
        gateways: number of gateway nodes.
        trace: log every step of every event.
        settings: of services, without their common prefix: "GATEWAY_SESSION_AGE".
        stores: other places of engines than the shared ones, as in an engines.json.
        program: the module that is run as the command.
    """
    folder = Path(tempfile.mkdtemp(prefix="hg-"))
    environ = {f"HELIOGRAPH_{name}": value for name, value in (settings or {}).items()}
    try:
        async with kind_of(shape)(
            folder,
            shape=way_of(shape),
            gateways=gateways,
            trace=trace,
            environ=environ,
            stores=stores,
            program=program,
        ) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kind_of(shape: Shape) -> type[Cluster]:
    """Returns what runs a cluster in a shape."""
    return LoopCluster if shape == "loop" else Cluster


def way_of(shape: Shape) -> Shape:
    """Returns the shape of the way from outside: without processes it is that of processes without Envoys."""
    return "processes" if shape == "loop" else shape


def name_of(cluster: Cluster, victim: str) -> str:
    """Returns a process's name; "gateway-1" stands for the second node, whatever this machine is called."""
    if not victim.startswith("gateway-"):
        return victim
    index, dash, rest = victim.removeprefix("gateway-").partition("-")
    return cluster.node(int(index)) + dash + rest


@asynccontextmanager
async def stilled(cluster: Cluster, name: str) -> AsyncIterator[None]:
    """A service does nothing while the context is open: its process stands still; in one loop there is none."""
    if isinstance(cluster, LoopCluster):
        async with cluster.without(name):
            yield
    else:
        with frozen(cluster, name):
            yield


@contextmanager
def frozen(cluster: Cluster, name: str) -> Iterator[None]:
    """Stops a process (SIGSTOP) while the context is open."""
    pid = cluster.send(name, signal.SIGSTOP).pid
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

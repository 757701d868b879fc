"""One running cluster for the tests of a module: in each shape that the module asks for, or on engines of the run's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.engines.running import Engines, recall
from tests.support.cluster import Cluster
from tests.support.engines import VARIABLE
from tests.support.shapes import running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A cluster with the settings that the module names; every test leaves it running and has its own recipients."""
    async with running(request.param, settings=getattr(request.module, "SETTINGS", None)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def engines() -> Engines:
    """The run's own engines, to be killed and started again."""
    folder = Path(os.environ.get(VARIABLE, "")).parent
    choices = recall(folder)
    if choices is None:
        pytest.fail(f"{VARIABLE} names no engines that were started by deploy.engines: {folder}")
    return Engines(choices, os.environ, lambda _: None)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def on_engines() -> AsyncIterator[Cluster]:
    """A cluster whose stores are at the engines."""
    async with running("processes") as cluster:
        if not cluster.on_engines:
            pytest.fail("STORES=engines is not set")
        yield cluster

"""One running cluster for the tests of a module, in each shape that the module asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.cluster import Cluster
from tests.support.shapes import running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A cluster with the settings that the module names; every test leaves it running and has its own recipients."""
    async with running(request.param, settings=getattr(request.module, "SETTINGS", None)) as cluster:
        yield cluster

"""What scenarios share: one running site for all tests that try bad input, in each shape."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Shape, on_engines
from tests.support.site import Site, open_site

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On engines a cluster makes topics, keyspace and schema before it starts: a test has twice its own limit there.

    What runs at the site in one loop comes last: it lives to the end of the run, and others count streams and tasks.
    """
    items.sort(key=_is_at_site_in_loop)
    for item in items if on_engines(os.environ) else ():
        limit = item.get_closest_marker("timeout")
        if limit is not None and HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(2 * limit.args[0]), append=False)


def _is_at_site_in_loop(item: pytest.Item) -> bool:
    chosen = getattr(item, "callspec", None)
    return chosen is not None and chosen.params.get("site") == "loop"


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("processes", marks=[pytest.mark.processes, pytest.mark.timeout(60)]),
        pytest.param("mesh", marks=[pytest.mark.mesh, pytest.mark.timeout(60)]),
    ],
)
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A site, without and with a mesh; every test that uses it runs in both shapes and leaves it as it was."""
    shape: Shape = request.param
    folder = Path(tempfile.mkdtemp(prefix="hg-"))
    try:
        async with open_site(folder, shape) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)

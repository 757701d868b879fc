"""What scenarios share: one running site for all tests that try bad input, in each shape."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Shape
from tests.support.site import Site, open_site


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

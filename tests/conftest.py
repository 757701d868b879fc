"""Fixtures that every test may use. It must not know any service."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# The same examples in every run: a failure is repeated by repeating the run.
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("fixed")


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A folder for Unix sockets, removed afterwards; short, because a socket's path may have 107 bytes at most."""
    folder = Path(tempfile.mkdtemp(prefix="hg-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

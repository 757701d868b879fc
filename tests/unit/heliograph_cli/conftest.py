"""Fixtures of the command's tests."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def ended_pid() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    process.wait()
    return process.pid

"""Fixtures of the command's tests."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest


@pytest.fixture
def ended_pid() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def now() -> float:
    """Unix time: certificates are compared with the system's clock."""
    return time.time()

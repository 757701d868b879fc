"""The lock that says which process owns something."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mesh.filelock import FileLock


async def test_the_second_hears_who_has_it(tmp_path: Path) -> None:
    """A lock that is held is refused with its owner's process id, and is free once released."""
    first, second = FileLock(tmp_path / "a" / "lock"), FileLock(tmp_path / "a" / "lock")
    assert await first.acquire(0.0) is None
    assert await second.acquire(0.0) == str(os.getpid())
    first.release()
    first.release()
    assert await second.acquire(0.0) is None
    second.release()


async def test_waiting_takes_it_over(tmp_path: Path) -> None:
    """One that waits has the lock after its owner let go."""
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    await first.acquire(0.0)
    waiting = asyncio.ensure_future(second.acquire(10.0))
    await asyncio.sleep(0)
    first.release()
    assert await waiting is None
    second.release()


async def test_an_impossible_folder_is_an_os_error(tmp_path: Path) -> None:
    """A lock below a plain file cannot be made."""
    (tmp_path / "plain").write_text("")
    with pytest.raises(OSError, match="plain"):
        await FileLock(tmp_path / "plain" / "lock").acquire(0.0)

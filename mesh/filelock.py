"""A lock file that says which process owns something; gone with its process, however that ends.

Waiting for it is how a restart becomes a hand-over. It must not be used for anything but ownership by a process.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.05


class FileLock:
    """An advisory lock on a file that holds its owner's process id and nothing else.

    A second FileLock on the same path is refused in the same process too. The file stays when the lock is released.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    async def acquire(self, wait: float) -> str | None:
        """Takes the lock, making its folder where there is none.

        Args:
            wait: seconds to wait for the present owner.

        Returns:
            None when the lock is taken, else the process id of the owner that kept it.

        Raises:
            OSError: the folder or the file cannot be made.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            loop = asyncio.get_running_loop()
            limit = loop.time() + wait
            while not _try_lock(descriptor):
                if loop.time() >= limit:
                    owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                    os.close(descriptor)
                    return owner or "unknown"
                await asyncio.sleep(_POLL_S)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return None

    def release(self) -> None:
        """Gives the lock up; harmless without one."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""The doorbell of an embedded lane: a datagram socket that the writer knocks at after each commit.

Must not be relied on: a knock may be missed, so the reader also looks by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from mesh.sqlite import StoreError


def bell_path(run_dir: Path, lane: str) -> Path:
    """Returns where a lane's doorbell is."""
    return run_dir / f"lane-{lane}.bell"


class Bell:
    """The reader's end of a doorbell."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._rung = asyncio.Event()

    def open(self) -> None:
        """Hangs it up, in place of one that a killed reader left; a place that cannot be had is a StoreError."""
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)  # of a reader that was killed; a living one holds the lock
            bell.bind(str(self._path))
            os.chmod(self._path, 0o600)
        except OSError as error:
            bell.close()
            raise StoreError(f"{self._path}: {error}; choose a shorter or writable run folder") from error
        self._socket = bell
        asyncio.get_running_loop().add_reader(bell, self._drain)

    def close(self) -> None:
        """Takes it down; harmless when it does not hang."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forgets the knocks so far: what is looked for after this and not found will knock."""
        self._rung.clear()

    async def wait(self, limit: float) -> None:
        """Waits for a knock since `clear`, at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._rung.wait()

    def _drain(self) -> None:
        self._rung.set()
        with contextlib.suppress(OSError):
            while self._socket is not None:
                self._socket.recv(1)

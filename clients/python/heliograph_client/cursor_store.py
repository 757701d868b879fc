"""Where a subscriber keeps what it needs to resume: cursor, ids it has, marks that are not confirmed.

Must not hold content. What is kept is opaque text to the stores; its form is in `session.py`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Protocol

from mesh.errors import FailedPrecondition


class CursorStore(Protocol):
    """Keeps one device's resume state."""

    async def load(self) -> bytes | None:
        """Returns what was saved last, or None."""
        ...

    async def save(self, state: bytes) -> None:
        """Replaces what was saved; after a crash either the old or the new state is there, never a part of one."""
        ...


class MemoryCursorStore:
    """Keeps it as long as the object lives: for a subscriber that is closed and opened again."""

    def __init__(self) -> None:
        self._state: bytes | None = None

    async def load(self) -> bytes | None:
        """Returns what was saved last, or None."""
        return self._state

    async def save(self, state: bytes) -> None:
        """Replaces what was saved."""
        self._state = state


class FileCursorStore:
    """Keeps it in a file, readable for its owner only; one subscriber a file.

    Args:
        path: the file; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A save that was cancelled goes on in its thread: it must neither meet nor undo a later one.
        self._writing = threading.Lock()
        self._asked = 0
        self._written = 0

    async def load(self) -> bytes | None:
        """Returns what was saved last, or None.

        Raises:
            FailedPrecondition: the file is there and cannot be read.
        """
        return await asyncio.to_thread(self._load)

    async def save(self, state: bytes) -> None:
        """Writes a new file and puts it in the place of the old one.

        Raises:
            FailedPrecondition: the file cannot be written.
        """
        self._asked += 1
        await asyncio.to_thread(self._save, state, self._asked)

    def _load(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure("read", error) from error

    def _save(self, state: bytes, number: int) -> None:
        with self._writing:
            if number < self._written:
                return
            try:
                self._replace(state)
            except OSError as error:
                raise self._failure("written", error) from error
            self._written = number

    def _replace(self, state: bytes) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    def _failure(self, what: str, error: OSError) -> FailedPrecondition:
        text = f"{self._path} cannot be {what}: {error.strerror}; choose another path or mend it"
        return FailedPrecondition(text, reason="STORE_UNAVAILABLE", metadata={"path": str(self._path)})

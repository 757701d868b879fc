"""Everything of delivery in one SQLite file: rows, follow-ups, steps, dead letters, suspects.

Must not decide anything: it opens, closes and hands out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from mesh.sqlite import StoreError, Writer, load_migrations
from svc_delivery.ports import FollowUps, Inbox
from svc_delivery.ports_channels import Steps
from svc_delivery.ports_dead_letters import DeadLetters, Suspects
from svc_delivery.store.lane_store import Part
from svc_delivery.store.sqlite import Limits, SqliteInbox
from svc_delivery.store.sqlite_dead_letters import SqliteDeadLetters
from svc_delivery.store.sqlite_follow_ups import SqliteFollowUps
from svc_delivery.store.sqlite_steps import SqliteSteps, SqliteSuspects


class SqliteStore:
    """Implements `InboxStore`; `open` before use, `close` at the end."""

    def __init__(self, url: str, path: Path, *, limits: Limits, lock_wait: float = 10.0) -> None:
        self._url = url
        self._writer = Writer(path, migrations=load_migrations("svc_delivery.store"), lock_wait=lock_wait)
        self._inbox = SqliteInbox(self._writer, limits=limits)
        self._follow_ups = SqliteFollowUps(self._writer)
        self._steps = SqliteSteps(self._writer)
        self._dead_letters = SqliteDeadLetters(self._writer, keep_days=limits.letter_days)
        self._suspects = SqliteSuspects(self._writer)
        self._is_open = False

    @property
    def inbox(self) -> Inbox:
        """The rows."""
        return self._inbox

    @property
    def follow_ups(self) -> FollowUps:
        """What is to be looked at again."""
        return self._follow_ups

    @property
    def steps(self) -> Steps:
        """The steps map of rows."""
        return self._steps

    @property
    def dead_letters(self) -> DeadLetters:
        """What was given up."""
        return self._dead_letters

    @property
    def suspects(self) -> Suspects:
        """What was worked on when the process died."""
        return self._suspects

    @property
    def parts(self) -> Sequence[Part]:
        """Itself."""
        return [Part("store_url", self._url, self)]

    async def open(self) -> None:
        """Opens or makes the file.

        Raises:
            mesh.sqlite.StoreError: one line: what, where, what to do.
        """
        await self._writer.open()
        await self._inbox.load()
        await self._suspects.begin()
        self._is_open = True

    async def close(self) -> None:
        """Finishes what is queued, notes that the end is in order, and closes the file; harmless when not open."""
        if self._is_open:
            self._is_open = False
            # A file that cannot be written keeps the note of its crash: then the next start is careful for nothing.
            with contextlib.suppress(StoreError):
                await self._suspects.end()
        await self._writer.close()

"""Preferences and subscriptions in one SQLite file."""

from __future__ import annotations

from pathlib import Path

from mesh.sqlite import Writer, load_migrations
from svc_prefs.ports import LogLimits, PrefsStore, TopicStore
from svc_prefs.store.sqlite import SqlitePrefs
from svc_prefs.store.sqlite_topics import SqliteTopics


class SqliteWishes:
    """Implements `svc_prefs.store.WishStore`."""

    def __init__(self, path: Path, *, limits: LogLimits) -> None:
        self._writer = Writer(path, migrations=load_migrations("svc_prefs.store"))
        self._prefs = SqlitePrefs(self._writer, limits=limits)
        self._topics = SqliteTopics(self._writer)

    @property
    def prefs(self) -> PrefsStore:
        """What recipients chose."""
        return self._prefs

    @property
    def topics(self) -> TopicStore:
        """Who subscribed to what."""
        return self._topics

    async def open(self) -> None:
        """Opens or makes the file.

        Raises:
            mesh.sqlite.StoreError: one line: what, where, what to do.
        """
        await self._writer.open()

    async def close(self) -> None:
        """Finishes what is queued and closes the file."""
        await self._writer.close()

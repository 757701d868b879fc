"""Opens the store of wishes that a URL names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mesh.sqlite import Writer, file_of, load_migrations
from mesh.stores import StoreAdmin
from svc_prefs.ports import LogLimits, PrefsStore, TopicStore
from svc_prefs.store.sqlite import SqlitePrefs
from svc_prefs.store.sqlite_topics import SqliteTopics


class WishStore:
    """Preferences and subscriptions of one file; `open` before use, `close` at the end."""

    def __init__(self, path: Path, *, limits: LogLimits) -> None:
        self._writer = Writer(path, migrations=load_migrations(__name__))
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


def open_store(url: str, *, data_dir: Path, limits: LogLimits | None = None) -> WishStore:
    """Returns the store for a URL, not opened yet.

    Args:
        url: `sqlite:///prefs.db`, a path below `data_dir`.
        data_dir: folder of the process's data.
        limits: how much of the log of changes is kept; the defaults of `LogLimits` when left out.

    Raises:
        StoreUrlError: the scheme is unknown; names the known ones.
    """
    return WishStore(file_of(url, data_dir), limits=limits or LogLimits())


def store_admins(url: str) -> Sequence[StoreAdmin]:
    """Returns the upkeep of the store that a URL names; none for an embedded one.

    Raises:
        StoreUrlError: the scheme is unknown; names the known ones.
    """
    file_of(url, Path())
    return ()

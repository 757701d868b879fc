"""Opens the inbox store that a URL names."""

from __future__ import annotations

from pathlib import Path

from mesh.sqlite import Writer, file_of, load_migrations
from svc_delivery.ports import FollowUps, Inbox
from svc_delivery.store.sqlite import Limits, SqliteInbox
from svc_delivery.store.sqlite_follow_ups import SqliteFollowUps


class InboxStore:
    """Inbox and follow-ups of one file; `open` before use, `close` at the end."""

    def __init__(self, path: Path, *, limits: Limits, lock_wait: float = 10.0) -> None:
        self._writer = Writer(path, migrations=load_migrations(__name__), lock_wait=lock_wait)
        self._inbox = SqliteInbox(self._writer, limits=limits)
        self._follow_ups = SqliteFollowUps(self._writer)

    @property
    def inbox(self) -> Inbox:
        """The rows."""
        return self._inbox

    @property
    def follow_ups(self) -> FollowUps:
        """What is to be looked at again."""
        return self._follow_ups

    async def open(self) -> None:
        """Opens or makes the file.

        Raises:
            mesh.sqlite.StoreError: one line: what, where, what to do.
        """
        await self._writer.open()
        await self._inbox.load()

    async def close(self) -> None:
        """Finishes what is queued and closes the file."""
        await self._writer.close()


def open_store(url: str, data_dir: Path, *, limits: Limits | None = None) -> InboxStore:
    """Returns the store for a URL, not yet open.

    Args:
        url: `sqlite:///inbox.db`, a path below `data_dir`.
        data_dir: folder of the process's data.
        limits: how much an inbox keeps; the defaults of `Limits` when left out.

    Raises:
        mesh.sqlite.StoreUrlError: the scheme is unknown; names the known ones.
    """
    return InboxStore(file_of(url, data_dir), limits=limits or Limits())

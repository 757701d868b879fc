"""Opens the store of wishes that a URL names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mesh.sqlite import StoreUrlError, file_of
from mesh.stores import StoreAdmin
from svc_prefs.ports import LogLimits, PrefsStore, TopicStore

_KNOWN = "sqlite:///path, postgresql://host:port,host:port/DATABASE?schema=NAME"


class WishStore(Protocol):
    """Preferences and subscriptions in one place; `open` before use, `close` at the end."""

    @property
    def prefs(self) -> PrefsStore:
        """What recipients chose."""
        ...

    @property
    def topics(self) -> TopicStore:
        """Who subscribed to what."""
        ...

    async def open(self) -> None:
        """Gets ready; an embedded store makes or migrates its file, another one makes nothing.

        Raises:
            Unavailable: one line: what, where, what to do.
            StartError: the same, of a store that is not as it must be.
        """
        ...

    async def close(self) -> None:
        """Finishes what is queued and lets go of files and connections."""
        ...


def open_store(url: str, *, data_dir: Path, limits: LogLimits | None = None) -> WishStore:
    """Returns the store for a URL, not opened yet.

    Args:
        url: `sqlite:///prefs.db`, a path below `data_dir`, or `postgresql://host:port/DATABASE?schema=NAME`.
        data_dir: folder of the process's data.
        limits: how much of the log of changes is kept; the defaults of `LogLimits` when left out.

    Raises:
        StoreUrlError: the scheme is unknown; names the known ones.
        StartError: the URL is wrong, or a package is missing.
    """
    # An adapter is imported when it is chosen: the others' drivers may not be installed.
    match _scheme(url):
        case "sqlite":
            from svc_prefs.store.sqlite_wishes import SqliteWishes

            return SqliteWishes(file_of(url, data_dir), limits=limits or LogLimits())
        case _:
            from svc_prefs.store.postgres_wishes import PostgresWishes

            return PostgresWishes(url, limits=limits or LogLimits())


def store_admins(url: str) -> Sequence[StoreAdmin]:
    """Returns the upkeep of the store that a URL names; none for an embedded one.

    Raises:
        StoreUrlError: the scheme is unknown; names the known ones.
        StartError: the URL is wrong, or a package is missing.
    """
    if _scheme(url) == "sqlite":
        return ()
    from svc_prefs.store.postgres_wishes import wishes_admin

    return (wishes_admin(url),)


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in ("sqlite", "postgresql"):
        # Only the scheme is repeated: what follows may hold a password that does not belong there.
        raise StoreUrlError(f"store_url: {(scheme if separator else url)!r} is no known store; known: {_KNOWN}")
    return scheme

"""Opens the preference store that a URL names."""

from __future__ import annotations

from pathlib import Path

from mesh.sqlite import file_of
from svc_prefs.ports import PrefsStore
from svc_prefs.store.sqlite import SqliteStore


def open_store(url: str, *, data_dir: Path) -> PrefsStore:
    """Returns the store for a URL, not opened yet.

    Raises:
        StoreUrlError: the scheme is unknown; names the known ones.
    """
    return SqliteStore(file_of(url, data_dir))

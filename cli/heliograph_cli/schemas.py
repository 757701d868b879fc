"""Which schema each embedded store has, and which one this program knows: for a state that another version wrote.

Must not open a store for writing, nor migrate it: only its service does.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

# File below the data folder → where its migrations are. Lanes are all alike.
_STORES: Final = {
    "inbox.db": ("svc_delivery.store", "migrations"),
    "requests.db": ("svc_ingest.store", "migrations"),
    "prefs.db": ("svc_prefs.store", "migrations"),
    "positions.db": ("mesh.lanes", "migrations/positions"),
}
_LANE: Final = ("mesh.lanes", "migrations/lane")


def known_version(data: Path, file: Path) -> int | None:
    """Returns the newest schema that this program knows of a store; None for a file that is none of its stores."""
    from mesh.sqlite import load_migrations

    name = file.relative_to(data).as_posix()
    where = _LANE if name.startswith("lanes/") else _STORES.get(name)
    return None if where is None else len(load_migrations(*where))


def version_of(file: Path) -> int:
    """Returns the schema that a file has; 0 for one that is still empty.

    Raises:
        sqlite3.Error: it cannot be read.
    """
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
    try:
        version: int = connection.execute("pragma user_version").fetchone()[0]
    finally:
        connection.close()
    return version

"""Store files as the first release left them: with the first schema only, and rows that a test puts into them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mesh.lanes import position_migrations
from mesh.sqlite import Migration, Writer, load_migrations

# By the file's path in the data folder: the schemas it has had, the first one first.
STORES: Final = {
    "inbox.db": load_migrations("svc_delivery.store"),
    "prefs.db": load_migrations("svc_prefs.store"),
    "requests.db": load_migrations("svc_ingest.store"),
    "positions.db": position_migrations(),
    "lanes/normal.db": load_migrations("mesh.lanes", "migrations/lane"),
}


async def write_with(file: Path, migrations: Sequence[Migration], *statements: tuple[str, tuple[object, ...]]) -> None:
    """Makes a file with these migrations only, and puts rows into it."""

    def work(connection: sqlite3.Connection) -> None:
        for statement, values in statements:
            connection.execute(statement, values)

    writer = Writer(file, migrations=migrations)
    await writer.open()
    await writer.submit(work)
    await writer.close()


async def write_first(folder: Path, name: str, *statements: tuple[str, tuple[object, ...]]) -> Path:
    """Makes a store's file with its first schema."""
    await write_with(folder / name, STORES[name][:1], *statements)
    assert version_of(folder / name) == 1
    return folder / name


def version_of(file: Path) -> int:
    """The schema of a file."""
    connection = sqlite3.connect(file)
    try:
        return int(connection.execute("pragma user_version").fetchone()[0])
    finally:
        connection.close()

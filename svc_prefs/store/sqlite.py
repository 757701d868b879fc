"""Preferences in one SQLite file: the embedded store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from mesh.sqlite import Writer, load_migrations
from svc_prefs.ports import Stored

# json_each: one statement for any number of recipients.
_SELECT = """
select recipient_id, version, preferences from preferences
where tenant_id = ? and recipient_id in (select value from json_each(?))
"""
_INSERT = (
    "insert into preferences (tenant_id, recipient_id, version, preferences) values (?, ?, ?, ?) on conflict do nothing"
)
_UPDATE = "update preferences set version = ?, preferences = ? where tenant_id = ? and recipient_id = ? and version = ?"


class SqliteStore:
    """Implements `ports.PrefsStore`."""

    def __init__(self, path: Path) -> None:
        self._writer = Writer(path, migrations=load_migrations("svc_prefs.store"))

    async def open(self) -> None:
        """See the port."""
        await self._writer.open()

    async def close(self) -> None:
        """See the port."""
        await self._writer.close()

    async def get_many(self, tenant_id: str, recipient_ids: Sequence[str]) -> Sequence[Stored]:
        """See the port."""
        wanted = json.dumps(list(recipient_ids))

        def select(connection: sqlite3.Connection) -> Sequence[Stored]:
            return [Stored(tenant_id, *row) for row in connection.execute(_SELECT, (tenant_id, wanted))]

        return await self._writer.read(select)

    async def replace(self, stored: Stored) -> bool:
        """See the port."""

        def write(connection: sqlite3.Connection) -> bool:
            owner = (stored.tenant_id, stored.recipient_id)
            if stored.version == 1:
                cursor = connection.execute(_INSERT, (*owner, stored.version, stored.preferences))
            else:
                cursor = connection.execute(_UPDATE, (stored.version, stored.preferences, *owner, stored.version - 1))
            return cursor.rowcount == 1

        return await self._writer.submit(write)

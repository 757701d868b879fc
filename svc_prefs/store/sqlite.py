"""Preferences in one SQLite file, and in it the log of their changes: the embedded store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from mesh.sqlite import Writer
from svc_prefs.ports import Changes, Found, LogLimits, Stored

# json_each: one statement for any number of recipients.
_SELECT = """
select recipient_id, version, preferences from preferences
where tenant_id = ? and recipient_id in (select value from json_each(?))
"""
_INSERT = (
    "insert into preferences (tenant_id, recipient_id, version, preferences) values (?, ?, ?, ?) on conflict do nothing"
)
_UPDATE = "update preferences set version = ?, preferences = ? where tenant_id = ? and recipient_id = ? and version = ?"

_NUMBER = "update wish_log set newest = newest + 1 returning newest"
# Takes the place of the same recipient's earlier change.
_LOG = "insert or replace into wish_changes (number, tenant_id, recipient_id, change_us) values (?, ?, ?, ?)"
_OLDEST = "select number, change_us from wish_changes order by number limit ?"
_FORGET = "delete from wish_changes where number <= ?"
_FORGOTTEN = "update wish_log set forgotten = ?"
_CHANGED = "select number, tenant_id, recipient_id from wish_changes where number > ? order by number limit ?"

# One change adds at most one: a few at a time catch up with any backlog.
_FORGOTTEN_A_CHANGE = 8


class SqlitePrefs:
    """Implements `ports.PrefsStore` on a writer that is opened and closed elsewhere."""

    def __init__(self, writer: Writer, *, limits: LogLimits) -> None:
        self._writer = writer
        self._limits = limits

    async def get_many(self, tenant_id: str, recipient_ids: Sequence[str]) -> Found:
        """See the port."""
        wanted = json.dumps(list(recipient_ids))

        def select(connection: sqlite3.Connection) -> Found:
            # Number and rows are of one snapshot.
            newest, _ = _log(connection)
            rows = [Stored(tenant_id, *row) for row in connection.execute(_SELECT, (tenant_id, wanted))]
            return Found(rows, newest)

        return await self._writer.read(select)

    async def replace(self, stored: Stored, now_us: int) -> bool:
        """See the port."""

        def write(connection: sqlite3.Connection) -> bool:
            owner = (stored.tenant_id, stored.recipient_id)
            if stored.version == 1:
                cursor = connection.execute(_INSERT, (*owner, stored.version, stored.preferences))
            else:
                cursor = connection.execute(_UPDATE, (stored.version, stored.preferences, *owner, stored.version - 1))
            if cursor.rowcount != 1:
                return False
            number: int = connection.execute(_NUMBER).fetchall()[0][0]
            connection.execute(_LOG, (number, *owner, now_us))
            self._forget(connection, number, now_us)
            return True

        return await self._writer.submit(write)

    async def list_changes(self, change_number: int, limit: int) -> Changes:
        """See the port."""

        def select(connection: sqlite3.Connection) -> Changes:
            newest, forgotten = _log(connection)
            if not forgotten <= change_number <= newest:
                return Changes((), newest, reset=True)
            found = connection.execute(_CHANGED, (change_number, limit + 1)).fetchall()
            taken = found[:limit]
            more = len(found) > limit
            return Changes(
                [(tenant, recipient) for _, tenant, recipient in taken], taken[-1][0] if more else newest, more
            )

        return await self._writer.read(select)

    def _forget(self, connection: sqlite3.Connection, newest: int, now_us: int) -> None:
        lowest = newest - self._limits.count
        oldest = now_us - self._limits.age_us
        last = 0
        for number, change_us in connection.execute(_OLDEST, (_FORGOTTEN_A_CHANGE,)).fetchall():
            if number > lowest and change_us >= oldest:
                break
            last = number
        if last:
            connection.execute(_FORGET, (last,))
            connection.execute(_FORGOTTEN, (last,))


def _log(connection: sqlite3.Connection) -> tuple[int, int]:
    newest, forgotten = connection.execute("select newest, forgotten from wish_log").fetchone()
    return newest, forgotten

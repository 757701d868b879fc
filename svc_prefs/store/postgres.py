"""Preferences in PostgreSQL, and the log of their changes.

Changes are written by a function of the schema: one question and one answer each, however much there is to decide.
Why their numbers are in the order of their commits, and what that costs, is told there
(`postgres_migrations/0001_wishes.sql`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mesh.postgres import Pool, Session
from svc_prefs.ports import Changes, Found, LogLimits, Stored

# Number and rows are of one statement, so of one snapshot.
_SELECT = """
select log.newest, stored.recipient_id, stored.version, stored.preferences
from wish_log as log
left join preferences as stored on stored.tenant_id = $1 and stored.recipient_id = any ($2::text[])
"""
_REPLACE = "select replace_preferences($1, $2, $3, $4, $5, $6, $7)"
_CHANGED = """
select log.newest, $1 between log.forgotten and log.newest, change.number, change.tenant_id, change.recipient_id
from wish_log as log
left join lateral (
    select number, tenant_id, recipient_id from wish_changes where number > $1::bigint order by number limit $2
) as change on $1 between log.forgotten and log.newest
order by change.number
"""
# The line of history that the server writes: another one after each promotion of a standby and each restored backup.
_GREET = """
select begin_incarnation(system_identifier::text || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))
from pg_control_system()
"""


async def greet(session: Session) -> None:
    """Tells the log which server a new connection reached."""
    await session.rows(_GREET)


class PostgresPrefs:
    """Implements `ports.PrefsStore` on a pool that is opened and closed elsewhere; its connections `greet`."""

    def __init__(self, pool: Pool, *, limits: LogLimits) -> None:
        self._pool = pool
        self._limits = limits

    async def get_many(self, tenant_id: str, recipient_ids: Sequence[str]) -> Found:
        """See the port."""
        found = await self._pool.rows(_SELECT, tenant_id, list(recipient_ids))
        rows = [Stored(tenant_id, *row) for _, *row in found if row[0] is not None]
        return Found(rows, found[0][0])

    async def replace(self, stored: Stored, now_us: int) -> bool:
        """See the port."""
        limits = (now_us, self._limits.count, self._limits.age_us)
        found = await self._pool.rows(
            _REPLACE, stored.tenant_id, stored.recipient_id, stored.version, stored.preferences, *limits
        )
        return bool(found[0][0])

    async def list_changes(self, change_number: int, limit: int) -> Changes:
        """See the port."""
        found = await self._pool.rows(_CHANGED, change_number, limit + 1)
        newest, known = found[0][:2]
        if not known:
            return Changes((), newest, reset=True)
        changes = [row[2:] for row in found if row[2] is not None]
        taken = changes[:limit]
        more = len(changes) > limit
        return Changes([(tenant, recipient) for _, tenant, recipient in taken], taken[-1][0] if more else newest, more)

"""Subscriptions in the SQLite file of the preferences."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from mesh.sqlite import Writer
from svc_prefs.ports import Subscription

_SUBSCRIBE = """
insert into subscriptions (tenant_id, recipient_id, topic_id, create_us)
select ?1, ?2, value, ?3 from json_each(?4) where true on conflict do nothing
"""
_COUNT = "select count(*) from subscriptions where tenant_id = ? and recipient_id = ?"
# What would be new: counted before anything is written, so that a refusal leaves nothing to undo.
_FRESH = """
select count(distinct value) from json_each(?3) where not exists
(select 1 from subscriptions where tenant_id = ?1 and recipient_id = ?2 and topic_id = value)
"""
_ASKED = """
select topic_id, create_us from subscriptions
where tenant_id = ?1 and recipient_id = ?2 and topic_id in (select value from json_each(?3)) order by topic_id
"""
_UNSUBSCRIBE = """
delete from subscriptions
where tenant_id = ?1 and recipient_id = ?2 and topic_id in (select value from json_each(?3))
"""
SUBSCRIPTIONS = """
select topic_id, create_us from subscriptions
where tenant_id = ? and recipient_id = ? and topic_id > ? order by topic_id limit ?
"""
SUBSCRIBERS = """
select recipient_id from subscriptions
where tenant_id = ? and topic_id = ? and recipient_id > ? order by recipient_id limit ?
"""


class SqliteTopics:
    """Implements `ports.TopicStore` on a writer that is opened and closed elsewhere."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def subscribe(
        self, tenant_id: str, recipient_id: str, topic_ids: Sequence[str], *, now_us: int, most: int
    ) -> Sequence[Subscription] | None:
        """See the port."""
        asked = json.dumps(list(topic_ids))
        owner = (tenant_id, recipient_id)

        def write(connection: sqlite3.Connection) -> Sequence[Subscription] | None:
            fresh: int = connection.execute(_FRESH, (*owner, asked)).fetchone()[0]
            if fresh:
                count: int = connection.execute(_COUNT, owner).fetchone()[0]
                if count + fresh > most:
                    return None
                connection.execute(_SUBSCRIBE, (*owner, now_us, asked))
            return [Subscription(*row) for row in connection.execute(_ASKED, (*owner, asked))]

        return await self._writer.submit(write)

    async def unsubscribe(self, tenant_id: str, recipient_id: str, topic_ids: Sequence[str]) -> int:
        """See the port."""
        asked = json.dumps(list(topic_ids))
        return await self._writer.submit(
            lambda connection: connection.execute(_UNSUBSCRIBE, (tenant_id, recipient_id, asked)).rowcount
        )

    async def list_subscriptions(
        self, tenant_id: str, recipient_id: str, *, after: str, limit: int
    ) -> Sequence[Subscription]:
        """See the port."""

        def select(connection: sqlite3.Connection) -> Sequence[Subscription]:
            found = connection.execute(SUBSCRIPTIONS, (tenant_id, recipient_id, after, limit))
            return [Subscription(*row) for row in found]

        return await self._writer.read(select)

    async def list_subscribers(self, tenant_id: str, topic_id: str, *, after: str, limit: int) -> Sequence[str]:
        """See the port."""

        def select(connection: sqlite3.Connection) -> Sequence[str]:
            return [row[0] for row in connection.execute(SUBSCRIBERS, (tenant_id, topic_id, after, limit))]

        return await self._writer.read(select)

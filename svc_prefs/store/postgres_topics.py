"""Subscriptions in the schema of the preferences."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.postgres import Pool
from svc_prefs.ports import Subscription

_SUBSCRIBE = "select topic_id, create_us from subscribe($1, $2, $3::text[], $4, $5)"
_UNSUBSCRIBE = "select unsubscribe($1, $2, $3::text[])"
SUBSCRIPTIONS = """
select topic_id, create_us from subscriptions
where tenant_id = $1 and recipient_id = $2 and topic_id > $3 order by topic_id limit $4
"""
SUBSCRIBERS = """
select recipient_id from subscriptions
where tenant_id = $1 and topic_id = $2 and recipient_id > $3 order by recipient_id limit $4
"""


class PostgresTopics:
    """Implements `ports.TopicStore` on a pool that is opened and closed elsewhere."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def subscribe(
        self, tenant_id: str, recipient_id: str, topic_ids: Sequence[str], *, now_us: int, most: int
    ) -> Sequence[Subscription] | None:
        """See the port."""
        found = await self._pool.rows(_SUBSCRIBE, tenant_id, recipient_id, list(topic_ids), now_us, most)
        if found and found[0][0] is None:
            return None
        return [Subscription(*row) for row in found]

    async def unsubscribe(self, tenant_id: str, recipient_id: str, topic_ids: Sequence[str]) -> int:
        """See the port."""
        found = await self._pool.rows(_UNSUBSCRIBE, tenant_id, recipient_id, list(topic_ids))
        return int(found[0][0])

    async def list_subscriptions(
        self, tenant_id: str, recipient_id: str, *, after: str, limit: int
    ) -> Sequence[Subscription]:
        """See the port."""
        return [
            Subscription(*row) for row in await self._pool.rows(SUBSCRIPTIONS, tenant_id, recipient_id, after, limit)
        ]

    async def list_subscribers(self, tenant_id: str, topic_id: str, *, after: str, limit: int) -> Sequence[str]:
        """See the port."""
        return [row[0] for row in await self._pool.rows(SUBSCRIBERS, tenant_id, topic_id, after, limit)]

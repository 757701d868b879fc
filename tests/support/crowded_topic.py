"""A topic with more subscribers than anybody would wait for one by one: they are put into the store in one go.

Prefs has it open meanwhile, and has not been asked about the topic. Must not be used for a topic that is in use.
"""

from __future__ import annotations

import sqlite3

from tests.support.cluster import TENANT, Cluster

_EMBEDDED = """
with recursive numbers(n) as (select 0 union all select n + 1 from numbers where n + 1 < ?3)
insert into subscriptions select ?1, printf('crowd-%06d', n), ?2, 0 from numbers
"""
_ENGINE = """
insert into subscriptions (tenant_id, recipient_id, topic_id, create_us)
select $1, 'crowd-' || lpad(n::text, 6, '0'), $2, 0 from generate_series(0, $3::int - 1) as n
"""


def name(number: int) -> str:
    """The subscriber of a number."""
    return f"crowd-{number:06}"


async def crowd(cluster: Cluster, topic_id: str, count: int) -> None:
    """Subscribes so many recipients to a topic."""
    if cluster.on_engines:
        await _on_engine(cluster, topic_id, count)
        return
    connection = sqlite3.connect(cluster.place.data / "prefs.db", timeout=5.0)
    try:
        with connection:
            connection.execute(_EMBEDDED, (TENANT, topic_id, count))
    finally:
        connection.close()


async def _on_engine(cluster: Cluster, topic_id: str, count: int) -> None:
    from mesh import postgres

    session = await postgres.connect(postgres.parse_place("tests", cluster.urls["prefs"]["store_url"]))
    try:
        await session.rows(_ENGINE, TENANT, topic_id, count)
    finally:
        await session.close()

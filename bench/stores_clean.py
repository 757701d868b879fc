"""Removes what the benchmark of stores made on engines: topics, a keyspace, a schema, keys.

Must not touch other names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from bench.stores_loads import LANE
from mesh.cassandra import parse
from mesh.cassandra_driver import open_driver
from mesh.stores import EngineUrl

_TIMEOUT = 20.0


async def clean(engines: Mapping[str, str], parsed: Mapping[str, EngineUrl], name: str) -> None:
    """Removes what was made under a name on every engine; what is not there is no fault."""
    await asyncio.gather(
        _topics(engines["kafka"], name),
        _keyspace(engines["cassandra"], name),
        _schema(parsed["postgresql"], name),
        _keys(engines["redis"], name),
        _keys(engines["redis_cluster"], name),
    )


async def _topics(url: str, name: str) -> None:
    from mesh.kafka import parse_cluster
    from mesh.kafka_admin import Admin

    admin = Admin(parse_cluster("engines", f"{url.rstrip('/')}/{name}?replicas=1"))
    try:
        made = await admin.topics([f"{name}.{LANE}", f"{name}.marks"])
        if made:
            await admin.delete(list(made))
    finally:
        await admin.close()


async def _keyspace(url: str, name: str) -> None:
    session = await open_driver(
        parse("engines", f"{url.rstrip('/')}/{name}?replicas=1"), keyspace=None, timeout=_TIMEOUT
    )
    try:
        await session.run(f"drop keyspace if exists {name}")
    finally:
        await session.close()


async def _schema(url: EngineUrl, name: str) -> None:
    import asyncpg

    host = url.hosts[0]
    connection = await asyncpg.connect(host=host.name, port=host.port, database=url.name, user="postgres")
    try:
        await connection.execute(f'drop schema if exists "{name}" cascade')
    finally:
        await connection.close()


async def _keys(url: str, name: str) -> None:
    from redis.asyncio import Redis, RedisCluster

    scheme, _, hosts = url.partition("://")
    first = f"redis://{hosts.split(',')[0]}"
    client: Any = RedisCluster.from_url(first) if "cluster" in scheme else Redis.from_url(first)
    try:
        keys = [key async for key in client.scan_iter(match=f"*{name}*", count=1_000)]
        for key in keys:
            await client.unlink(key)
    finally:
        await client.aclose()

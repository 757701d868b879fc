"""Removes what tests left on engines that live on: topics, keyspaces and schemas that are named like a test's.

Run as a program, with HELIOGRAPH_ENGINES, while no tests run on those engines. Each test and each cluster takes names
of its own, and removing them at the end of every test would take longer than making them. It must not touch a name that
a person would choose. What is in Redis ends by itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence

import aiokafka.admin

from mesh import postgres
from mesh.cassandra_driver import open_driver
from mesh.kafka import parse_cluster
from tests.support.cassandra import keyspace_url
from tests.support.engines import urls

# A cluster or a set of stores; schemas; topics of a lane alone; everything that says so.
TESTS_NAME = re.compile(r"(t[0-9a-f]{12}|t[0-9a-f]{16}|t_[0-9a-f]{32}|test-[0-9a-f]{32}|hgtest_\w+)(\..+)?")
_TIMEOUT = 60.0
_AT_ONCE = 100


def left(names: Iterable[str], wanted: re.Pattern[str] = TESTS_NAME) -> list[str]:
    """Returns the names that tests gave."""
    return sorted(name for name in names if wanted.fullmatch(name))


async def remove_topics(wanted: re.Pattern[str] = TESTS_NAME) -> Sequence[str]:
    """Removes them from Kafka and returns their names."""
    cluster = parse_cluster("tests", f"{urls()['kafka'].rstrip('/')}/none?replicas=1")
    admin = aiokafka.admin.AIOKafkaAdminClient(**cluster.connection())
    await admin.start()
    try:
        names = left(await admin.list_topics(), wanted)
        for start in range(0, len(names), _AT_ONCE):
            await admin.delete_topics(names[start : start + _AT_ONCE])
    finally:
        await admin.close()
    return names


async def remove_keyspaces(wanted: re.Pattern[str] = TESTS_NAME) -> Sequence[str]:
    """Removes them from Cassandra and returns their names."""
    session = await open_driver(keyspace_url("none"), keyspace=None, timeout=_TIMEOUT)
    try:
        names = left(
            (name for (name,) in await session.run("select keyspace_name from system_schema.keyspaces")), wanted
        )
        for name in names:
            await session.run(f"drop keyspace if exists {name}")
    finally:
        await session.close()
    return names


async def remove_schemas(wanted: re.Pattern[str] = TESTS_NAME) -> Sequence[str]:
    """Removes them from PostgreSQL and returns their names."""
    session = await postgres.connect(postgres.parse_place("tests", f"{urls()['postgresql']}?schema=none"))
    try:
        rows = await session.rows("select nspname from pg_namespace")
        names = left((str(row[0]) for row in rows), wanted)
        for name in names:
            await session.run(f'drop schema if exists "{name}" cascade')
    finally:
        await session.close()
    return names


async def main() -> None:
    """Removes everything and says how much."""
    for what, remove in (("topics", remove_topics), ("keyspaces", remove_keyspaces), ("schemas", remove_schemas)):
        print(f"{len(await remove())} {what} of tests removed", flush=True)


if __name__ == "__main__":
    asyncio.run(main())

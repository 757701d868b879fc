"""What a cluster has stored, read beside the processes that write it: in the embedded files, or at the engines.

Must not write anything, and must not judge.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from tests.support.cluster import Cluster

Cells = tuple[object, ...]


async def appended_count(cluster: Cluster, lane: str) -> int:
    """Returns how many records were ever appended to a lane."""
    if not cluster.on_engines:
        return _number(_query(cluster, f"lanes/{lane}.db", "select coalesce(max(position), 0) from records"))
    return sum(end for _, end in (await _spans(cluster, lane)).values())


async def records(cluster: Cluster, lane: str) -> list[bytes]:
    """Returns the bytes of every record that a lane holds."""
    if not cluster.on_engines:
        return _bytes(_query(cluster, f"lanes/{lane}.db", "select value from records order by position"))
    from mesh.kafka import parse_cluster
    from mesh.kafka_clients import Fetched, Replay

    found: list[bytes] = []

    def take(record: Fetched) -> bool:
        found.append(record.value or b"")
        return True

    place = parse_cluster("tests", cluster.urls["ingest"]["lanes_url"])
    await Replay(place, f"{place.prefix}.{lane}").read(await _spans(cluster, lane), take)
    return found


async def decisions(cluster: Cluster, tenant: str, event_id: bytes) -> list[Cells]:
    """Returns tenant, reason and recipients of what was decided about an event."""
    statement = "select tenant, reason, recipients from decisions where event_id = ? and tenant = ?"
    return await _inbox(cluster, statement, event_id, tenant)


async def row_count(cluster: Cluster, tenant: str, recipient: str) -> int:
    """Returns how many rows a recipient's inbox has, shown or not."""
    if not cluster.on_engines:
        return _number(
            _query(cluster, "inbox.db", "select count(*) from inbox where recipient = ?", f"{tenant}/{recipient}")
        )
    return _number(
        await _inbox(cluster, "select count(*) from inbox where tenant = ? and recipient = ?", tenant, recipient)
    )


async def everything(cluster: Cluster) -> list[bytes]:
    """Returns all that ingest and delivery have stored of events, row for row."""
    inboxes = await _inbox(cluster, "select * from inbox")
    lanes = [record for lane in ("high", "normal", "bulk") for record in await records(cluster, lane)]
    return [*lanes, *(_joined(row) for row in inboxes), *await _requests(cluster)]


async def _requests(cluster: Cluster) -> list[bytes]:
    if not cluster.on_engines:
        return [_joined(row) for row in _query(cluster, "requests.db", "select * from request")]
    import redis.asyncio

    place, _, _ = cluster.urls["ingest"]["request_log_url"].partition("?")
    async with redis.asyncio.Redis.from_url(place) as client:
        keys = [key async for key in client.scan_iter(match=f"{cluster.name}:request:*")]
        return [_joined((key, await client.get(key))) for key in keys]


async def _inbox(cluster: Cluster, statement: str, *values: str | bytes) -> list[Cells]:
    if not cluster.on_engines:
        return _query(cluster, "inbox.db", statement, *values)
    from mesh.cassandra import open_session, parse

    session = await open_session(parse("tests", cluster.urls["delivery"]["store_url"]))
    try:
        await session.prepare([statement])
        return [tuple(row) for row in await session.execute(statement, values)]
    finally:
        await session.close()


async def _spans(cluster: Cluster, lane: str) -> dict[int, tuple[int, int]]:
    from mesh.kafka import parse_cluster
    from mesh.kafka_admin import END, FIRST, Admin

    place = parse_cluster("tests", cluster.urls["ingest"]["lanes_url"])
    admin = Admin(place)
    name = f"{place.prefix}.{lane}"
    try:
        partitions = (await admin.topic(name)).leaders
        first = await admin.offsets(name, dict.fromkeys(partitions, FIRST))
        end = await admin.offsets(name, dict.fromkeys(partitions, END))
    finally:
        await admin.close()
    return {one: (first[one], end[one]) for one in partitions}


def _query(cluster: Cluster, store: str, statement: str, *values: str | bytes) -> list[Cells]:
    connection = sqlite3.connect(f"file:{cluster.place.data / store}?mode=ro", uri=True, timeout=5.0)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def _number(rows: Sequence[Cells]) -> int:
    ((value,),) = rows
    assert isinstance(value, int)
    return value


def _bytes(rows: Sequence[Cells]) -> list[bytes]:
    return [value for (value,) in rows if isinstance(value, bytes)]


def _joined(row: Cells) -> bytes:
    return b"|".join(cell if isinstance(cell, bytes) else str(cell).encode() for cell in row)

"""What the stores of a cluster suffer from outside: rows that are refused, records that nobody can read.

No process knows of it. In the embedded files, or at the engines. Must not judge what becomes of it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from bench.demo_denial import DenyingStore
from bench.demo_letters import Refusing, RefusingStore
from mesh.clock import SystemClock
from mesh.ids import join_key
from mesh.lanes import Record, open_writer
from tests.support.cluster import TENANT, Cluster

_LOCK_LIMIT_S = 5.0


def refusing_store(cluster: Cluster, recipient: str) -> Refusing:
    """Returns the inbox store as it refuses the rows of one recipient."""
    if cluster.on_engines:
        return DenyingStore(cluster.urls["delivery"]["store_url"], TENANT, recipient)
    return RefusingStore(cluster.place.data, join_key(TENANT, recipient))


async def append(cluster: Cluster, lane: str, record: Record) -> None:
    """Appends a record to a lane beside the process that writes there."""
    if not cluster.on_engines:
        statement = "insert into records(append_time, key, value) values (?, ?, ?)"
        _execute(cluster, f"lanes/{lane}.db", statement, SystemClock().wall(), record.key, record.value)
        return
    place = cluster.place
    url = cluster.urls["ingest"]["lanes_url"]
    writer = open_writer(url, lane, data_dir=place.data, run_dir=place.run, clock=SystemClock())
    await writer.open()
    try:
        await writer.append([record])
    finally:
        await writer.close()


def mend(cluster: Cluster, lane: str, broken: bytes, whole: bytes) -> None:
    """Makes a parked record readable, as a version that understands it would be able to; embedded stores only."""
    statement = "update parked set value = ? where lane = ? and value = ?"
    _execute(cluster, "positions.db", statement, whole, lane, broken)


def _execute(cluster: Cluster, store: str, statement: str, *values: str | bytes | float) -> None:
    with closing(sqlite3.connect(cluster.place.data / store, timeout=_LOCK_LIMIT_S)) as connection, connection:
        changed = connection.execute(statement, values).rowcount
    assert changed == 1, f"{store}: {changed} rows were changed"

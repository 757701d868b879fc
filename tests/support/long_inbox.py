"""An inbox that nobody trimmed while it was filled, straight in its store. Must not assert anything."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from heliograph.type.v1 import notification_pb2
from mesh.ids import derive_id, join_key, to_text
from svc_delivery.ports import RowWrite
from svc_delivery.store import Limits
from tests.support.backends import InboxOpener
from tests.support.cluster import Cluster
from tests.support.inbox import DAY_US, NOW_US, make_row

UNTRIMMED: Final = Limits(trim_at=1 << 40)
_BATCH: Final = 1_000
_HIGH_EVERY: Final = 4
_WINDOW: Final = 100
# Rows of a running cluster: more than a second of writing, on engines too, is a second of every run.
_ROWS: Final = 30_000
_ROWS_ON_ENGINES: Final = 5_000
_INSERT: Final = """
insert into inbox (recipient, high, id, revision, stamp, expire_us, category, content)
values (?, ?, ?, ?, ?, ?, ?, ?)"""


def is_high(number: int) -> bool:
    """Whether a row is of high priority: one in four."""
    return number % _HIGH_EVERY == 0


async def fill(opener: InboxOpener, count: int) -> None:
    """Gives Alice so many rows; they are numbered."""
    async with opener(UNTRIMMED) as store:
        for first in range(0, count, _BATCH):
            numbers = range(first, min(first + _BATCH, count))
            await store.inbox.write([make_row(number, high=is_high(number)) for number in numbers], stamp=NOW_US)


async def fill_running(cluster: Cluster, tenant: str, recipient: str, now_ms: int) -> list[str]:
    """Gives a recipient of a running cluster very many rows; returns the ids that its window shows."""
    rows = list(_real_rows(join_key(tenant, recipient), _ROWS_ON_ENGINES if cluster.on_engines else _ROWS, now_ms))
    if cluster.on_engines:
        await _write(cluster, rows, now_ms * 1000)
    else:
        await asyncio.to_thread(_insert, cluster, rows, now_ms * 1000)
    ids = [row.notification_id for row in reversed(rows)]
    shown = [[id_ for id_ in ids if id_[-1] & 1 == high][:_WINDOW] for high in (0, 1)]
    return [to_text(id_) for id_ in (*shown[0], *shown[1])]


def _real_rows(key: str, count: int, now_ms: int) -> Iterator[RowWrite]:
    for number in range(count):
        id_ = derive_id(now_ms - count + number, [key.encode()], is_high(number))
        notification = notification_pb2.Notification(
            notification_id=to_text(id_),
            revision=1,
            category="general",
            priority=notification_pb2.PRIORITY_HIGH if is_high(number) else notification_pb2.PRIORITY_NORMAL,
            content=notification_pb2.Content(title=f"number {number}"),
        )
        yield RowWrite(key, id_, 1, "general", notification.SerializeToString())


def _insert(cluster: Cluster, rows: Sequence[RowWrite], stamp: int) -> None:
    """Writes beside the process that owns the file, a little at a time."""
    with closing(sqlite3.connect(cluster.place.data / "inbox.db", timeout=10.0)) as connection:
        for first in range(0, len(rows), _BATCH):
            with connection:
                connection.executemany(_INSERT, [_values(row, stamp) for row in rows[first : first + _BATCH]])
        with connection:
            connection.execute("insert into recipient (key, head) values (?, ?)", (rows[0].recipient_key, stamp))


def _values(row: RowWrite, stamp: int) -> tuple[str, int, bytes, int, int, int, str, bytes]:
    end, id_ = stamp + 90 * DAY_US, row.notification_id
    return row.recipient_key, id_[-1] & 1, id_, row.revision, stamp, end, row.category, row.content


async def _write(cluster: Cluster, rows: Sequence[RowWrite], stamp: int) -> None:
    from mesh.cassandra import open_session, parse
    from svc_delivery.store.cassandra import CassandraInbox

    session = await open_session(parse("tests", cluster.urls["delivery"]["store_url"]))
    try:
        inbox = CassandraInbox(session, limits=UNTRIMMED)
        await inbox.load()
        for first in range(0, len(rows), _BATCH):
            await inbox.write(rows[first : first + _BATCH], stamp=stamp)
    finally:
        await session.close()

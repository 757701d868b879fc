"""Ids, rows and marks for tests of the inbox, by number: a larger number is a younger notification."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mesh.ids import derive_id
from svc_delivery.ports import FollowUpWrite, Inbox, RowKey, RowState, RowWrite
from svc_delivery.store import open_store

BASE_MS = 1_700_000_000_000
NOW_US = (BASE_MS + 3_600_000) * 1000
DAY_US = 86_400_000_000
ALICE = "acme/alice"
BOB = "acme/bob"


def make_id(number: int, *, high: bool = False) -> bytes:
    """The id of notification `number`, a millisecond after the one before."""
    return derive_id(BASE_MS + number, [number.to_bytes(8, "big")], high)


def make_row(
    number: int,
    *,
    recipient_key: str = ALICE,
    high: bool = False,
    revision: int = 1,
    expire_us: int | None = None,
) -> RowWrite:
    """Notification `number`; its content tells its revision."""
    content = b"content %d of %d" % (revision, number)
    return RowWrite(recipient_key, make_id(number, high=high), revision, "general", content, expire_us)


def make_key(number: int, *, recipient_key: str = ALICE, high: bool = False) -> RowKey:
    """The key of notification `number`."""
    return RowKey(recipient_key, make_id(number, high=high))


def numbers(rows: tuple[RowState, ...] | list[RowState]) -> list[int]:
    """Which notifications these are, in the rows' order."""
    return [int.from_bytes(row.notification_id[:6], "big") - BASE_MS for row in rows]


@asynccontextmanager
async def opened(url: str, data_dir: Path) -> AsyncIterator[Inbox]:
    """Opens the inbox of a URL, with what keeps its follow-ups."""
    if url.startswith("cassandra"):
        from mesh.cassandra import parse
        from tests.support.cassandra import opened as opened_keyspace

        async with opened_keyspace(parse("tests", url), data_dir) as engine:
            yield engine.inbox
        return
    store = open_store(url, data_dir)
    await store.open()
    try:
        yield store.inbox
    finally:
        await store.close()


async def write_until_killed(url: str, data_dir: Path) -> None:
    """Writes one row and one follow-up after the other, printing each number when its write has returned."""
    async with opened(url, data_dir) as inbox:
        await _write(inbox)


async def _write(inbox: Inbox) -> None:
    for number in range(100_000):
        follow_up = FollowUpWrite(number, b"follow-up %d" % number)
        await inbox.write([make_row(number)], stamp=NOW_US + number, follow_up=follow_up)
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(write_until_killed(sys.argv[1], Path(sys.argv[2])))

"""The operations of each store on embedded files and on engines: through the adapters, with what the services send.

Each makes what it needs under a name of its own, fills it, and yields operations; what it made is removed at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.stores_cost import Load
from mesh.clock import Stamper, SystemClock
from mesh.errors import Failure
from mesh.ids import derive_id
from mesh.lanes import LaneReader, Record, lane_stores, open_reader, open_writer, position_migrations
from mesh.sqlite import Writer
from mesh.stores import StoreAdmin
from svc_delivery.ports import RowWrite
from svc_ingest.ports import Answer, Claim
from svc_prefs.ports import Stored
from svc_presence.ports import NodeLease, Session

CONTENT = bytes(range(256)) + bytes(144)
_CLOCK = SystemClock()
_LEASE = 600.0
LANE = "normal"


class _Opened(Protocol):
    async def open(self) -> None:
        """Opens it."""
        ...

    async def close(self) -> None:
        """Closes it."""
        ...


async def _enter(stack: AsyncExitStack, store: _Opened) -> None:
    await store.open()
    stack.push_async_callback(store.close)


async def _create(admins: Sequence[StoreAdmin]) -> None:
    for admin in admins:
        await admin.create(dry_run=False)


async def _in_parts(calls: Sequence[Callable[[], Awaitable[object]]], at_once: int) -> None:
    for start in range(0, len(calls), at_once):
        await asyncio.gather(*[call() for call in calls[start : start + at_once]])


# ---------------------------------------------------------------- lanes


@asynccontextmanager
async def lanes(url: str, store: str, folder: Path) -> AsyncIterator[list[Load]]:
    """Appends of single records by 64 callers, and reads of what they appended."""
    async with AsyncExitStack() as stack:
        await _create(lane_stores(url, [LANE], reads=True))
        writer = open_writer(url, LANE, data_dir=folder, run_dir=folder, clock=_CLOCK)
        await _open_soon(writer.open)
        stack.push_async_callback(writer.close)
        positions: Writer | None = None
        if not lane_stores(url, [LANE], reads=True):
            positions = Writer(folder / "positions.db", migrations=position_migrations())
            await _enter(stack, positions)
        reader = open_reader(url, LANE, data_dir=folder, run_dir=folder, clock=_CLOCK, positions=positions)
        await _enter(stack, reader)

        pages = _Pages(reader)

        async def append(number: int) -> None:
            await writer.append([Record(b"%d" % (number % 1_000), CONTENT)])
            pages.appended += 1

        yield [
            Load("lane append, 64 callers", store, append, items=1, callers=64),
            Load("lane read, pages of 500", store, pages.read, items=500, callers=1),
        ]


class _Pages:
    """Reads full pages over and over: from the start again when the lane ends."""

    def __init__(self, reader: LaneReader) -> None:
        self.appended = 0
        self._reader = reader
        self._read = 0

    async def read(self, _: int) -> None:
        """Reads 500 records."""
        missing = 500
        while missing:
            records = await self._reader.read(missing, 1.0)
            missing -= len(records)
            self._read += len(records)
            if self._read >= self.appended or not records:
                self._read = 0
                await self._reader.restart()


async def _open_soon(open_: Callable[[], Awaitable[None]]) -> None:
    """Opens what was made a moment ago: a broker may need a moment more."""
    for _ in range(50):
        with suppress(Failure):
            await open_()
            return
        await asyncio.sleep(0.1)
    await open_()


# ---------------------------------------------------------------- ingest, presence


@asynccontextmanager
async def request_log(url: str, store: str, folder: Path) -> AsyncIterator[list[Load]]:
    """A call's claims and their answers, ten requests at once."""
    from svc_ingest.store import open_store

    async with AsyncExitStack() as stack:
        log = open_store(url, folder)
        await _enter(stack, log)

        async def publish(number: int) -> None:
            now = _CLOCK.wall()
            ids = [number * 16 + one for one in range(10)]
            claims = [
                Claim("bench", "demo", one.to_bytes(16, "big"), b"d" * 32, int(now * 1_000), b"h%d" % one)
                for one in ids
            ]
            await log.begin(claims, now)
            await log.finish([Answer(claim, claim.request_id, int(now * 1e6)) for claim in claims])

        yield [Load("request log, begin and finish of 10", store, publish, items=10, callers=8)]


@asynccontextmanager
async def presence(url: str, store: str, _: Path) -> AsyncIterator[list[Load]]:
    """Look-ups of 500 recipients, of whom 400 are connected."""
    from svc_presence.store import open_store

    async with AsyncExitStack() as stack:
        entries = open_store(url, lease=_LEASE, clock=_CLOCK)
        await _enter(stack, entries)
        now = _CLOCK.monotonic()
        await entries.renew(NodeLease("gw-bench-0", 1, False, 0, "", now + _LEASE), now)
        joined = [Session(f"bench/r{one:05d}", "phone", 1, "gw-bench-0") for one in range(1_600)]
        for start in range(0, len(joined), 400):
            part = joined[start : start + 400]
            await entries.report("gw-bench-0", 1, joined=part, left=(), asserted=(), now=now)
        pages = [[f"bench/r{page * 400 + one:05d}" for one in range(500)] for page in range(4)]

        async def look_up(number: int) -> None:
            await entries.look_up(pages[number % 4], _CLOCK.monotonic())

        yield [Load("presence, look-up of 500", store, look_up, items=500, callers=4)]


# ---------------------------------------------------------------- delivery, prefs


@asynccontextmanager
async def inbox(url: str, store: str, folder: Path) -> AsyncIterator[list[Load]]:
    """Rows of one event for 50 recipients, and windows of 100 rows."""
    from svc_delivery.store import open_store, store_admins

    async with AsyncExitStack() as stack:
        follow_ups_url = "" if url.startswith("sqlite:") else "sqlite:///bench-lanes"
        await _create(store_admins(url, follow_ups_url))
        opened = open_store(url, folder, follow_ups_url=follow_ups_url, run_dir=folder)
        await _enter(stack, opened)
        rows, stamper = opened.inbox, Stamper(_CLOCK)
        full = [f"bench/full-{one:02d}" for one in range(20)]
        for batch in range(100):
            await rows.write([_row(key, batch) for key in full], stamp=stamper.next())

        async def write(number: int) -> None:
            start = number * 50
            part = [_row(f"bench/r{(start + one) % 20_000:05d}", number) for one in range(50)]
            await rows.write(part, stamp=stamper.next())

        async def window(number: int) -> None:
            found = await rows.window(full[number % len(full)], int(_CLOCK.wall() * 1e6))
            assert len(found.rows) == 100

        yield [
            Load("inbox, rows of 50 recipients", store, write, items=50, callers=4),
            Load("inbox, window of 100 rows", store, window, items=1, callers=4),
        ]


def _row(key: str, number: int) -> RowWrite:
    id_ = derive_id(int(time.time() * 1_000), [number.to_bytes(8, "big")], low_bit=False)
    return RowWrite(key, id_, 1, "general", CONTENT)


@asynccontextmanager
async def prefs(url: str, store: str, folder: Path) -> AsyncIterator[list[Load]]:
    """Choices of a page of 500 recipients, of whom every second has some."""
    from svc_prefs.store import open_store, store_admins

    async with AsyncExitStack() as stack:
        await _create(store_admins(url))
        wishes = open_store(url, data_dir=folder)
        await _enter(stack, wishes)
        chosen = [Stored("bench", f"r{one:05d}", 1, CONTENT[:60]) for one in range(0, 2_000, 2)]
        now_us = int(_CLOCK.wall() * 1e6)
        await _in_parts([partial(wishes.prefs.replace, one, now_us) for one in chosen], 16)
        pages = [[f"r{page * 500 + one:05d}" for one in range(500)] for page in range(4)]

        async def page(number: int) -> None:
            found = await wishes.prefs.get_many("bench", pages[number % 4])
            assert len(found.rows) == 250

        yield [Load("preferences, page of 500", store, page, items=500, callers=4)]

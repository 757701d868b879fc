"""One lane under test: opens and reopens its two ends, and can take its disk away; and records for it.

It must not assert anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from mesh.clock import ManualClock
from mesh.lanes import LaneReader, LaneWriter, Record, Stored, open_reader, open_writer, position_migrations
from mesh.lanes.sqlite import SqliteLaneWriter
from mesh.sqlite import Reader, Writer

NAME = "normal"
# Seconds, long enough for any machine; no test waits for it to pass.
LONG = 20.0


def records(first: int, last: int) -> list[Record]:
    """Records named by their number, both ends included."""
    return [Record(b"key-%d" % (number % 3), b"%d" % number) for number in range(first, last + 1)]


def values(stored: Sequence[Stored]) -> list[int]:
    """The numbers of records that were read."""
    return [int(record.value) for record in stored]


async def read_all(reader: LaneReader, count: int) -> list[Stored]:
    """Reads until so many records are there.

    Raises:
        TimeoutError: one of them did not come.
    """
    found: list[Stored] = []
    while len(found) < count:
        page = await reader.read(7, LONG)
        if not page:
            raise TimeoutError(f"only {len(found)} of {count} records came")
        found += page
    return found


class LaneCase(Protocol):
    """What the contract suite needs of a lane."""

    url: str
    data_dir: Path
    run_dir: Path
    clock: ManualClock
    trims_at_once: bool

    async def writer(self) -> LaneWriter:
        """The writing end, opened anew: one that was open is closed first."""
        ...

    async def reader(self) -> LaneReader:
        """The reading end, opened anew with the position that is stored: one that was open is closed first."""
        ...

    async def remake(self) -> None:
        """Closes the writing end and removes the lane with its records, not the reader's position."""
        ...

    async def fill_disk(self) -> None:
        """From now on the open writing end finds no room for more than a few small records."""
        ...

    async def free_disk(self) -> None:
        """There is room again."""
        ...


class SqliteLaneCase:
    """A lane in a file of its own."""

    url = "sqlite:///lanes"
    trims_at_once = False

    def __init__(self, data_dir: Path, run_dir: Path) -> None:
        self.data_dir = data_dir
        self.run_dir = run_dir
        self.clock = ManualClock()
        self._writer: SqliteLaneWriter | None = None
        self._reader: LaneReader | None = None
        self._positions: Writer | None = None
        self._positions_seen: Reader | None = None

    async def writer(self) -> LaneWriter:
        """The writing end, opened anew."""
        await self._close_writer()
        self._positions_seen = Reader(self.data_dir / "positions.db")
        await self._positions_seen.open()
        writer = open_writer(
            self.url,
            NAME,
            data_dir=self.data_dir,
            run_dir=self.run_dir,
            clock=self.clock,
            positions=self._positions_seen,
            lock_wait=0.0,
        )
        assert isinstance(writer, SqliteLaneWriter)
        await writer.open()
        self._writer = writer
        return writer

    async def reader(self) -> LaneReader:
        """The reading end, opened anew; so is the file with its position."""
        await self._close_reader()
        self._positions = Writer(self.data_dir / "positions.db", migrations=position_migrations(), lock_wait=0.0)
        await self._positions.open()
        self._reader = open_reader(
            self.url,
            NAME,
            data_dir=self.data_dir,
            run_dir=self.run_dir,
            clock=self.clock,
            positions=self._positions,
            lock_wait=0.0,
        )
        await self._reader.open()
        return self._reader

    async def remake(self) -> None:
        """Removes the lane's file."""
        await self._close_writer()
        for suffix in ("", "-wal", "-shm"):
            (self.data_dir / "lanes" / f"{NAME}.db{suffix}").unlink(missing_ok=True)

    async def fill_disk(self) -> None:
        """Bounds the file a few pages above its present size."""
        assert self._writer is not None
        file = self._writer.file
        pages = await file.submit(lambda connection: connection.execute("pragma page_count").fetchone()[0])
        await file.submit(lambda connection: connection.execute(f"pragma max_page_count = {pages + 4}").fetchone())

    async def free_disk(self) -> None:
        """Lifts the bound."""
        assert self._writer is not None
        bound = "pragma max_page_count = 1000000"
        await self._writer.file.submit(lambda connection: connection.execute(bound).fetchone())

    async def close(self) -> None:
        """Closes both ends."""
        await self._close_reader()
        await self._close_writer()

    async def _close_writer(self) -> None:
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        if self._positions_seen is not None:
            await self._positions_seen.close()
            self._positions_seen = None

    async def _close_reader(self) -> None:
        if self._reader is not None:
            await self._reader.close()
            self._reader = None
        if self._positions is not None:
            await self._positions.close()
            self._positions = None


@contextlib.asynccontextmanager
async def sqlite_lane(data_dir: Path, run_dir: Path) -> AsyncIterator[LaneCase]:
    """An empty embedded lane."""
    case = SqliteLaneCase(data_dir, run_dir)
    try:
        yield case
    finally:
        await case.close()

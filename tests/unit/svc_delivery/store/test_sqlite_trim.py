"""What a long inbox costs its file: reads that do not see its length, and trims that let others between."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar, cast

import pytest

from mesh.sqlite import Work, Writer, load_migrations
from svc_delivery.store.sqlite import Limits, SqliteInbox
from tests.support.backends import SqliteInboxOpener
from tests.support.inbox import ALICE, NOW_US
from tests.support.long_inbox import fill

T = TypeVar("T")

SHORT, LONG = 150, 20_000
STEP = 500


class CountingWriter:
    """A file's writer that counts the instructions of what it reads."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.count = 0

    async def read(self, work: Work[T]) -> T:
        """See `Writer.read`."""

        def counted(connection: sqlite3.Connection) -> T:
            connection.set_progress_handler(self._tick, 1)
            try:
                return work(connection)
            finally:
                connection.set_progress_handler(None, 1)

        return await self._writer.read(counted)

    async def submit(self, work: Work[T]) -> T:
        """See `Writer.submit`."""
        return await self._writer.submit(work)

    def _tick(self) -> None:
        self.count += 1


@asynccontextmanager
async def counted(folder: Path) -> AsyncIterator[tuple[SqliteInbox, CountingWriter]]:
    """The inbox of a folder, and what counts its reads."""
    writer = Writer(folder / "inbox.db", migrations=load_migrations("svc_delivery.store"))
    await writer.open()
    counting = CountingWriter(writer)
    try:
        yield SqliteInbox(cast(Writer, counting), limits=Limits(trim_step=STEP)), counting
    finally:
        await writer.close()


def row_count(folder: Path) -> int:
    """How many rows the file has."""
    with closing(sqlite3.connect(folder / "inbox.db")) as connection:
        return int(connection.execute("select count(*) from inbox").fetchone()[0])


async def test_a_window_costs_the_same_however_long_its_inbox_is(tmp_path: Path) -> None:
    """In instructions of the store; what it read before it knew that the class is crowded is all that is added."""
    costs = []
    for count in (4 * SHORT, LONG):
        folder = tmp_path / str(count)
        folder.mkdir()
        await fill(SqliteInboxOpener(folder), count)
        async with counted(folder) as (inbox, counting):
            assert len((await inbox.window(ALICE, NOW_US)).rows) == 200
            costs.append(counting.count)
    assert costs[1] == pytest.approx(costs[0], rel=0.1)


async def test_one_look_removes_a_step_of_each_class(tmp_path: Path) -> None:
    """The oldest rows go first; a look that finds nothing to remove changes nothing."""
    await fill(SqliteInboxOpener(tmp_path), 4 * STEP)
    async with counted(tmp_path) as (inbox, _):
        found = []
        for _ in range(5):
            await inbox.window(ALICE, NOW_US)
            found.append(row_count(tmp_path))
    # A quarter is of high priority, and 150 of each class stay.
    assert found == [1_150, 650, 300, 300, 300]

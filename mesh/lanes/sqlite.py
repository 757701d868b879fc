"""Embedded lanes: one file a lane, written by one process and read by one other.

The writer commits in groups and rings a doorbell, one datagram on a Unix socket, after each commit; the reader waits
for it and looks every 250 ms in case one was missed. The reader opens the lane's file read-only; its position and what
it parked are in a file of its own process. A lane made anew has another epoch, so an old position never passes for one
of it. It must not look into the records.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mesh.clock import Clock
from mesh.filelock import FileLock
from mesh.lanes import Backlog, Lag, LaneUnavailable, Parked, PositionLost, Record, Stored
from mesh.lanes.bell import Bell, bell_path
from mesh.lanes.sqlite_look import (
    BOUNDS,
    CONTAINING,
    Unfinished,
    age,
    committed_of,
    count_unfinished,
    look,
    reader_position,
)
from mesh.sqlite import Reader, StoreError, Writer, load_migrations

_POLL_S: Final = 0.25
_TRIM_SLICE: Final = 500
_TRIM_SLICES: Final = 100
_PARTITIONS: Final = frozenset({0})

_APPEND: Final = "insert into records(append_time, key, value) values (?, ?, ?)"
_TRIM_CUT: Final = """
    select min(position) from (select position, append_time from records order by position limit ?)
    where append_time >= ?
"""
_COMMIT: Final = """
    insert into positions(lane, epoch, position) values (?, ?, ?)
    on conflict (lane) do update set
      position = iif(epoch = excluded.epoch, max(position, excluded.position), excluded.position),
      epoch = excluded.epoch
"""
_NOTE: Final = """
    insert into notes(lane, epoch, position, note) values (?, ?, ?, ?)
    on conflict (lane, epoch, position) do update set note = excluded.note
"""
_BEGIN_LIFE: Final = """
    insert into lives(lane, count) values (?, 1)
    on conflict (lane) do update set count = count + 1 returning count - 1
"""


@contextlib.contextmanager
def _unavailable(lane: str) -> Iterator[None]:
    """Turns a store's failure into the lane's."""
    try:
        yield
    except StoreError as error:
        raise LaneUnavailable(f"lane {lane}: {error.message}", unknown=error.unknown) from error


class SqliteLaneWriter:
    """The writing end: appends of many callers share commits."""

    def __init__(
        self,
        name: str,
        *,
        path: Path,
        run_dir: Path,
        clock: Clock,
        positions: Reader | None = None,
        lock_wait: float = 10.0,
    ) -> None:
        self._name = name
        self._clock = clock
        self._positions = positions
        self._bell = str(bell_path(run_dir, name))
        self._socket: socket.socket | None = None
        migrations = load_migrations("mesh.lanes", "migrations/lane")
        self._file = Writer(path, migrations=migrations, lock_wait=lock_wait, committed=self._ring)

    @property
    def file(self) -> Writer:
        """The lane's file, for maintenance."""
        return self._file

    async def open(self) -> None:
        """Opens the lane; a file that cannot be used is a StoreError in one line."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            await self._file.open()
        except BaseException:
            self._socket.close()
            raise

    async def append(self, records: Sequence[Record]) -> None:
        """Appends all records or none; see the port."""
        if not records:
            return
        append_time = self._clock.wall()
        rows = [(append_time, record.key, record.value) for record in records]

        def work(connection: sqlite3.Connection) -> None:
            if len(rows) == 1:
                connection.execute(_APPEND, rows[0])
            else:
                connection.executemany(_APPEND, rows)

        with _unavailable(self._name):
            await self._file.submit(work)

    async def backlog(self) -> Backlog:
        """Looks into the reader's file of positions, then into the lane; see the port."""
        position: tuple[int, int] | None = None
        with _unavailable(self._name):
            if self._positions is not None:
                position = await self._positions.read(lambda connection: reader_position(connection, self._name), None)
            # In this order: what the reader finishes meanwhile counts as unfinished, never the other way round.
            unfinished = await self._file.read(lambda connection: count_unfinished(connection, position))
        return Backlog(unfinished.count, age(self._clock, unfinished.oldest), unfinished.after)

    async def trim(self, before_time: float) -> int:
        """Removes old records, 500 in a transaction and 50,000 in a call at most; see the port."""

        def work(connection: sqlite3.Connection) -> int:
            _, first, last = connection.execute(BOUNDS).fetchone()
            kept: int | None = connection.execute(_TRIM_CUT, (_TRIM_SLICE, before_time)).fetchone()[0]
            cut = min(last, first + _TRIM_SLICE if kept is None else kept)
            return connection.execute("delete from records where position < ?", (cut,)).rowcount

        removed = 0
        with _unavailable(self._name):
            for _ in range(_TRIM_SLICES):
                count = await self._file.submit(work)
                removed += count
                if count < _TRIM_SLICE:
                    break
        return removed

    async def close(self) -> None:
        """Finishes the appends under way and closes the file; harmless when not open."""
        await self._file.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ring(self) -> None:
        # In the writing thread. Nobody there, or the bell rings already: the reader looks by itself.
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(b"\0", self._bell)


class SqliteLaneReader:
    """The reading end: one process, one caller at a time."""

    def __init__(
        self,
        name: str,
        *,
        path: Path,
        run_dir: Path,
        clock: Clock,
        positions: Writer,
        lock_wait: float = 10.0,
    ) -> None:
        self._name = name
        self._path = path
        self._clock = clock
        self._positions = positions
        self._lock_wait = lock_wait
        self._lock = FileLock(path.with_name(f"{path.name}.reader.lock"))
        self._file = Reader(path)
        self._bell = Bell(bell_path(run_dir, name))
        self._epoch: int | None = None  # of the lane the position belongs to; None: no position yet
        self._read = 0  # last position returned by read
        self._committed = 0  # last position known to be durable
        self._wanted = 0  # largest position that a caller wants committed
        self._committing = asyncio.Lock()

    async def open(self) -> None:
        """Takes the reading end; a second reader is refused in one sentence (StoreError)."""
        try:
            owner = await self._lock.acquire(self._lock_wait)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}; choose a folder that can be written") from error
        if owner is not None:
            raise StoreError(
                f"lane {self._name} ({self._path}) is read by process {owner}; an embedded lane has one reading process"
            )
        try:
            self._bell.open()
            await self._load()
            await self._file.open()
        except BaseException:
            self._bell.close()
            self._lock.release()
            raise

    @property
    def partitions(self) -> frozenset[int]:
        """The one there is; see the port."""
        return _PARTITIONS

    async def read(self, limit: int, wait: float) -> Sequence[Stored]:
        """Returns the next records, waiting for the doorbell; see the port."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while True:
            self._bell.clear()
            records = await self._next(limit)
            left = end - loop.time()
            if records or left <= 0:
                return records
            await self._bell.wait(min(left, _POLL_S))

    async def commit(self, position: int) -> None:
        """Stores the position; calls that overlap share a write; see the port."""
        if position <= self._committed:
            return
        if position > self._read:
            raise ValueError(f"position {position} of lane {self._name} was not read; the last one was {self._read}")
        self._wanted = max(self._wanted, position)
        async with self._committing:
            if position <= self._committed:
                return
            wanted = self._wanted
            await self._store(self._epoch, wanted)
            self._committed = wanted

    def on_leave(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Nothing ever leaves; see the port."""

    async def lag(self) -> Lag:
        """Returns the records above the committed position and the age of the oldest; see the port."""
        position = None if self._epoch is None else (self._epoch, self._committed)
        with _unavailable(self._name):
            unfinished = await self._file.read(
                lambda connection: count_unfinished(connection, position), Unfinished(0, 0, None)
            )
        return Lag(unfinished.count, age(self._clock, unfinished.oldest))

    async def containing(self, part: bytes, limit: int) -> Sequence[Stored]:
        """Looks through everything above the committed position; see the port."""

        def work(connection: sqlite3.Connection) -> list[Stored]:
            after = committed_of(connection, position)
            return [Stored(*row) for row in connection.execute(CONTAINING, (after, part, limit))]

        position = None if self._epoch is None else (self._epoch, self._committed)
        with _unavailable(self._name):
            return await self._file.read(work, [])

    async def park(self, record: Stored, reason: str) -> None:
        """Keeps a record that cannot be understood; see the port."""
        row = (self._name, self._epoch or 0, record.position, record.key, record.value, reason, self._clock.wall())
        statement = "insert into parked values (?, ?, ?, ?, ?, ?, ?) on conflict do nothing"
        with _unavailable(self._name):
            await self._positions.submit(lambda connection: connection.execute(statement, row).rowcount)

    async def parked(self, limit: int) -> Sequence[Parked]:
        """Returns the first parked records; see the port."""
        statement = (
            "select position, key, value, reason, park_time from parked where lane = ? order by epoch, position limit ?"
        )
        with _unavailable(self._name):
            return await self._positions.read(
                lambda connection: [Parked(*row) for row in connection.execute(statement, (self._name, limit))]
            )

    async def unpark(self, record: Parked) -> None:
        """Forgets a parked record; see the port."""
        statement = "delete from parked where lane = ? and position = ? and park_time = ?"
        row = (self._name, record.position, record.park_time)
        with _unavailable(self._name):
            await self._positions.submit(lambda connection: connection.execute(statement, row).rowcount)

    async def note(self, position: int, note: bytes) -> None:
        """Keeps how far the work on a record has come; see the port."""
        if not self._committed < position <= self._read:
            raise ValueError(f"position {position} of lane {self._name} is not being worked on")
        row = (self._name, self._epoch, position, note)
        with _unavailable(self._name):
            await self._positions.submit(lambda connection: connection.execute(_NOTE, row).rowcount)

    async def notes(self) -> Mapping[int, bytes]:
        """Returns every note; see the port."""
        statement = "select position, note from notes where lane = ? and epoch = ? and position > ?"
        row = (self._name, self._epoch, self._committed)
        with _unavailable(self._name):
            return await self._positions.read(lambda connection: dict(connection.execute(statement, row).fetchall()))

    async def begin_life(self) -> int:
        """Counts this process; see the port."""
        with _unavailable(self._name):
            before: int = await self._positions.submit(lambda it: it.execute(_BEGIN_LIFE, (self._name,)).fetchone()[0])
        return before

    async def end_life(self) -> None:
        """Counts from zero again; see the port."""
        statement = "delete from lives where lane = ?"
        with _unavailable(self._name):
            await self._positions.submit(lambda connection: connection.execute(statement, (self._name,)).rowcount)

    async def restart(self) -> None:
        """Forgets the position and the notes; see the port."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("delete from positions where lane = ?", (self._name,))
            connection.execute("delete from notes where lane = ?", (self._name,))

        async with self._committing:
            with _unavailable(self._name):
                await self._positions.submit(work)
            self._epoch = None
            self._read = self._committed = self._wanted = 0

    async def close(self) -> None:
        """Gives the reading end up; harmless when not open."""
        self._bell.close()
        await self._file.close()
        self._lock.release()

    async def _load(self) -> None:
        row = await self._positions.read(lambda connection: reader_position(connection, self._name))
        if row is not None:
            self._epoch, self._committed = row
            self._read = self._wanted = self._committed

    async def _store(self, epoch: int | None, position: int) -> None:
        row = (self._name, epoch, position)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(_COMMIT, row)
            connection.execute("delete from notes where lane = ? and (epoch <> ? or position <= ?)", row)

        with _unavailable(self._name):
            await self._positions.submit(work)

    async def _next(self, limit: int) -> Sequence[Stored]:
        after = self._read
        with _unavailable(self._name):
            page = await self._file.read(lambda connection: look(connection, after, limit), None)
        if page is None:
            return []
        if self._epoch is None:
            start = page.first - 1  # what is gone by now was never this reader's; from here on nothing is missed
            await self._store(page.epoch, start)
            self._epoch, self._read, self._committed = page.epoch, start, start
        elif page.epoch != self._epoch:
            raise self._lost(f"the lane was made anew: {self._path}")
        elif page.last < self._read:
            raise self._lost(f"the lane ends at position {page.last}: {self._path} is an older copy")
        elif page.first > self._read + 1:
            raise self._lost(f"the first record left is {page.first}")
        if page.records:
            self._read = page.records[-1].position
        return page.records

    def _lost(self, cause: str) -> PositionLost:
        return PositionLost(
            f"lane {self._name}: position {self._read} is lost, {cause}; restart the reader to go on from what is left",
            metadata={"lane": self._name, "position": str(self._read)},
        )

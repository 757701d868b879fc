"""SQLite files: one writing connection on one thread with group commit, readers beside it.

A file has one writing process (a lock file says which) and in it one writing thread: what has queued, up to 64 items,
becomes one transaction and wakes the event loop once. Readers of the same process use connections of their own;
readers in other processes open the file read-only, never create it and never fold its log.

It must not know any table: stores bring their migrations and their work.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec

from mesh.errors import InvalidArgument
from mesh.filelock import FileLock
from mesh.sqlite_groups import (
    LateReadSession,
    ReadSession,
    StoreError,
    Threads,
    Work,
    WriteSession,
    roll_back,
    store_error,
)

__all__ = ["Migration", "Reader", "StoreError", "StoreUrlError", "Work", "Writer", "file_of", "load_migrations"]

T = TypeVar("T")

_WRITE_GROUP: Final = 64
_READ_GROUP: Final = 8
_READ_THREADS: Final = 2
_QUEUE_LIMIT: Final = 10_000
_OLDEST_SQLITE: Final = (3, 37, 0)  # strict tables

_SHARED_PRAGMAS: Final = ("busy_timeout = 1000", "cache_size = -65536", "temp_store = memory", "trusted_schema = off")
_WRITER_PRAGMAS: Final = (
    "journal_mode = wal",
    "fullfsync = on",  # macOS only: there a plain fsync does not reach the medium
    "checkpoint_fullfsync = on",
    # The commit that reaches it folds the log, and everybody waits: 50 to 70 ms for 10,000 pages.
    "wal_autocheckpoint = 1000",
    "journal_size_limit = 67108864",
    "foreign_keys = off",
    "secure_delete = fast",  # some builds overwrite every freed page, which makes a trim dear
)


class StoreUrlError(InvalidArgument):
    """A store URL that cannot be used: one line with the URL and the known kinds."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="FIELD_INVALID")


class Migration(msgspec.Struct, frozen=True):
    """One numbered schema change; numbers start at 1 and have no gaps."""

    number: int
    name: str
    sql: str


def file_of(url: str, data_dir: Path) -> Path:
    """Returns the path that `sqlite:///path` names: below `data_dir`, or absolute with a fourth slash.

    Raises:
        StoreUrlError: another scheme, or no path.
    """
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite":
        raise StoreUrlError(f"{url!r} is no known store URL; known: sqlite:///path")
    if not rest.startswith("/") or not rest[1:]:
        raise StoreUrlError(f"{url!r} names no path; write sqlite:///path")
    return data_dir / rest[1:]


def load_migrations(package: str, folder: str = "migrations") -> list[Migration]:
    """Reads `<package>/<folder>/NNNN_name.sql`.

    Raises:
        StoreError: a gap, a number used twice, or another name.
    """
    found: list[Migration] = []
    for entry in resources.files(package).joinpath(folder).iterdir():
        if not entry.name.endswith(".sql"):
            continue
        match = re.fullmatch(r"(\d{4})_([a-z0-9_]+)\.sql", entry.name)
        if match is None:
            raise StoreError(f"{package}/{folder}/{entry.name}: name a migration NNNN_name.sql")
        found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    _check_numbers(found, f"{package}/{folder}")
    return found


def _check_numbers(migrations: Sequence[Migration], where: str) -> None:
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise StoreError(f"{where}: migration {expected} is missing or used twice; number them 1, 2, 3 …")


class Writer:
    """The one writing connection of a file, on a thread of its own, with group commit; and readers beside it."""

    def __init__(
        self,
        path: Path,
        *,
        migrations: Sequence[Migration],
        lock_wait: float = 10.0,
        committed: Callable[[], None] | None = None,
        synced: bool = True,
    ) -> None:
        """Opens nothing yet.

        Args:
            path: the file; its folder is made where there is none.
            migrations: all of them, by number.
            lock_wait: seconds to wait for another process that hands the file over.
            committed: called in the writing thread after each commit; must be quick and must not raise.
            synced: a commit survives the loss of power; without, only the end of the process, and costs no sync.
        """
        _check_numbers(migrations, str(path))
        self._path = path
        self._migrations = migrations
        self._synced = synced
        self._lock_wait = lock_wait
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self._writing = Threads(
            path.name, count=1, group=_WRITE_GROUP, connect=lambda: WriteSession(self._connect(), path, committed)
        )
        self._reading = Threads(
            f"{path.name}-read",
            count=_READ_THREADS,
            group=_READ_GROUP,
            connect=lambda: ReadSession(_connect_read_only(path), path),
        )
        self._reading_started = False
        self._starting = asyncio.Lock()
        self._open = False

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def open(self) -> None:
        """Takes the lock, opens or makes the file, and migrates it.

        Raises:
            StoreError: one line: what, where, what to do.
        """
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            oldest = ".".join(map(str, _OLDEST_SQLITE))
            raise StoreError(f"{self._path}: SQLite {sqlite3.sqlite_version} is too old; use a Python with {oldest}")
        try:
            owner = await self._lock.acquire(self._lock_wait)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}; choose a folder that can be written") from error
        if owner is not None:
            raise StoreError(f"{self._path} is in use by process {owner}; end it or choose another data folder")
        try:
            await self._writing.start()
        except BaseException:
            self._lock.release()
            raise
        self._open = True

    async def submit(self, work: Work[T]) -> T:
        """Runs work in a transaction and returns its result once that is durable.

        Work may be run again after a rollback, so it must depend on its arguments and the connection only. It must not
        begin or end a transaction (executescript does). What it raises reaches the caller and undoes only this item.
        A cancelled caller does not know whether the work was done.

        Raises:
            StoreError: the file or the disk refused; with `unknown` set when the commit itself failed.
        """
        self._check(self._writing)
        return cast(T, await self._writing.enqueue(work))

    async def read(self, work: Work[T]) -> T:
        """Runs work on a read-only connection; it sees everything committed before the call, as one snapshot.

        Raises:
            StoreError: the file or the disk refused.
        """
        self._check(self._reading)
        if not self._reading_started:
            await self._start_reading()
        return cast(T, await self._reading.enqueue(work))

    async def close(self) -> None:
        """Finishes what is queued, then closes the file and gives up the lock; harmless when not open."""
        if not self._open:
            return
        self._open = False
        async with self._starting:
            await self._reading.stop()
            self._reading_started = False
        await self._writing.stop()  # last: the last connection folds the write-ahead log into the file
        self._lock.release()

    def _check(self, threads: Threads) -> None:
        if not self._open:
            raise StoreError(f"{self._path} is not open")
        if threads.waiting >= _QUEUE_LIMIT:
            raise StoreError(f"{self._path}: {_QUEUE_LIMIT} calls are waiting for it; slow down")

    async def _start_reading(self) -> None:
        async with self._starting:
            if not self._open:
                raise StoreError(f"{self._path} is not open")
            if not self._reading_started:
                await self._reading.start()
                self._reading_started = True

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            _make_private(self._path)
            connection = sqlite3.connect(self._path, isolation_level=None, cached_statements=512)
            synchronous = f"synchronous = {'full' if self._synced else 'normal'}"
            for pragma in (*_SHARED_PRAGMAS, *_WRITER_PRAGMAS, synchronous):
                connection.execute(f"pragma {pragma}").fetchall()
            _migrate(connection, self._path, self._migrations)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error | OSError):
                raise store_error(self._path, error) from error
            raise
        return connection


def _make_private(path: Path) -> None:
    """Makes the file where there is none, for the owner only; its logs inherit the mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Not opened otherwise: closing any descriptor of a file drops the locks that SQLite holds on it.
        return


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    version: int = connection.execute("pragma user_version").fetchone()[0]
    connection.execute("select count(*) from sqlite_master").fetchone()  # a damaged schema shows here, not later
    if version > len(migrations):
        raise StoreError(
            f"{path} has schema version {version}, this program knows up to {len(migrations)}; "
            "start the newer program or choose another data folder"
        )
    for migration in migrations[version:]:
        script = f"begin immediate;\n{migration.sql}\n;pragma user_version = {migration.number};\ncommit;"
        try:
            connection.executescript(script)
        except sqlite3.Error as error:
            roll_back(connection)
            raise StoreError(f"{path}: migration {migration.number} ({migration.name}) failed: {error}") from error


def _connect_read_only(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        for pragma in (*_SHARED_PRAGMAS, "query_only = on"):
            connection.execute(f"pragma {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


class Reader:
    """Reads a file that another process writes; never makes it and never writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = Threads(
            f"{path.name}-reader",
            count=1,
            group=_READ_GROUP,
            connect=lambda: LateReadSession(path, lambda: _connect_read_only(path)),
        )
        self._open = False

    async def open(self) -> None:
        """Starts the thread; the file may come later."""
        await self._threads.start()
        self._open = True

    async def read(self, work: Work[T], absent: T) -> T:
        """Runs work on one snapshot, or returns `absent` while the file or its schema is not there.

        Raises:
            StoreError: the file is there and cannot be read.
        """
        if not self._open:
            raise StoreError(f"{self._path} is not open")
        value = await self._threads.enqueue(work)
        return absent if value is LateReadSession.ABSENT else cast(T, value)

    async def close(self) -> None:
        """Finishes what is queued and closes the file; harmless when not open."""
        if self._open:
            self._open = False
            await self._threads.stop()

"""Inside `mesh.sqlite`: threads that run queued items in groups, and what one group does to a connection.

Items of a writing group run without savepoints: a savepoint costs 1-1.6 µs an item and a copy of every page it touches,
up to 28 % of an inbox write. When an item raises, everything is rolled back and the group runs again with savepoints,
so the failing item harms no neighbour, and a burst of failing items costs one more pass, not a commit each.

It must not know any table, and nothing but `mesh.sqlite` imports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from mesh.errors import Unavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_IOERR: "check the disk and its free space",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable",
    sqlite3.SQLITE_PERM: "make the file and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "check that its folder exists and is writable",
    sqlite3.SQLITE_CORRUPT: "move it away or restore a copy",
    sqlite3.SQLITE_NOTADB: "move it away or restore a copy",
    sqlite3.SQLITE_BUSY: "end the other process that writes it",
    sqlite3.SQLITE_PROTOCOL: "end the other process that writes it",
    sqlite3.SQLITE_NOMEM: "give the process more memory",
}


class StoreError(Unavailable):
    """A file that cannot be opened, read or written now: one line with the path, the cause and what to do.

    `unknown` is True when the write may have happened all the same (the commit itself failed).
    """

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(" ".join(message.split()), reason="STORE_UNAVAILABLE")
        self.unknown = unknown


def store_error(path: Path, error: BaseException, *, unknown: bool = False) -> StoreError:
    """A StoreError with SQLite's words and the advice that fits them."""
    failure = StoreError(f"{path}: {error}; {_ADVICE.get(_environmental(error), 'check it')}", unknown=unknown)
    failure.__cause__ = error
    return failure


def _environmental(error: BaseException) -> int:
    """The primary SQLite code when the file or the machine is to blame, 0 when the item is."""
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code if code in _ADVICE else 0


def _verdict(path: Path, error: BaseException) -> BaseException:
    return store_error(path, error) if _environmental(error) else error


class Item(msgspec.Struct):
    """Work and the future that waits for it."""

    work: Work[object]
    future: asyncio.Future[object]


class Outcome(msgspec.Struct):
    """What became of an item: a value or an error."""

    future: asyncio.Future[object]
    value: object = None
    error: BaseException | None = None


class Session(Protocol):
    """What one thread has open. Made, used and closed in that thread."""

    def settle(self, items: Sequence[Item]) -> list[Outcome]:
        """Runs the items; every one gets an outcome."""
        ...

    def close(self) -> None:
        """Closes what is open."""
        ...


class Threads:
    """Threads that take queued items in groups and wake the loop once a group.

    They are daemons: a process that forgets to stop them still ends.
    """

    def __init__(self, name: str, *, count: int, group: int, connect: Callable[[], Session]) -> None:
        self._name = name
        self._count = count
        self._group = group
        self._connect = connect
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Returns when every thread has its session; raises what the first failing one raised."""
        self._loop = asyncio.get_running_loop()
        opened: list[asyncio.Future[object]] = []
        for number in range(self._count):
            future: asyncio.Future[object] = self._loop.create_future()
            name = f"sqlite-{self._name}-{number}"
            thread = threading.Thread(target=self._run, args=(future,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
            opened.append(future)
        for result in await asyncio.gather(*opened, return_exceptions=True):
            if isinstance(result, BaseException):
                await self.stop()
                raise result

    def enqueue(self, work: Work[object]) -> asyncio.Future[object]:
        """Queues work; the future has its result."""
        future: asyncio.Future[object] = self._loop.create_future()
        self._queue.put(Item(work, future))
        return future

    @property
    def waiting(self) -> int:
        """How many items are queued."""
        return self._queue.qsize()

    async def stop(self) -> None:
        """Finishes what is queued, closes the sessions and ends the threads."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        self._queue = queue.SimpleQueue()

    def _run(self, opened: asyncio.Future[object]) -> None:
        waiting = self._queue
        try:
            session = self._connect()
        except BaseException as error:
            self._tell([Outcome(opened, error=error)])
            return
        self._tell([Outcome(opened)])
        with contextlib.closing(session):
            ending = False
            while not ending:
                items, ending = self._take(waiting)
                wanted = [item for item in items if not item.future.cancelled()]
                if wanted:
                    self._tell(_settle(session, wanted))
                del items, wanted  # else the last group's data would stay until the next one comes

    def _take(self, waiting: queue.SimpleQueue[Item | None]) -> tuple[list[Item], bool]:
        items: list[Item] = []
        item = waiting.get()
        try:
            while item is not None:
                items.append(item)
                if len(items) == self._group:
                    return items, False
                item = waiting.get_nowait()
        except queue.Empty:
            return items, False
        return items, True

    def _tell(self, outcomes: list[Outcome]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_resolve, outcomes)


def _settle(session: Session, items: Sequence[Item]) -> list[Outcome]:
    try:
        return session.settle(items)
    except BaseException as error:  # nobody may be left waiting, whatever broke
        return [Outcome(item.future, error=RuntimeError(f"the group broke: {error!r}")) for item in items]


def _resolve(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.future.done():
            continue
        if outcome.error is None:
            outcome.future.set_result(outcome.value)
        elif isinstance(outcome.error, StopIteration):  # a future refuses it, and its caller would wait for ever
            outcome.future.set_exception(RuntimeError("work raised StopIteration"))
        else:
            outcome.future.set_exception(outcome.error)


def roll_back(connection: sqlite3.Connection) -> None:
    """Ends a transaction without effect, if there is one."""
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("rollback")


class WriteSession:
    """Group commit on the writing connection."""

    def __init__(self, connection: sqlite3.Connection, path: Path, committed: Callable[[], None] | None) -> None:
        self._connection = connection
        self._path = path
        self._committed = committed

    def close(self) -> None:
        """Closes the connection; the last one of a file folds the write-ahead log into it."""
        self._connection.close()

    def settle(self, items: Sequence[Item]) -> list[Outcome]:
        """Runs a group as one transaction, and again with savepoints when an item fails."""
        outcomes = self._transact(items, savepoints=False)
        if outcomes is None:
            outcomes = self._transact(items, savepoints=True)
        if outcomes is None:  # SQLite undid the whole transaction (disk full): every item gets its own verdict
            outcomes = []
            for item in items:
                outcomes += self._transact([item], savepoints=False) or ()
        return outcomes

    def _transact(self, items: Sequence[Item], *, savepoints: bool) -> list[Outcome] | None:
        """One transaction; None when an item spoiled it for its neighbours and nothing was done."""
        connection = self._connection
        run = self._run_in_savepoint if savepoints else self._run_plain
        outcomes: list[Outcome] = []
        try:
            connection.execute("begin immediate")
            for item in items:
                outcome = run(item)
                outcomes.append(outcome)
                if outcome.error is not None and not (savepoints and connection.in_transaction):
                    roll_back(connection)
                    return outcomes if len(items) == 1 else None
            if not connection.in_transaction:
                raise RuntimeError("work ended the transaction it was given")
            return self._commit(outcomes)
        except (sqlite3.Error, RuntimeError) as error:
            roll_back(connection)
            return [Outcome(item.future, error=_verdict(self._path, error)) for item in items]

    def _run_plain(self, item: Item) -> Outcome:
        try:
            return Outcome(item.future, item.work(self._connection))
        except BaseException as error:
            return Outcome(item.future, error=_verdict(self._path, error))

    def _run_in_savepoint(self, item: Item) -> Outcome:
        self._connection.execute("savepoint item")
        outcome = self._run_plain(item)
        if self._connection.in_transaction:
            if outcome.error is not None:
                self._connection.execute("rollback to item")
            self._connection.execute("release item")
        return outcome

    def _commit(self, outcomes: list[Outcome]) -> list[Outcome]:
        try:
            self._connection.execute("commit")
        except sqlite3.Error as error:
            roll_back(self._connection)
            for outcome in outcomes:
                outcome.error = outcome.error or store_error(self._path, error, unknown=True)
            return outcomes
        if self._committed is not None:
            self._committed()
        return outcomes


class ReadSession:
    """Reads on a connection of its own: one snapshot an item."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def settle(self, items: Sequence[Item]) -> list[Outcome]:
        """Runs each item in a read transaction of its own."""
        return [self._run(item) for item in items]

    def _run(self, item: Item) -> Outcome:
        try:
            self._connection.execute("begin")
            value = item.work(self._connection)
            self._connection.execute("commit")
        except BaseException as error:
            roll_back(self._connection)
            return Outcome(item.future, error=_verdict(self._path, error))
        return Outcome(item.future, value)


class LateReadSession:
    """Reads a file of another process that may come later, go, or be made anew; the value is ABSENT without one."""

    ABSENT: Final = object()

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._reading: ReadSession | None = None
        self._identity = (0, 0)

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def settle(self, items: Sequence[Item]) -> list[Outcome]:
        """Runs each item on its own snapshot."""
        try:
            reading = self._current()
        except (sqlite3.Error, OSError) as error:
            return [Outcome(item.future, error=store_error(self._path, error)) for item in items]
        if reading is None:
            return [Outcome(item.future, self.ABSENT) for item in items]
        return reading.settle(items)

    def _current(self) -> ReadSession | None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self.close()
            return None
        if self._reading is None or self._identity != (found.st_dev, found.st_ino):
            self.close()
            if found.st_size > 0:
                self._identity = (found.st_dev, found.st_ino)
                self._reading = self._open()
        return self._reading

    def _open(self) -> ReadSession | None:
        connection = self._connect()
        try:
            # Version 0: its writer has not made the schema yet.
            if connection.execute("pragma user_version").fetchone()[0] > 0:
                return ReadSession(connection, self._path)
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

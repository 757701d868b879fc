"""SQLite without threads: transactions are done in the loop, after a while, and may go wrong in the ways they can.

Stands in for the threads of `mesh.sqlite`, so that every store, lane and lock is the real one. A file outlives the
machine that wrote it; a transaction is done whole or not at all, and its answer may be lost all the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

from mesh.filelock import FileLock
from mesh.sqlite_groups import Item, Outcome, Session, StoreError, Work, _resolve
from tests.simulation.world import Host, Trouble, World, current


class SimulatedThreads:
    """Takes the place of `mesh.sqlite_groups.Threads`."""

    world: World

    def __init__(self, name: str, *, count: int, group: int, connect: Callable[[], Session]) -> None:
        host = current()
        assert host is not None, "a store is opened on a machine"
        self._host: Host = host
        self._store = name.removesuffix("-reader").removesuffix("-read")
        self._writes = name == self._store
        self._group = group
        self._connect = connect
        self._queue: deque[Item] = deque()
        self._session: Session | None = None
        self._busy = False

    async def start(self) -> None:
        """Opens the file."""
        self._session = self._connect()
        self._host.held.append(self._close)

    def enqueue(self, work: Work[object]) -> asyncio.Future[object]:
        """Queues work; the future has its result."""
        future: asyncio.Future[object] = self.world.loop.create_future()
        self._queue.append(Item(work, future))
        if not self._busy:
            self._busy = True
            self.world.loop.call_later(self.world.latency(), self._run)
        return future

    @property
    def waiting(self) -> int:
        """How many items are queued."""
        return len(self._queue)

    async def stop(self) -> None:
        """Finishes what is queued and closes the file."""
        while self._busy and self._host.alive:  # noqa: ASYNC110 - time passes by timers only
            await asyncio.sleep(0.001)
        self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _run(self) -> None:
        if not self._host.alive or self._session is None:
            return
        items = [self._queue.popleft() for _ in range(min(self._group, len(self._queue)))]
        items = [item for item in items if not item.future.cancelled()]
        trouble = self.world.trouble(self._store, writes=self._writes)
        if items:
            self._settle(items, trouble)
        self._busy = bool(self._queue)
        if self._busy:
            self.world.loop.call_later(self.world.latency(), self._run)

    def _settle(self, items: list[Item], trouble: Trouble | None) -> None:
        world, session = self.world, self._session
        if session is None:
            return
        if not self._writes:
            late = trouble.seconds if trouble is not None else 0.0
            world.loop.call_later(late, self._answer, session.settle(items))
            return
        if not world.hook(self._host, f"before {self._store}"):
            return
        kind = None if trouble is None else trouble.kind
        if trouble is not None and kind == "stalled":
            world.loop.call_later(trouble.seconds, self._settle, items, None)
            return
        if trouble is not None and kind in ("refused", "late"):
            if kind == "late":
                world.loop.call_later(trouble.seconds, self._apply, items)
            self._answer([Outcome(item.future, error=_failure(kind == "late")) for item in items])
            return
        outcomes = session.settle(items)
        if not world.hook(self._host, f"after {self._store}"):
            return
        if kind == "lost":
            outcomes = [Outcome(item.future, error=_failure(True)) for item in items]
        world.loop.call_later(
            trouble.seconds if trouble is not None and kind == "slow" else world.latency(), self._answer, outcomes
        )

    def _apply(self, items: list[Item]) -> None:
        """Does what was reported as failed: nobody hears of it."""
        if self._session is not None:
            for outcome in self._session.settle([Item(item.work, self.world.loop.create_future()) for item in items]):
                outcome.future.cancel()

    def _answer(self, outcomes: list[Outcome]) -> None:
        if self._host.alive:
            _resolve(outcomes)


def _failure(unknown: bool) -> StoreError:
    return StoreError("the simulated store did not answer", unknown=unknown)


class SimulatedLock(FileLock):
    """A lock that its machine gives up when it dies."""

    async def acquire(self, wait: float) -> str | None:
        """Takes the lock."""
        owner = await super().acquire(wait)
        host = current()
        if owner is None and host is not None:
            host.held.append(self.release)
        return owner


class SimulatedBell:
    """Takes the place of `mesh.lanes.bell.Bell`: a knock reaches whoever listens at that path."""

    _hung: dict[Path, SimulatedBell] = {}  # noqa: RUF012 - one for all, as a file system is

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rung = asyncio.Event()

    def open(self) -> None:
        """Hangs it up."""
        self._hung[self._path] = self

    def close(self) -> None:
        """Takes it down."""
        if self._hung.get(self._path) is self:
            del self._hung[self._path]

    def clear(self) -> None:
        """Forgets the knocks so far."""
        self._rung.clear()

    async def wait(self, limit: float) -> None:
        """Waits for a knock, at most so many seconds."""
        try:
            async with asyncio.timeout(limit):
                await self._rung.wait()
        except TimeoutError:
            return

    @classmethod
    def ring(cls, path: Path) -> None:
        """Knocks."""
        bell = cls._hung.get(path)
        if bell is not None:
            bell._rung.set()

"""Three replicas of Cassandra's tables in memory, below the real adapters of delivery: what a quorum sees, and when.

A write goes to each replica and counts once two have it; what is under way arrives even when the answer was a failure,
or whoever wrote it is dead. A read asks all, takes the first two, merges their cells by time, and leaves both with the
outcome before it answers, as the real ones do. Each replica may lag, not hear, be down, or come back without what it
had last.

More than one replica that forgets is beyond what is promised; whoever makes scripts keeps to one. This module must not
know what rows mean: that is in the adapters above the session.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal, TypeVar

import msgspec

from mesh.cassandra import REQUEST_TIMEOUT, Bound, Row, StatementRefused, StoreUnavailable, Value
from mesh.cassandra_migrations import load_migrations
from tests.simulation.cells import Change, Look, Name, Partition, Table, bind, read_schema
from tests.simulation.world import Host, Trouble, World

COUNT: Final = 3
QUORUM: Final = 2

Weakness = Literal["lagging", "deaf", "down"]

_LARGEST: Final = 1 << 63

T = TypeVar("T")


class Weak(msgspec.Struct):
    """What one replica does wrong for a while.

    Attributes:
        kind: "lagging": changes come late; "deaf": they are lost on it; "down": it answers nothing, and has what was
            meant for it when it is back.
        seconds: how late.
        share: of the changes that are hit.
    """

    kind: Weakness
    seconds: float = 0.0
    share: float = 1.0


class Replica:
    """The tables of one of the three.

    Attributes:
        weak: what it does wrong now.
        hit: changes and questions that met that.
    """

    def __init__(self) -> None:
        self.weak: Weak | None = None
        self.hit = 0
        self._tables: dict[tuple[str, Name], Partition] = {}
        self._log: list[tuple[float, str, Name, Partition]] = []
        self._held: list[Change] = []

    @property
    def down(self) -> bool:
        """Whether it answers nothing."""
        return self.weak is not None and self.weak.kind == "down"

    def take(self, change: Change, now: float) -> bool:
        """Applies a change, or keeps it for when it is up; returns whether it is applied."""
        if self.down:
            self.hit += 1
            self._held.append(change)
            return False
        self._absorb(change.table, change.partition, change.cells, now)
        return True

    def see(self, table: str, partition: Name) -> Partition:
        """Returns what it has of a partition."""
        found = self._tables.get((table, partition))
        return Partition() if found is None else found.copy()

    def tables(self, table: str) -> Iterator[tuple[Name, Partition]]:
        """Yields what it has of a table, by partition."""
        yield from ((key, found) for (name, key), found in self._tables.items() if name == table)

    def heal(self, now: float) -> None:
        """Works again, and gets what was kept for it."""
        self.weak = None
        held, self._held = self._held, []
        for change in held:
            self.take(change, now)

    def forget(self, since: float) -> int:
        """Loses what it took since then; returns how many changes that were."""
        kept = [entry for entry in self._log if entry[0] < since]
        lost = len(self._log) - len(kept)
        self._tables, self._log = {}, []
        for at, table, partition, cells in kept:
            self._absorb(table, partition, cells, at)
        return lost

    def _absorb(self, table: str, partition: Name, cells: Partition, now: float) -> None:
        if self._tables.setdefault((table, partition), Partition()).absorb(cells):
            self._log.append((now, table, partition, cells))


class Ring:
    """The replicas.

    Args:
        choose: every choice comes from here.
        latency: seconds of one way.
        now: the store's own clock, by which things live and expire, in seconds.
    """

    def __init__(
        self,
        *,
        choose: random.Random | None = None,
        latency: Callable[[], float] = lambda: 0.0,
        now: Callable[[], float],
    ) -> None:
        self.tables: Mapping[str, Table] = _schema()
        self.replicas = tuple(Replica() for _ in range(COUNT))
        self.choose = random.Random() if choose is None else choose
        self.latency = latency
        self.now = now
        # A row of this category is refused, as by a damaged index.
        self.refused_category: str | None = None
        self.disagreed = 0
        incarnation = "insert into store (name, value) values ('incarnation', ?) using timestamp ?"
        seed = self.bind(incarnation, (self.choose.randbytes(16), 1))
        assert isinstance(seed, Change)
        for replica in self.replicas:
            replica.take(seed, -1.0)

    def bind(self, statement: str, values: Sequence[Value]) -> Change | Look:
        """Returns what a statement means.

        Raises:
            StatementRefused: a value is none that the store takes.
        """
        for value in values:
            if isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise StatementRefused(f"{error}") from None
                if value == self.refused_category:
                    raise StatementRefused("an index takes no such category")
            elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
                raise StatementRefused(f"{value} is too large")
        return bind(self.tables, statement, values, self.now())

    def send(self, change: Change, written: Callable[[], None]) -> None:
        """Sends a change to every replica; tells of each that has it."""
        loop = asyncio.get_running_loop()
        for replica in self.replicas:
            delay, weak = self.latency(), replica.weak
            if weak is not None and weak.kind != "down" and self.choose.random() < weak.share:
                replica.hit += 1
                if weak.kind == "deaf":
                    continue
                delay += weak.seconds
            loop.call_later(delay, self._arrive, replica, change, written)

    def _arrive(self, replica: Replica, change: Change, written: Callable[[], None]) -> None:
        if replica.take(change, asyncio.get_running_loop().time()):
            written()

    def ask(self, look: Look, seen: Callable[[Replica, Partition], None]) -> None:
        """Asks every replica that is up; tells of what each has when the question reaches it."""
        loop = asyncio.get_running_loop()
        for replica in self.replicas:
            loop.call_later(self.latency(), self._asked, replica, look, seen)

    def _asked(self, replica: Replica, look: Look, seen: Callable[[Replica, Partition], None]) -> None:
        if replica.down:
            replica.hit += 1
        else:
            found = replica.see(look.table.name, look.partition)
            asyncio.get_running_loop().call_later(self.latency(), seen, replica, found)

    def held(self, table: str) -> Iterator[tuple[Name, Name, Mapping[str, Any]]]:
        """Yields every row that any replica has: the keys of its partition and of itself, and its values."""
        for replica in self.replicas:
            for partition, found in replica.tables(table):
                for name, cells in found.live(self.tables[table], self.now()):
                    yield partition, name, cells

    def repair(self, look: Look, seen: Sequence[tuple[Replica, Partition]]) -> Partition:
        """Returns the cells of some replicas merged, after each of them has the outcome."""
        merged = Partition()
        for _, found in seen:
            merged.absorb(found)
        change = Change(look.table.name, look.partition, merged)
        for replica, found in seen:
            if found.absorb(merged):
                self.disagreed += 1
                replica.take(change, asyncio.get_running_loop().time())
        return merged

    def forget(self, number: int, seconds: float) -> int:
        """Lets a replica die and come back without its last seconds; returns how many changes it lost."""
        return self.replicas[number].forget(asyncio.get_running_loop().time() - seconds)

    def weaken(self, number: int, weak: Weak) -> None:
        """Lets a replica do something wrong until it is healed."""
        self.heal(number)
        self.replicas[number].weak = weak

    def heal(self, number: int | None = None) -> None:
        """A replica works again, or all do."""
        for replica in self.replicas if number is None else [self.replicas[number]]:
            replica.heal(asyncio.get_running_loop().time())


class RingSession:
    """One process's connection to the replicas; implements `mesh.cassandra.Session`."""

    datacenter = "dc1"

    def __init__(self, ring: Ring, *, timeout: float = REQUEST_TIMEOUT) -> None:
        self.ring = ring
        self._timeout = timeout
        self._open = True

    @property
    def connected(self) -> bool:
        """See `Session`."""
        return self._open

    async def prepare(self, statements: Sequence[str]) -> None:
        """See `Session`: whatever is used is understood when it is used."""

    def execute(self, statement: str, values: Sequence[Value] = ()) -> Awaitable[list[Row]]:
        """See `Session`."""
        future: asyncio.Future[list[Row]] = asyncio.get_running_loop().create_future()
        try:
            bound = self.ring.bind(statement, values)
        except StatementRefused as error:
            future.set_exception(error)
            return future
        if isinstance(bound, Look):
            self._read(bound, future)
        else:
            self._write([bound], future, [])
        return self._within(future)

    def batch(self, statements: Sequence[Bound]) -> Awaitable[None]:
        """See `Session`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places: dict[tuple[str, Name], Partition] = {}
        try:
            for statement, values in statements:
                change = self.ring.bind(statement, values)
                assert isinstance(change, Change), "a batch only writes"
                places.setdefault((change.table, change.partition), Partition()).absorb(change.cells)
        except StatementRefused as error:
            future.set_exception(error)
            return future
        # Each partition is on its own way; what they share is the answer.
        self._write([Change(*place, cells) for place, cells in places.items()], future, None)
        return self._within(future)

    async def close(self) -> None:
        """See `Session`."""
        self._open = False

    def _within(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._timeout, _fail, future, _failure("no quorum answered in time", unknown=True))
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def _write(self, changes: Sequence[Change], future: asyncio.Future[T], answer: T) -> None:
        self._store_all(changes, lambda: self._later(self.ring.latency(), _answer, future, answer))

    def _store_all(self, changes: Sequence[Change], stored: Callable[[], None]) -> None:
        """Sends changes and tells once when each of them is stored at a quorum."""
        left = [QUORUM] * len(changes)

        def written(number: int) -> None:
            left[number] -= 1
            if left[number] == 0 and max(left) <= 0:
                stored()

        for number, change in enumerate(changes):
            self.ring.send(change, partial(written, number))

    def _read(self, look: Look, future: asyncio.Future[list[Row]]) -> None:
        found: list[tuple[Replica, Partition]] = []

        def seen(replica: Replica, partition: Partition) -> None:
            found.append((replica, partition))
            if len(found) == QUORUM:
                _answer(future, look.answer(self.ring.repair(look, found), self.ring.now()))

        self.ring.ask(look, seen)

    def _later(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_later(seconds, call, *arguments)


class SimulatedSession(RingSession):
    """The connection of a simulated machine: it may die around each statement, and the store as a whole may go wrong.

    Args:
        ring: the replicas.
        world: whose hooks and troubles.
        host: whose machine.
        store: the name that troubles and hooks go by.
    """

    def __init__(self, ring: Ring, world: World, host: Host, store: str) -> None:
        super().__init__(ring)
        self._world = world
        self._host = host
        self._name = store

    def _write(self, changes: Sequence[Change], future: asyncio.Future[T], answer: T) -> None:
        if not self._world.hook(self._host, f"before {self._name}"):
            return
        trouble = self._world.trouble(self._name)
        if trouble is not None and trouble.kind == "refused":
            _fail(future, _failure("the simulated store refuses everything", unknown=False))
        elif trouble is not None and trouble.kind == "stalled":
            self._later(trouble.seconds, self._send, changes, future, answer, None)
        elif trouble is not None and trouble.kind == "late":
            # Nobody hears of it when it is done.
            self._later(trouble.seconds, self._store_all, changes, lambda: None)
            self._later(self._world.latency(), _fail, future, _failure("the write was abandoned", unknown=True))
        else:
            self._send(changes, future, answer, trouble)

    def _send(self, changes: Sequence[Change], future: asyncio.Future[T], answer: T, trouble: Trouble | None) -> None:
        def stored() -> None:
            if not self._host.alive or not self._world.hook(self._host, f"after {self._name}"):
                return
            if trouble is not None and trouble.kind == "lost":
                _fail(future, _failure("the answer was lost", unknown=True))
            else:
                late = trouble.seconds if trouble is not None else 0.0
                self._later(late + self._world.latency(), _answer, future, answer)

        self._store_all(changes, stored)

    def _read(self, look: Look, future: asyncio.Future[list[Row]]) -> None:
        trouble = self._world.trouble(self._name)
        if trouble is not None and trouble.kind == "refused":
            _fail(future, _failure("the simulated store refuses everything", unknown=False))
        else:
            read = super()._read
            self._later(0.0 if trouble is None else trouble.seconds, lambda: read(look, future))


def _answer(future: asyncio.Future[T], answer: T) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future[Any], error: StoreUnavailable) -> None:
    if not future.done():
        future.set_exception(error)


def _failure(text: str, *, unknown: bool) -> StoreUnavailable:
    return StoreUnavailable(text, outcome_unknown=unknown)


@lru_cache(maxsize=1)
def _schema() -> Mapping[str, Table]:
    return read_schema(one.text for one in load_migrations("svc_delivery.store", "cassandra_migrations"))

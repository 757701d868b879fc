"""Lanes: ordered durable logs with one reader's position beside each; how events and retries wait.

The port (`LaneWriter`, `LaneReader`), its values and failures, the low-water mark, and the choice of an adapter by URL.
A lane carries bytes and must not know what they mean. Steps 3, 4 and 5 of the way of a notification go through lanes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from mesh.clock import Clock
from mesh.errors import DataLoss, Unavailable
from mesh.lanes.positions import LowWater, offset_of, partition_of, position_of
from mesh.sqlite import Migration, Reader, StoreUrlError, Writer, file_of, load_migrations
from mesh.stores import StoreAdmin

__all__ = [
    "KNOWN",
    "Backlog",
    "Lag",
    "LaneReader",
    "LaneUnavailable",
    "LaneWriter",
    "LowWater",
    "Parked",
    "PositionLost",
    "Record",
    "Stored",
    "is_embedded",
    "lane_stores",
    "offset_of",
    "open_reader",
    "open_writer",
    "partition_of",
    "position_migrations",
    "position_of",
]

KNOWN = "sqlite:///folder, kafka://host:9092,host:9092/PREFIX?partitions=4&replicas=3"
_KAFKA = "kafka://"


class Record(msgspec.Struct, frozen=True, gc=False):
    """What is appended: records of one key keep their order wherever a lane has partitions.

    Attributes:
        key: chooses the partition, unless `partition` does.
        value: the bytes.
        partition: one of the reader's own, for what should come back to the same process; None leaves it to the key.
            A lane without partitions, or without this one, takes the record all the same.
    """

    key: bytes
    value: bytes
    partition: int | None = None


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A record with its place in the lane and the wall-clock time of its append, Unix seconds.

    The position names partition and offset, see `position_of`; positions of two partitions say nothing of their order.
    """

    position: int
    key: bytes
    value: bytes
    append_time: float


class Parked(msgspec.Struct, frozen=True, gc=False):
    """A record that could not be understood, kept with the reason and the time it was put aside.

    Of one that is too large for its store `left_out` has the size of its value, which is left out; the reason says so.
    """

    position: int
    key: bytes
    value: bytes
    reason: str
    park_time: float
    left_out: int = 0


class Lag(msgspec.Struct, frozen=True, gc=False):
    """How far a reader is behind: records above the committed position, and the age of the oldest in seconds."""

    record_count: int
    oldest_age: float


class Backlog(msgspec.Struct, frozen=True, gc=False):
    """How far the reader is behind, seen from the writing end.

    Attributes:
        record_count: records above the position that the reader committed.
        oldest_age: seconds since the oldest of them was appended.
        finished: grows by one with each record that the reader has finished: two looks tell how fast it moves.
    """

    record_count: int
    oldest_age: float
    finished: int


class LaneUnavailable(Unavailable):
    """The lane cannot be used now. With `unknown` set, records may have been appended all the same."""

    def __init__(self, message: str, *, unknown: bool = False, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message, reason="LANE_UNAVAILABLE", metadata=metadata)
        self.unknown = unknown


class PositionLost(DataLoss):
    """Records between the reader's position and the first one that exists are gone, or the lane is another one."""

    def __init__(self, message: str, *, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message, reason="POSITION_LOST", metadata=metadata)


class LaneWriter(Protocol):
    """The writing end of a lane: one process has it."""

    async def open(self) -> None:
        """Opens the lane, making it where there is none; waits for a hand-over by the process that has it."""
        ...

    async def append(self, records: Sequence[Record]) -> None:
        """Appends all records or none, next to each other in this order; durable on return; wakes the reader.

        Calls that overlap share a commit, their order among each other is open. No position is ever used twice.

        Raises:
            LaneUnavailable: nothing was appended, or with `unknown` set perhaps everything; repeating it may append
                the records a second time.
        """
        ...

    async def backlog(self) -> Backlog:
        """Returns what the reader has not finished, as of a moment ago; all there is while no reader ever began.

        Changes nothing and waits for nobody: neither for appends under way nor for the reader.

        Raises:
            LaneUnavailable: it cannot be known now.
        """
        ...

    async def trim(self, before_time: float) -> int:
        """Removes records from the start that were appended before a Unix time, and returns how many.

        Works in small slices between appends, on a budget: it may leave some for the next call. The newest record
        stays.
        """
        ...

    async def close(self) -> None:
        """Finishes the appends under way and gives the lane up; harmless when not open."""
        ...


class LaneReader(Protocol):
    """The reading end of a lane with a durable position; one process has it, and one caller at a time reads."""

    async def open(self) -> None:
        """Starts behind the committed position, before the first record where there is none.

        The lane itself may come later.
        """
        ...

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that this reader has now; what was read of another one is for somebody else to finish.

        Empty before the first read. While processes that share the lane come and go, those it had before, until a read
        knows better: what it keeps is not read again.
        """
        ...

    async def read(self, limit: int, wait: float) -> Sequence[Stored]:
        """Returns up to `limit` records after those read before, in order; empty when none came within `wait` seconds.

        The order is that of each partition. An append wakes it. A cancelled read loses nothing: the next one returns
        the same records. Where processes share a lane, a partition that comes to this one begins behind what is
        committed: its records, read here before or not, come from there.

        Raises:
            LaneUnavailable: the lane cannot be read now.
            PositionLost: the next record is gone; so does every later read until `restart`. Never a silent jump.
        """
        ...

    async def commit(self, position: int) -> None:
        """Says that every record of the partition up to this position is finished; durable on return; never moves back.

        A partition that another process reads by now is left alone, without a word: its new reader repeats what was
        not committed.

        Raises:
            LaneUnavailable: the position could not be stored.
            ValueError: the position was not read.
        """
        ...

    def on_leave(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Registers what is awaited before partitions go to another process: the last moment to commit what is done.

        A lane that only one process reads never calls it.
        """
        ...

    async def lag(self) -> Lag:
        """Returns what is not committed yet, of all processes that share the lane."""
        ...

    async def containing(self, part: bytes, limit: int) -> Sequence[Stored]:
        """Returns up to `limit` records that are not committed and whose key or value contains these bytes, in order.

        Reads everything that is not committed: slow, for operators. Moves nothing.

        Raises:
            LaneUnavailable: the lane cannot be read now.
        """
        ...

    async def park(self, record: Stored, reason: str) -> None:
        """Keeps a record that cannot be understood, with the reason; durable on return.

        Doing it again changes nothing.
        """
        ...

    async def parked(self, limit: int) -> Sequence[Parked]:
        """Returns the first parked records in order of position."""
        ...

    async def unpark(self, record: Parked) -> None:
        """Forgets a parked record, as `parked` returned it; durable on return. Doing it again changes nothing."""
        ...

    async def note(self, position: int, note: bytes) -> None:
        """Keeps how far the work on a record has come, instead of what was noted before; durable on return.

        For a record whose work takes many steps, so that a new process goes on where the last one was. Committing the
        position, or a later one, forgets the note.

        Raises:
            LaneUnavailable: the note could not be stored.
            ValueError: the position was not read, or is committed.
        """
        ...

    async def notes(self) -> Mapping[int, bytes]:
        """Returns every note of this lane, by position."""
        ...

    async def begin_life(self) -> int:
        """Notes that a process begins to work; returns how many before it, in a row, did not get to `end_life`.

        Raises:
            LaneUnavailable: it could not be noted.
        """
        ...

    async def end_life(self) -> None:
        """Notes that whatever was worked on so far did the process no harm; durable on return.

        Raises:
            LaneUnavailable: it could not be noted.
        """
        ...

    async def restart(self) -> None:
        """Forgets the position and the notes, durably: the next read returns the first record that exists.

        Answers a PositionLost.
        """
        ...

    async def close(self) -> None:
        """Gives the reading end up; harmless when not open."""
        ...


def position_migrations() -> list[Migration]:
    """The schema of a file that holds the positions, notes and parked records of one process's embedded lanes."""
    return load_migrations("mesh.lanes", "migrations/positions")


def open_writer(
    url: str,
    name: str,
    *,
    data_dir: Path,
    run_dir: Path,
    clock: Clock,
    positions: Reader | None = None,
    lock_wait: float = 10.0,
) -> LaneWriter:
    """Returns the writing end of a lane; `open` it before use.

    Args:
        url: `sqlite:///folder`, relative to `data_dir` or absolute: the lane is the file `<name>.db` in it. Or
            `kafka://host:port/PREFIX`: the topic `PREFIX.<name>`, and of what follows only the clock counts.
        name: the lane's name.
        data_dir: where relative paths start.
        run_dir: where the reader's doorbell is.
        clock: for the time of an append.
        positions: the file in which the reading process keeps its positions, open to be read; shared by all lanes.
            Without it no reader is known, and the backlog is all that the lane holds.
        lock_wait: seconds to wait for a hand-over.

    Raises:
        StoreUrlError: a scheme that is not known.
        StartError: an engine's URL that cannot be used.
    """
    if url.startswith(_KAFKA):
        from mesh.kafka import parse_cluster
        from mesh.lanes.kafka import KafkaLaneWriter

        return KafkaLaneWriter(name, cluster=parse_cluster("lanes_url", url), clock=clock)
    from mesh.lanes.sqlite import SqliteLaneWriter

    path = _lane_file(url, name, data_dir)
    return SqliteLaneWriter(name, path=path, run_dir=run_dir, clock=clock, positions=positions, lock_wait=lock_wait)


def open_reader(
    url: str,
    name: str,
    *,
    data_dir: Path,
    run_dir: Path,
    clock: Clock,
    positions: Writer | None,
    lock_wait: float = 10.0,
) -> LaneReader:
    """Returns the reading end of a lane; `open` it before use.

    Args:
        url: as for `open_writer`.
        name: the lane's name.
        data_dir: where relative paths start.
        run_dir: where the doorbell is put.
        clock: for ages and the time of parking.
        positions: an open file with `position_migrations`, shared by all embedded lanes that this process reads.
        lock_wait: seconds to wait for a hand-over.

    Raises:
        StoreUrlError: a scheme that is not known.
        StartError: an engine's URL that cannot be used.
        ValueError: an embedded lane without positions.
    """
    if url.startswith(_KAFKA):
        from mesh.kafka import parse_cluster
        from mesh.lanes.kafka_reader import KafkaLaneReader

        return KafkaLaneReader(name, cluster=parse_cluster("lanes_url", url), clock=clock)
    from mesh.lanes.sqlite import SqliteLaneReader

    path = _lane_file(url, name, data_dir)
    if positions is None:
        raise ValueError(f"lane {name}: a reader of an embedded lane needs a file of positions")
    return SqliteLaneReader(name, path=path, run_dir=run_dir, clock=clock, positions=positions, lock_wait=lock_wait)


def is_embedded(url: str) -> bool:
    """Says whether lanes at this URL are files of this machine."""
    return not url.startswith(_KAFKA)


def lane_stores(url: str, names: Sequence[str], *, reads: bool) -> Sequence[StoreAdmin]:
    """Returns what looks after the lanes of a process; nothing does while they are embedded.

    Args:
        url: as for `open_writer`.
        names: the lanes that the process writes or reads.
        reads: whether it reads one.

    Raises:
        StartError: an engine's URL that cannot be used.
    """
    if is_embedded(url):
        return []
    from mesh.kafka import parse_cluster
    from mesh.lanes.kafka_topics import MARKS, KafkaLaneAdmin

    return [KafkaLaneAdmin(parse_cluster("lanes_url", url), [*names, *([MARKS] if reads else [])])]


def _lane_file(url: str, name: str, data_dir: Path) -> Path:
    match url.partition("://")[0]:
        case "sqlite":
            return file_of(url, data_dir) / f"{name}.db"
        case _:
            raise StoreUrlError(f"{url!r} is no known lane URL; known: {KNOWN}")

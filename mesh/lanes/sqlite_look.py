"""What one look into the file of an embedded lane finds. Must not change anything."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from mesh.clock import Clock
from mesh.lanes import Stored

_READ: Final = "select position, key, value, append_time from records where position > ? order by position limit ?"
CONTAINING: Final = """
    select position, key, value, append_time from records
    where position > ?1 and (instr(value, ?2) > 0 or instr(key, ?2) > 0) order by position limit ?3
"""
# Two queries inside: SQLite looks min and max up in the index only when each stands alone.
BOUNDS: Final = """
    select epoch, coalesce((select min(position) from records), 1), coalesce((select max(position) from records), 0)
    from lane
"""
POSITION: Final = "select epoch, position from positions where lane = ?"


class Page(msgspec.Struct, frozen=True):
    """What one look into the lane's file found."""

    epoch: int
    first: int
    last: int
    records: list[Stored]


def look(connection: sqlite3.Connection, after: int, limit: int) -> Page:
    """Returns the lane's bounds, and the first records behind a position."""
    epoch, first, last = connection.execute(BOUNDS).fetchone()
    if last <= after:
        return Page(epoch, first, last, [])
    return Page(epoch, first, last, [Stored(*row) for row in connection.execute(_READ, (after, limit))])


class Unfinished(msgspec.Struct, frozen=True):
    """What lies above a position."""

    after: int
    count: int
    oldest: float | None


def count_unfinished(connection: sqlite3.Connection, position: tuple[int, int] | None) -> Unfinished:
    """Counts the records above a position (epoch, number); one of another lane counts for nothing."""
    page = look(connection, 0, 0)
    after = max(page.first - 1, committed_of(connection, position))
    oldest = connection.execute("select append_time from records where position = ?", (after + 1,)).fetchone()
    return Unfinished(after, max(0, page.last - after), oldest and oldest[0])


def committed_of(connection: sqlite3.Connection, position: tuple[int, int] | None) -> int:
    """Returns what is committed of this lane; a position of another one counts for nothing."""
    epoch: int = connection.execute(BOUNDS).fetchone()[0]
    return position[1] if position is not None and position[0] == epoch else 0


def age(clock: Clock, append_time: float | None) -> float:
    """Returns the seconds since an append; 0 when there was none."""
    return 0.0 if append_time is None else max(0.0, clock.wall() - append_time)


def reader_position(connection: sqlite3.Connection, lane: str) -> tuple[int, int] | None:
    """Returns epoch and position that a reader committed, from its file of positions."""
    row: tuple[int, int] | None = connection.execute(POSITION, (lane,)).fetchone()
    return row

"""The follow-ups in the inbox's SQLite file, ordered by urgency and due time.

Steps 5, 8 and 9 of the path. They stand in the inbox's file so that rows and follow-up are one transaction, and
a record and the dead letter that it becomes as well.

Must not read inside a record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from mesh.sqlite import Writer
from svc_delivery.ports import FollowUpRecord, FollowUpWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.priorities import PLACES, place_of
from svc_delivery.store.sqlite_dead_letters import insert_letters

_EXPIRED: Final = """
select record_id, due_us, record, expire_us from follow_ups
where expire_us is not null and expire_us <= ? and due_us <= ? order by expire_us, record_id limit ?"""
_DUE: Final = """
select record_id, due_us, record, expire_us from follow_ups
where place = ? and due_us <= ? and (expire_us is null or expire_us > ?) order by due_us, record_id limit ?"""


class SqliteFollowUps:
    """Implements `FollowUps` on a writer that is opened and closed elsewhere."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def due(self, now_us: int, limit: int) -> Sequence[FollowUpRecord]:
        """See `FollowUps`."""
        return await self._writer.read(lambda connection: _read_due(connection, now_us, limit))

    async def finish(
        self,
        record_ids: Sequence[int],
        again: Sequence[FollowUpWrite] = (),
        letters: Sequence[DeadLetterRecord] = (),
    ) -> None:
        """See `FollowUps`."""

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("delete from follow_ups where record_id = ?", [(number,) for number in record_ids])
            for follow_up in again:
                append_follow_up(connection, follow_up)
            insert_letters(connection, letters)

        await self._writer.submit(work)

    async def next_due(self) -> int | None:
        """See `FollowUps`."""
        return await self._writer.read(_read_next_due)

    async def containing(self, part: bytes, limit: int) -> Sequence[FollowUpRecord]:
        """See `FollowUps`."""
        return await self._writer.read(lambda connection: _read_containing(connection, part, limit))

    async def backlog(self, now_us: int) -> int:
        """See `FollowUps`."""
        return await self._writer.read(lambda connection: _count_due(connection, now_us))


def append_follow_up(connection: sqlite3.Connection, follow_up: FollowUpWrite) -> None:
    """Appends a record inside somebody's transaction."""
    connection.execute(
        "insert into follow_ups (due_us, record, place, expire_us) values (?, ?, ?, ?)",
        (follow_up.due_us, follow_up.record, place_of(follow_up.priority), follow_up.expire_us),
    )


def _read_due(connection: sqlite3.Connection, now_us: int, limit: int) -> list[FollowUpRecord]:
    rows = connection.execute(_EXPIRED, (now_us, now_us, limit)).fetchall()
    for place in PLACES:
        if len(rows) < limit:
            rows += connection.execute(_DUE, (place, now_us, now_us, limit - len(rows))).fetchall()
    return [FollowUpRecord(*row) for row in rows]


def _read_next_due(connection: sqlite3.Connection) -> int | None:
    found = [
        connection.execute("select min(due_us) from follow_ups where place = ?", (place,)).fetchone()[0]
        for place in PLACES
    ]
    return min((int(due_us) for due_us in found if due_us is not None), default=None)


def _read_containing(connection: sqlite3.Connection, part: bytes, limit: int) -> list[FollowUpRecord]:
    found = connection.execute(
        "select record_id, due_us, record, expire_us from follow_ups where instr(record, ?) > 0 "
        "order by due_us, record_id limit ?",
        (part, limit),
    )
    return [FollowUpRecord(*values) for values in found]


def _count_due(connection: sqlite3.Connection, now_us: int) -> int:
    statement = "select count(*) from follow_ups where place = ? and due_us <= ?"
    return sum(int(connection.execute(statement, (place, now_us)).fetchone()[0]) for place in PLACES)

"""The follow-ups in the inbox's SQLite file, ordered by due time.

Steps 5, 8 and 9 of the path. They stand in the inbox's file so that rows and follow-up are one transaction, and
a record and the dead letter that it becomes as well.

Must not read inside a record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mesh.sqlite import Writer
from svc_delivery.ports import FollowUpRecord, FollowUpWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.store.sqlite_dead_letters import insert_letters


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
    connection.execute("insert into follow_ups (due_us, record) values (?, ?)", (follow_up.due_us, follow_up.record))


def _read_due(connection: sqlite3.Connection, now_us: int, limit: int) -> list[FollowUpRecord]:
    found = connection.execute(
        "select record_id, due_us, record from follow_ups where due_us <= ? order by due_us, record_id limit ?",
        (now_us, limit),
    )
    return [FollowUpRecord(*values) for values in found]


def _read_next_due(connection: sqlite3.Connection) -> int | None:
    found = connection.execute("select min(due_us) from follow_ups").fetchone()
    return None if found[0] is None else int(found[0])


def _read_containing(connection: sqlite3.Connection, part: bytes, limit: int) -> list[FollowUpRecord]:
    found = connection.execute(
        "select record_id, due_us, record from follow_ups where instr(record, ?) > 0 "
        "order by due_us, record_id limit ?",
        (part, limit),
    )
    return [FollowUpRecord(*values) for values in found]


def _count_due(connection: sqlite3.Connection, now_us: int) -> int:
    return int(connection.execute("select count(*) from follow_ups where due_us <= ?", (now_us,)).fetchone()[0])

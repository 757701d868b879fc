"""Dead letters in the inbox's SQLite file, by id and by age. Step 9 of the path.

Must not read inside a letter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from mesh.sqlite import Writer
from svc_delivery.ports_dead_letters import DeadLetterRecord, PageStart

_DAY_US: Final = 86_400_000_000
_COLUMNS: Final = "letter_id, reason, tenant, recipient, notification_id, bury_us, letter"
_INSERT: Final = f"insert or ignore into dead_letters ({_COLUMNS}, original) values (?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteDeadLetters:
    """Implements `DeadLetters` on a writer that is opened and closed elsewhere."""

    def __init__(self, writer: Writer, *, keep_days: int) -> None:
        self._writer = writer
        self._keep_us = keep_days * _DAY_US

    async def bury(self, letters: Sequence[DeadLetterRecord]) -> None:
        """See `DeadLetters`."""
        await self._writer.submit(lambda connection: insert_letters(connection, letters))

    async def page(
        self, *, tenant_id: str, reason: int, start: PageStart | None, limit: int
    ) -> Sequence[DeadLetterRecord]:
        """See `DeadLetters`."""
        return await self._writer.read(lambda connection: _read_page(connection, tenant_id, reason, start, limit))

    async def get(self, letter_ids: Sequence[bytes]) -> Sequence[DeadLetterRecord | None]:
        """See `DeadLetters`."""
        return await self._writer.read(lambda connection: [_read_one(connection, id_) for id_ in letter_ids])

    async def about(self, recipient_key: str, notification_id: bytes) -> Sequence[DeadLetterRecord]:
        """See `DeadLetters`."""
        statement = (
            f"select {_COLUMNS} from dead_letters where recipient = ? and notification_id = ? "
            "order by bury_us, letter_id"
        )
        values = (recipient_key, notification_id)
        return await self._writer.read(
            lambda connection: [DeadLetterRecord(*row) for row in connection.execute(statement, values)]
        )

    async def remove(self, letter_ids: Sequence[bytes]) -> None:
        """See `DeadLetters`."""
        values = [(id_,) for id_ in letter_ids]
        await self._writer.submit(
            lambda connection: connection.executemany("delete from dead_letters where letter_id = ?", values).rowcount
        )

    async def sweep(self, now_us: int, limit: int) -> int:
        """See `DeadLetters`."""
        statement = (
            "delete from dead_letters where letter_id in "
            "(select letter_id from dead_letters where bury_us <= ? order by bury_us limit ?)"
        )
        values = (now_us - self._keep_us, limit)
        return await self._writer.submit(lambda connection: connection.execute(statement, values).rowcount)


def insert_letters(connection: sqlite3.Connection, letters: Sequence[DeadLetterRecord]) -> None:
    """Buries letters inside somebody's transaction."""
    connection.executemany(
        _INSERT,
        [
            (
                letter.letter_id,
                letter.reason,
                letter.tenant_id,
                letter.recipient_key,
                letter.notification_id,
                letter.bury_us,
                letter.letter,
                letter.original,
            )
            for letter in letters
        ],
    )


def _read_page(
    connection: sqlite3.Connection, tenant_id: str, reason: int, start: PageStart | None, limit: int
) -> list[DeadLetterRecord]:
    wanted: list[str] = []
    values: list[str | int | bytes] = []
    if tenant_id:
        wanted.append("tenant = ?")
        values.append(tenant_id)
    if reason:
        wanted.append("reason = ?")
        values.append(reason)
    if start is not None:
        wanted.append("(bury_us, letter_id) < (?, ?)")
        values += (start.bury_us, start.letter_id)
    where = f"where {' and '.join(wanted)} " if wanted else ""
    statement = f"select {_COLUMNS} from dead_letters {where}order by bury_us desc, letter_id desc limit ?"
    return [DeadLetterRecord(*row) for row in connection.execute(statement, (*values, limit))]


def _read_one(connection: sqlite3.Connection, letter_id: bytes) -> DeadLetterRecord | None:
    statement = f"select {_COLUMNS}, original from dead_letters where letter_id = ?"
    found = connection.execute(statement, (letter_id,)).fetchone()
    return None if found is None else DeadLetterRecord(*found)

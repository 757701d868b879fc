"""The steps map of rows, and the names of suspect records, in the inbox's SQLite file. Steps 8 and 9 of the path.

Must not decide what an outcome leads to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from mesh.sqlite import Writer
from svc_delivery.ports import RowKey
from svc_delivery.ports_channels import StepCell

# The row must be there: a cell without one would never go away.
_NOTE: Final = """
insert into steps (recipient, id, step, attempt, time_us, outcome, detail, due_us)
select recipient, id, ?, ?, ?, ?, ?, ? from inbox where recipient = ? and high = ? and id = ?
on conflict (recipient, id, step, attempt) do update set
  time_us = excluded.time_us, outcome = excluded.outcome, detail = excluded.detail, due_us = excluded.due_us
where excluded.outcome <> '' or outcome = ''"""
_CELLS: Final = """
select step, attempt, time_us, outcome, detail, due_us from steps where recipient = ? and id = ?
order by step, attempt"""
_NAME: Final = """
insert into suspects (record_id, named_count) values (?, 1)
on conflict (record_id) do update set named_count = named_count + 1 returning named_count"""


class SqliteSteps:
    """Implements `Steps` on a writer that is opened and closed elsewhere."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def note(self, cells: Sequence[tuple[RowKey, StepCell]]) -> None:
        """See `Steps`."""
        values = [
            (
                cell.step_index,
                cell.attempt_number,
                cell.time_us,
                cell.outcome,
                cell.detail,
                cell.due_us,
                key.recipient_key,
                key.notification_id[-1] & 1,
                key.notification_id,
            )
            for key, cell in cells
        ]
        await self._writer.submit(lambda connection: connection.executemany(_NOTE, values).rowcount)

    async def cells(self, keys: Sequence[RowKey]) -> Sequence[Sequence[StepCell]]:
        """See `Steps`."""
        return await self._writer.read(lambda connection: [_read_cells(connection, key) for key in keys])

    async def forget(self, key: RowKey, step_index: int) -> None:
        """See `Steps`."""
        values = (key.recipient_key, key.notification_id, step_index)
        await self._writer.submit(
            lambda connection: (
                connection.execute("delete from steps where recipient = ? and id = ? and step = ?", values).rowcount
            )
        )


class SqliteSuspects:
    """Implements `Suspects` on a writer that is opened and closed elsewhere."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._after_crash = False

    @property
    def after_crash(self) -> bool:
        """See `Suspects`."""
        return self._after_crash

    async def begin(self) -> None:
        """Learns how the process before ended, and notes that this one runs; to be called once the writer is open."""
        self._after_crash = await self._writer.submit(_begin)

    async def end(self) -> None:
        """Notes that this process ends in order."""
        await self._writer.submit(
            lambda connection: connection.execute("update meta set value = 0 where name = 'running'").rowcount
        )

    async def name(self, record_id: int) -> int:
        """See `Suspects`."""
        named: int = await self._writer.submit(lambda connection: connection.execute(_NAME, (record_id,)).fetchone()[0])
        return named - 1

    async def clear(self, record_id: int) -> None:
        """See `Suspects`."""
        await self._writer.submit(
            lambda connection: connection.execute("delete from suspects where record_id = ?", (record_id,)).rowcount
        )


def _begin(connection: sqlite3.Connection) -> bool:
    running: int = connection.execute("select value from meta where name = 'running'").fetchone()[0]
    connection.execute("update meta set value = 1 where name = 'running'")
    connection.execute("delete from suspects where record_id not in (select record_id from follow_ups)")
    return running == 1


def _read_cells(connection: sqlite3.Connection, key: RowKey) -> list[StepCell]:
    found = connection.execute(_CELLS, (key.recipient_key, key.notification_id))
    return [StepCell(*values) for values in found]

"""The steps map of rows in Cassandra: cells inside the row they belong to. Step 8 of the path.

Each attempt has two cells: that it was begun, and its outcome. So an outcome is never replaced by a note that is late,
and no write has to look first at what is there. A cell's timestamp is the attempt's own time: writes commute.

Must not decide what an outcome leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from mesh.cassandra import Bound, Session
from mesh.ids import split_key
from svc_delivery.ports import RowKey
from svc_delivery.ports_channels import StepCell
from svc_delivery.store.cassandra_calls import all_of, prepare_all

_ROW: Final = "where tenant = ? and recipient = ? and high = ? and id = ?"
# The content has the row's time to live; a row without a revision has none, and is not there.
_LIFE: Final = f"select revision, ttl(revision) from inbox {_ROW}"
_READ: Final = f"select revision, steps from inbox {_ROW}"
_NOTE: Final = f"update inbox using timestamp ? and ttl ? set steps[?] = ? {_ROW}"
_FORGET: Final = f"delete steps[?] from inbox using timestamp ? {_ROW}"
_STATEMENTS: Final = (_LIFE, _READ, _NOTE, _FORGET)

_BEGUN: Final = "begun"
_OUTCOME: Final = "outcome"
_encode = msgspec.msgpack.Encoder().encode


class _Cell(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a cell holds; the rest of a `StepCell` is in its key. A newer version may add fields at the end."""

    time_us: int
    outcome: str = ""
    detail: str = ""
    due_us: int = 0


_decode = msgspec.msgpack.Decoder(_Cell).decode


class CassandraSteps:
    """Implements `Steps` on a session that is opened and closed elsewhere."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def load(self) -> None:
        """Prepares the statements; to be called once, before use.

        Raises:
            StartError: the keyspace has another schema.
        """
        await prepare_all(self._session, "the steps", _STATEMENTS)

    async def note(self, cells: Sequence[tuple[RowKey, StepCell]]) -> None:
        """See `Steps`."""
        by_row: dict[RowKey, list[StepCell]] = {}
        for key, cell in cells:
            by_row.setdefault(key, []).append(cell)
        found = await all_of(self._session.execute(_LIFE, _row_of(key)) for key in by_row)
        await all_of(
            self._session.batch(_notes(key, noted, life[0][1] or 0))
            for (key, noted), life in zip(by_row.items(), found, strict=True)
            if life and life[0][0] is not None
        )

    async def cells(self, keys: Sequence[RowKey]) -> Sequence[Sequence[StepCell]]:
        """See `Steps`."""
        found = await all_of(self._session.execute(_READ, _row_of(key)) for key in keys)
        return [_cells_of(rows[0][1]) if rows and rows[0][0] is not None else [] for rows in found]

    async def forget(self, key: RowKey, step_index: int) -> None:
        """See `Steps`."""
        row = _row_of(key)
        (rows,) = await all_of([self._session.execute(_READ, row)])
        cells: Mapping[str, bytes] = (rows[0][1] if rows else None) or {}
        # At each cell's own time: what is noted when the step is taken anew is later than that, on every clock.
        gone: list[Bound] = [
            (_FORGET, (name, _decode(value).time_us, *row))
            for name, value in cells.items()
            if _attempt_of(name)[0] == step_index
        ]
        if gone:
            await all_of([self._session.batch(gone)])


def _notes(key: RowKey, cells: Iterable[StepCell], ttl: int) -> list[Bound]:
    row = _row_of(key)
    return [(_NOTE, (cell.time_us, ttl, _name_of(cell), _value_of(cell), *row)) for cell in cells]


def _name_of(cell: StepCell) -> str:
    return f"{cell.step_index}/{cell.attempt_number}/{_OUTCOME if cell.outcome else _BEGUN}"


def _attempt_of(name: str) -> tuple[int, int]:
    step, attempt, _ = name.split("/")
    return int(step), int(attempt)


def _value_of(cell: StepCell) -> bytes:
    return _encode(_Cell(cell.time_us, cell.outcome, cell.detail, cell.due_us))


def _cells_of(found: Mapping[str, bytes] | None) -> list[StepCell]:
    attempts: dict[tuple[int, int], _Cell] = {}
    for name, value in (found or {}).items():
        attempt, cell = _attempt_of(name), _decode(value)
        if cell.outcome or attempt not in attempts:
            attempts[attempt] = cell
    return [
        StepCell(*attempt, cell.time_us, cell.outcome, cell.detail, cell.due_us)
        for attempt, cell in sorted(attempts.items())
    ]


def _row_of(key: RowKey) -> tuple[Any, ...]:
    tenant_id, recipient_id = split_key(key.recipient_key)
    return tenant_id, recipient_id, bool(key.notification_id[-1] & 1), key.notification_id

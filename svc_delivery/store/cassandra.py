"""The inbox in Cassandra: rows with their state, heads, decisions; one partition a recipient.

Step 5 of the path: the rows of one recipient are one mutation of their partition, so they and their head are seen
together. Nothing is locked and nothing is read before a row is written: the cells' timestamps decide, in any order.

Must not decide what a state means or what comes next, and never writes these cells conditionally.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mesh.cassandra import Session, StatementRefused, StoreUnavailable
from mesh.errors import StartError
from svc_delivery.ports import (
    Body,
    DecisionWrite,
    FollowUpWrite,
    MarkOutcome,
    MarkWrite,
    RowKey,
    RowsRefused,
    RowState,
    RowWrite,
    Window,
)
from svc_delivery.store.cassandra_batches import Piece, write_pieces
from svc_delivery.store.cassandra_decisions import DECISION_STATEMENTS, get_decisions, put_decisions
from svc_delivery.store.cassandra_marks import store_marks
from svc_delivery.store.cassandra_rows import (
    GET_BODIES,
    GET_HEAD,
    GET_INCARNATION,
    GET_STATES,
    READ_STATEMENTS,
    WRITE_STATEMENTS,
    Lifetime,
    is_high,
    partition_of,
    put_row,
    row_state,
)
from svc_delivery.store.cassandra_window import WINDOW_STATEMENTS, Windows
from svc_delivery.store.sqlite import Limits

_DAY_SECONDS: Final = 86_400
# Of one `in (...)`.
_READ_ROWS: Final = 100


class CassandraInbox:
    """Implements `Inbox`, without follow-ups, on a session that is opened and closed elsewhere."""

    def __init__(self, session: Session, *, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        self._lifetime = Lifetime(limits.keep_days)
        self._windows = Windows(session, limits=limits)
        self._epoch = ""

    @property
    def epoch(self) -> str:
        """See `Inbox`."""
        return self._epoch

    async def load(self) -> None:
        """Prepares the statements and reads what the keyspace says about itself; to be called once, before use.

        Raises:
            StartError: the keyspace has another schema.
        """
        statements = (*WRITE_STATEMENTS, *READ_STATEMENTS, *WINDOW_STATEMENTS, *DECISION_STATEMENTS)
        try:
            await self._session.prepare(statements)
            found = await self._session.execute(GET_INCARNATION)
        except StatementRefused as error:
            raise StartError(f"the inbox in Cassandra: {error.message}; run `heliograph stores migrate`") from None
        if not found:
            raise StartError("the inbox in Cassandra has no incarnation; run `heliograph stores migrate`")
        self._epoch = f"{self._session.datacenter}-{found[0][0].hex()}"

    async def write(
        self,
        rows: Sequence[RowWrite],
        *,
        stamp: int,
        follow_up: FollowUpWrite | None = None,
        decisions: Sequence[DecisionWrite] = (),
    ) -> None:
        """See `Inbox`; follow-ups are kept on lanes."""
        if follow_up is not None:
            raise ValueError("this inbox keeps no follow-ups; whoever has a lane for them appends it after the rows")
        await self._write_rows(rows, stamp)
        if decisions:
            keep_seconds = self._limits.decision_days * _DAY_SECONDS
            await put_decisions(self._session, decisions, keep_seconds=keep_seconds)
        for row in self._limits.looking(rows):
            # The rows are stored; whoever comes next trims what was not.
            with contextlib.suppress(StoreUnavailable):
                await self._windows.trim(partition_of(row.recipient_key), is_high(row.notification_id), stamp)

    async def mark(self, marks: Sequence[MarkWrite], *, stamp: int, again: bool = False) -> Sequence[MarkOutcome]:
        """See `Inbox`."""
        return await store_marks(self._session, marks, stamp=stamp, again=again, lifetime=self._lifetime)

    async def window(self, recipient_key: str, now_us: int) -> Window:
        """See `Inbox`."""
        return await self._windows.read(partition_of(recipient_key), now_us)

    async def bodies(self, keys: Sequence[RowKey]) -> Mapping[RowKey, Body]:
        """See `Inbox`."""
        found = await self._get(GET_BODIES, keys)
        return {key: Body(cells[1], cells[2]) for key, cells in found.items() if cells[1] is not None}

    async def heads(self, recipient_keys: Sequence[str]) -> Sequence[int]:
        """See `Inbox`."""
        session = self._session
        answers = await asyncio.gather(*[session.execute(GET_HEAD, partition_of(key)) for key in recipient_keys])
        return [(rows[0][0] or 0) if rows else 0 for rows in answers]

    async def states(self, keys: Sequence[RowKey]) -> Sequence[RowState | None]:
        """See `Inbox`."""
        found = await self._get(GET_STATES, keys)
        return [row_state(*found[key]) if key in found and found[key][1] is not None else None for key in keys]

    async def decisions(self, tenant_id: str, event_id: bytes) -> Sequence[DecisionWrite]:
        """See `Inbox`."""
        return await get_decisions(self._session, tenant_id, event_id)

    async def sweep(self, now_us: int, limit: int) -> int:
        """See `Inbox`: there is nothing to do, because every cell is written with what is left of its time."""
        return 0

    async def _get(self, statement: str, keys: Iterable[RowKey]) -> dict[RowKey, tuple[Any, ...]]:
        """Reads rows, one statement a recipient and class."""
        groups: dict[tuple[str, bool], list[bytes]] = {}
        for key in dict.fromkeys(keys):
            groups.setdefault((key.recipient_key, is_high(key.notification_id)), []).append(key.notification_id)
        parts = [
            (recipient_key, high, ids[start : start + _READ_ROWS])
            for (recipient_key, high), ids in groups.items()
            for start in range(0, len(ids), _READ_ROWS)
        ]
        session = self._session
        answers = await asyncio.gather(
            *[session.execute(statement, (*partition_of(key), high, ids)) for key, high, ids in parts]
        )
        return {
            RowKey(recipient_key, cells[0]): cells
            for (recipient_key, _, _), found in zip(parts, answers, strict=True)
            for cells in found
        }

    # ------------------------------------------------------------ rows

    async def _write_rows(self, rows: Sequence[RowWrite], stamp: int) -> None:
        refused: dict[int, str] = {}
        pieces: list[Piece] = []
        indexes: list[int] = []
        for index, row in enumerate(rows):
            partition = partition_of(row.recipient_key)
            try:
                statements = put_row(row, partition, stamp=stamp, lifetime=self._lifetime)
            except ValueError as error:
                refused[index] = f"{type(error).__name__}: {error}"
                continue
            pieces.append(Piece(partition, statements, len(row.content)))
            indexes.append(index)
        failures = await write_pieces(self._session, pieces, probe=GET_INCARNATION)
        refused |= {indexes[number]: error.message for number, error in failures.items()}
        if refused:
            raise RowsRefused(refused, [indexes[number] for number, error in failures.items() if error.outcome_unknown])

"""Marks in Cassandra: the cells are read, what changes is written as cells of their own, and nothing is locked.

Two marks at once may both believe that they changed a row; the cells' timestamps decide, and both changes have stamps
that a replay finds. An ack that is vouched for, the most frequent mark by far, is written without a look: its timestamp
grows with its level, and whether the row is there makes no difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mesh.cassandra import Session, StatementRefused
from svc_delivery.ports import MarkOutcome, MarkWrite, RowState
from svc_delivery.store.cassandra_batches import Piece, probe_store, write_pieces
from svc_delivery.store.cassandra_rows import (
    GET_INCARNATION,
    GET_MARKED,
    Lifetime,
    is_high,
    partition_of,
    put_cells,
    row_state,
)

# Rows of one read; a mark names a window's worth of rows at most, seldom more than one.
_READ_ROWS: Final = 100


class _Cells(msgspec.Struct, gc=False):
    """The cells of a row while marks are applied to them, and which of them are to be written."""

    row: RowState
    read_stamp: int
    put_ack: bool = False
    put_read: bool = False
    put_hidden: bool = False
    put_visible: bool = False


async def store_marks(
    session: Session, marks: Sequence[MarkWrite], *, stamp: int, again: bool, lifetime: Lifetime
) -> Sequence[MarkOutcome]:
    """See `Inbox.mark`."""
    by_recipient: dict[str, list[MarkWrite]] = {}
    for mark in marks:
        by_recipient.setdefault(mark.recipient_key, []).append(mark)
    refused: dict[str, str] = {}
    outcomes: dict[str, list[MarkOutcome]] = {}
    pieces: list[Piece] = []
    owners: list[str] = []
    looked = await _look(session, by_recipient, refused)
    for key, own in by_recipient.items():
        if key in refused:
            continue
        if key in looked:
            cells = looked[key]
            outcomes[key] = [_apply(cells, mark, stamp=stamp, again=again) for mark in own]
        else:
            cells = _acks(own)
            outcomes[key] = [MarkOutcome()] * len(own)
        written = _pieces(partition_of(key), cells, stamp, lifetime)
        pieces += written
        owners += [key] * len(written)
    failures = await write_pieces(session, pieces, probe=GET_INCARNATION)
    for number, error in failures.items():
        if not isinstance(error, StatementRefused):
            raise error
        refused[owners[number]] = error.message
    outcomes |= {key: [MarkOutcome(refused=why)] * len(by_recipient[key]) for key, why in refused.items()}
    rest = {key: iter(own) for key, own in outcomes.items()}
    return [next(rest[mark.recipient_key]) for mark in marks]


async def _look(
    session: Session, by_recipient: Mapping[str, Sequence[MarkWrite]], refused: dict[str, str]
) -> dict[str, dict[bytes, _Cells]]:
    """Reads the cells of inboxes whose marks depend on them; adds those that are refused."""
    keys = [
        key
        for key, own in by_recipient.items()
        if not all(mark.vouched and mark.read is None and not mark.hide for mark in own)
    ]
    reads = [
        _read(
            session,
            partition_of(key),
            list(dict.fromkeys(id_ for mark in by_recipient[key] for id_ in mark.notification_ids)),
        )
        for key in keys
    ]
    found: dict[str, dict[bytes, _Cells]] = {}
    for key, answer in zip(keys, await asyncio.gather(*reads, return_exceptions=True), strict=True):
        if isinstance(answer, StatementRefused):
            refused[key] = answer.message
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[key] = answer
    if refused and len(refused) == len(by_recipient):
        # Nothing got through: is it these inboxes, or is the store not as it must be?
        await probe_store(session, GET_INCARNATION, None)
    return found


def _acks(marks: Sequence[MarkWrite]) -> dict[bytes, _Cells]:
    levels: dict[bytes, int] = {}
    for mark in marks:
        for id_ in mark.notification_ids:
            levels[id_] = max(levels.get(id_, 0), mark.ack)
    return {
        id_: _Cells(RowState(id_, 0, 0, 0, level, False, False, 0), 0, put_ack=True)
        for id_, level in levels.items()
        if level
    }


async def _read(session: Session, partition: tuple[str, str], ids: Sequence[bytes]) -> dict[bytes, _Cells]:
    classes = [(high, [id_ for id_ in ids if is_high(id_) == high]) for high in (True, False)]
    reads = [
        session.execute(GET_MARKED, (*partition, high, own[start : start + _READ_ROWS]))
        for high, own in classes
        for start in range(0, len(own), _READ_ROWS)
    ]
    found = [row for rows in await asyncio.gather(*reads) for row in rows]
    return {row[0]: _Cells(row_state(*row), row[-1] or 0) for row in found}


def _apply(cells: dict[bytes, _Cells], mark: MarkWrite, *, stamp: int, again: bool) -> MarkOutcome:
    unknown: list[bytes] = []
    changed: list[RowState] = []
    for id_ in mark.notification_ids:
        one = cells.get(id_)
        if one is None or one.row.revision == 0:
            unknown.append(id_)
        waits = one is None
        if one is None:
            if not mark.vouched:
                continue
            one = cells[id_] = _Cells(RowState(id_, 0, 0, 0, 0, False, False, 0), 0)
        if _apply_one(one, mark, stamp=stamp, again=again, waits=waits) and one.row.revision > 0:
            changed.append(one.row)
    return MarkOutcome(unknown, changed)


def _apply_one(one: _Cells, mark: MarkWrite, *, stamp: int, again: bool, waits: bool) -> bool:
    """Applies a mark to one row; returns whether that is a change that others should see."""
    before = one.row
    if mark.ack > before.ack:
        one.put_ack = True
        one.row = before = msgspec.structs.replace(before, ack=int(mark.ack))
    if mark.read is None and not mark.hide:
        return False
    read = before.read
    # At one stamp the store keeps the larger value; of one call only the last one reaches it.
    if mark.read is not None and (one.put_read or (stamp, mark.read) >= (one.read_stamp, before.read)):
        read = mark.read
        one.put_read, one.read_stamp = True, stamp
    hidden = before.hidden or mark.hide
    one.put_hidden = one.put_hidden or mark.hide
    visible = again or waits or (read, hidden) != (before.read, before.hidden)
    if visible:
        one.put_visible = True
        one.row = msgspec.structs.replace(
            before,
            read=read,
            hidden=hidden,
            stamp=max(before.stamp, stamp),
            mark_stamp=max(before.mark_stamp, stamp),
        )
    return visible


def _pieces(partition: tuple[str, str], cells: Mapping[bytes, _Cells], stamp: int, lifetime: Lifetime) -> list[Piece]:
    """Returns what is to be written, a piece for each row that changes."""
    return [
        Piece(
            partition,
            put_cells(
                partition,
                id_,
                stamp=stamp,
                lifetime=lifetime,
                ack=one.row.ack if one.put_ack else None,
                read=one.row.read if one.put_read else None,
                hide=one.put_hidden,
                visible=one.put_visible,
            ),
        )
        for id_, one in cells.items()
        if one.put_ack or one.put_read or one.put_hidden or one.put_visible
    ]

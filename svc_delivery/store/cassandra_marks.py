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

from mesh.cassandra import Bound, Session
from svc_delivery.ports import MarkOutcome, MarkWrite, RowState
from svc_delivery.store.cassandra_rows import GET_MARKED, Lifetime, is_high, partition_of, put_cells, row_state

# Rows of one read and statements of one batch; a mark names a window's worth of rows at most, seldom more than one.
_READ_ROWS: Final = 100
_BATCH_ROWS: Final = 100


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
    outcomes = await asyncio.gather(
        *[
            _store(session, partition_of(key), own, stamp=stamp, again=again, lifetime=lifetime)
            for key, own in by_recipient.items()
        ]
    )
    rest = {key: iter(own) for key, own in zip(by_recipient, outcomes, strict=True)}
    return [next(rest[mark.recipient_key]) for mark in marks]


async def _store(
    session: Session,
    partition: tuple[str, str],
    marks: Sequence[MarkWrite],
    *,
    stamp: int,
    again: bool,
    lifetime: Lifetime,
) -> list[MarkOutcome]:
    if all(mark.vouched and mark.read is None and not mark.hide for mark in marks):
        await _write(session, partition, _acks(marks), stamp, lifetime)
        return [MarkOutcome() for _ in marks]
    ids = list(dict.fromkeys(id_ for mark in marks for id_ in mark.notification_ids))
    cells = await _read(session, partition, ids)
    outcomes = [_apply(cells, mark, stamp=stamp, again=again) for mark in marks]
    await _write(session, partition, cells, stamp, lifetime)
    return outcomes


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


async def _write(
    session: Session, partition: tuple[str, str], cells: Mapping[bytes, _Cells], stamp: int, lifetime: Lifetime
) -> None:
    changed = [
        (id_, one) for id_, one in cells.items() if one.put_ack or one.put_read or one.put_hidden or one.put_visible
    ]
    batches = [
        _batch(partition, changed[start : start + _BATCH_ROWS], stamp, lifetime)
        for start in range(0, len(changed), _BATCH_ROWS)
    ]
    # One statement alone is cheaper than a batch of one.
    await asyncio.gather(*[session.batch(batch) if len(batch) > 1 else session.execute(*batch[0]) for batch in batches])


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


def _batch(
    partition: tuple[str, str], cells: Sequence[tuple[bytes, _Cells]], stamp: int, lifetime: Lifetime
) -> list[Bound]:
    statements: list[Bound] = []
    for id_, one in cells:
        statements += put_cells(
            partition,
            id_,
            stamp=stamp,
            lifetime=lifetime,
            ack=one.row.ack if one.put_ack else None,
            read=one.row.read if one.put_read else None,
            hide=one.put_hidden,
            visible=one.put_visible,
        )
    return statements

"""The inbox in one SQLite file: rows with their state, heads, decisions.

Step 5 of the path: rows, follow-up and decisions of a batch are one transaction. Stamps are compared here although one
file has one writer: marks and rows reach it in any order.

Must not decide what a state means or what comes next.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

import msgspec

from mesh.ids import id_time_ms
from mesh.sqlite import Writer
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
from svc_delivery.store.sqlite_apart import ITEM_ERRORS, put_apart
from svc_delivery.store.sqlite_decisions import insert_decisions, read_decisions, sweep_decisions
from svc_delivery.store.sqlite_follow_ups import append_follow_up

_DAY_US: Final = 86_400_000_000
_CLASSES: Final = (1, 0)

_INSERT_ROW: Final = """
insert into inbox (recipient, high, id, revision, stamp, expire_us, category, content) values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (recipient, high, id) do update set
  category = iif(excluded.revision > revision, excluded.category, category),
  content = iif(excluded.revision > revision, excluded.content, content),
  expire_us = iif(excluded.revision > revision, excluded.expire_us, expire_us),
  revision = max(revision, excluded.revision),
  stamp = max(stamp, excluded.stamp)"""
_LIFT_HEAD: Final = """
insert into recipient (key, head) values (?, ?)
on conflict (key) do update set head = excluded.head where excluded.head > head"""
_STATE: Final = "id, revision, stamp, mark_stamp, ack, read, hidden, expire_us"
_SELECT_STATE: Final = f"select {_STATE} from inbox where recipient = ? and high = ? and id = ?"
_SELECT_CLASS: Final = f"select {_STATE} from inbox where recipient = ? and high = ? order by id desc"
_SELECT_NTH: Final = "select id from inbox where recipient = ? and high = ? order by id desc limit 1 offset ?"
_SELECT_NTH_OLDEST: Final = (
    "select id from inbox where recipient = ? and high = ? and id < ? order by id limit 1 offset ?"
)
_SELECT_NTH_VISIBLE: Final = """
select id from inbox where recipient = ? and high = ? and revision > 0 and hidden = 0 and expire_us > ?
order by id desc limit 1 offset ?"""
_LIFT_ACK: Final = "update inbox set ack = max(ack, ?) where recipient = ? and high = ? and id = ? and revision > 0"
_INSERT_MARK: Final = """
insert into inbox (recipient, high, id, revision, stamp, mark_stamp, expire_us, ack, read, hidden, category, content)
values (?, ?, ?, 0, ?, ?, 0, ?, ?, ?, '', x'')"""
_UPDATE_MARK: Final = """
update inbox set ack = ?, read = ?, hidden = ?, mark_stamp = ?, stamp = max(stamp, ?)
where recipient = ? and high = ? and id = ?"""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """How much an inbox keeps.

    Attributes:
        window: rows of each class that a window shows.
        trim_at: a class with more rows is trimmed.
        trim_to: so many rows a trimmed class has left, or more where a window needs them.
        trim_step: so many rows one look removes at most, where others wait for it.
        trim_every: one row written in so many looks whether its class wants trimming.
        keep_days: days a row is kept after its last change.
        decision_days: days a decision record is kept.
        letter_days: days a dead letter is kept.
    """

    window: int = 100
    trim_at: int = 200
    trim_to: int = 150
    trim_step: int = 1_000
    trim_every: int = 100
    keep_days: int = 90
    decision_days: int = 30
    letter_days: int = 30

    def looking(self, rows: Sequence[RowWrite]) -> list[RowWrite]:
        """Returns those of a write's rows that look whether their class wants trimming.

        What they are decides, not their place: the same people may stand at the same places of every write.
        """
        every = self.trim_every
        return [row for row in rows if crc32(row.recipient_key.encode(), crc32(row.notification_id)) % every == 0]


class SqliteInbox:
    """Implements `Inbox` on a writer that is opened and closed elsewhere."""

    def __init__(self, writer: Writer, *, limits: Limits) -> None:
        self._writer = writer
        self._limits = limits
        self._keep_us = limits.keep_days * _DAY_US
        self._epoch = ""
        # No inbox was trimmed above this id, so younger rows need no look at their own inbox's floor.
        self._floor = b""
        self._swept = 0

    @property
    def epoch(self) -> str:
        """See `Inbox`."""
        return self._epoch

    async def load(self) -> None:
        """Reads what the file says about itself; to be called once, after the writer is open."""
        self._epoch, self._floor = await self._writer.read(_read_meta)

    async def write(
        self,
        rows: Sequence[RowWrite],
        *,
        stamp: int,
        follow_up: FollowUpWrite | None = None,
        decisions: Sequence[DecisionWrite] = (),
    ) -> None:
        """See `Inbox`."""
        looking = [(row.recipient_key, row.notification_id[-1] & 1) for row in self._limits.looking(rows)]
        values = [_row_values(row, stamp, self._keep_us) for row in rows]

        def put(connection: sqlite3.Connection, values: list[_RowValues]) -> None:
            kept = self._above_floor(connection, values)
            connection.executemany(_INSERT_ROW, kept)
            connection.executemany(_LIFT_HEAD, [(key, stamp) for key in {row[0] for row in kept}])

        def work(connection: sqlite3.Connection) -> None:
            put(connection, values)
            if follow_up is not None:
                append_follow_up(connection, follow_up)
            insert_decisions(connection, decisions)
            for key, high in looking:
                self._trim(connection, key, high, stamp)

        try:
            await self._writer.submit(work)
        except ITEM_ERRORS as error:
            reasons = await put_apart(
                values, error, lambda part: self._writer.submit(lambda connection: put(connection, part))
            )
            if not reasons:  # the follow-up or a decision is to blame
                raise
            raise RowsRefused(reasons) from error

    async def mark(self, marks: Sequence[MarkWrite], *, stamp: int, again: bool = False) -> Sequence[MarkOutcome]:
        """See `Inbox`."""
        return await self._writer.submit(lambda connection: [_mark(connection, mark, stamp, again) for mark in marks])

    async def window(self, recipient_key: str, now_us: int) -> Window:
        """See `Inbox`."""
        window, crowded = await self._writer.read(
            lambda connection: _read_window(connection, recipient_key, now_us, self._limits)
        )
        if crowded:
            await self._writer.submit(lambda connection: self._trim_all(connection, recipient_key, crowded, now_us))
        return window

    async def bodies(self, keys: Sequence[RowKey]) -> Mapping[RowKey, Body]:
        """See `Inbox`."""
        return await self._writer.read(lambda connection: _read_bodies(connection, keys))

    async def heads(self, recipient_keys: Sequence[str]) -> Sequence[int]:
        """See `Inbox`."""
        return await self._writer.read(lambda connection: [_read_head(connection, key) for key in recipient_keys])

    async def states(self, keys: Sequence[RowKey]) -> Sequence[RowState | None]:
        """See `Inbox`."""
        return await self._writer.read(lambda connection: [_read_state(connection, key) for key in keys])

    async def decisions(self, tenant_id: str, event_id: bytes) -> Sequence[DecisionWrite]:
        """See `Inbox`."""
        return await self._writer.read(lambda connection: read_decisions(connection, tenant_id, event_id))

    async def sweep(self, now_us: int, limit: int) -> int:
        """See `Inbox`."""
        after = self._swept
        oldest_change = now_us - self._keep_us
        oldest_decision = now_us - self._limits.decision_days * _DAY_US

        def work(connection: sqlite3.Connection) -> tuple[int, int]:
            last, removed = _sweep_rows(connection, after, oldest_change, limit)
            removed_decisions = sweep_decisions(connection, oldest_decision, limit)
            return (last if removed else 0), removed + removed_decisions

        self._swept, removed = await self._writer.submit(work)
        return removed

    def _above_floor(self, connection: sqlite3.Connection, values: list[_RowValues]) -> list[_RowValues]:
        floor = self._floor
        if all(row[2] >= floor for row in values):
            return values
        return [row for row in values if row[2] >= floor or row[2] >= _read_floor(connection, row[0], row[1])]

    def _trim_all(self, connection: sqlite3.Connection, key: str, classes: Sequence[int], now_us: int) -> None:
        for high in classes:
            self._trim(connection, key, high, now_us)

    def _trim(self, connection: sqlite3.Connection, key: str, high: int, now_us: int) -> None:
        limits = self._limits
        if connection.execute(_SELECT_NTH, (key, high, limits.trim_at)).fetchone() is None:
            return
        visible = connection.execute(_SELECT_NTH_VISIBLE, (key, high, now_us, limits.window - 1)).fetchone()
        if visible is None:  # hidden rows crowd the class; the next visible ones may still slide into the window
            return
        kept = connection.execute(_SELECT_NTH, (key, high, limits.trim_to - 1)).fetchone()
        floor: bytes = min(kept[0], visible[0])
        beyond = connection.execute(_SELECT_NTH_OLDEST, (key, high, floor, limits.trim_step)).fetchone()
        if beyond is not None:  # the next look goes on
            floor = beyond[0]
        connection.execute("delete from inbox where recipient = ? and high = ? and id < ?", (key, high, floor))
        column = "high_floor" if high else "rest_floor"
        connection.execute(f"update recipient set {column} = max({column}, ?) where key = ?", (floor, key))
        if floor > self._floor:
            connection.execute("update meta set value = ? where name = 'floor'", (floor,))
            self._floor = floor  # should the transaction fail, too high a floor costs only a look


_RowValues = tuple[str, int, bytes, int, int, int, str, bytes]


def _row_values(row: RowWrite, stamp: int, keep_us: int) -> _RowValues:
    id_ = row.notification_id
    end = id_time_ms(id_) * 1000 + keep_us
    if row.expire_us is not None and row.expire_us < end:
        end = row.expire_us
    return row.recipient_key, id_[-1] & 1, id_, row.revision, stamp, end, row.category, row.content


def _state(row: tuple[bytes, int, int, int, int, int, int, int]) -> RowState:
    id_, revision, stamp, mark_stamp, ack, read, hidden, expire_us = row
    return RowState(id_, revision, stamp, mark_stamp, ack, read == 1, hidden == 1, expire_us)


# ---------------------------------------------------------------- marks


def _mark(connection: sqlite3.Connection, mark: MarkWrite, stamp: int, again: bool) -> MarkOutcome:
    if mark.read is None and not mark.hide:
        return MarkOutcome(_ack(connection, mark, stamp), [])
    unknown: list[bytes] = []
    changed: list[RowState] = []
    moved = False
    for id_ in mark.notification_ids:
        found = connection.execute(_SELECT_STATE, (mark.recipient_key, id_[-1] & 1, id_)).fetchone()
        if found is None or found[1] == 0:
            unknown.append(id_)
        if found is not None:
            before = _state(found)
            after = _apply(before, mark, stamp, again)
            if after != before:
                _save(connection, mark.recipient_key, after)
            if again or (after.read, after.hidden) != (before.read, before.hidden):
                moved = True
                if after.revision > 0:
                    changed.append(after)
        elif mark.vouched:
            _insert_mark(connection, mark, id_, stamp)
    if moved:
        connection.execute(_LIFT_HEAD, (mark.recipient_key, stamp))
    return MarkOutcome(unknown, changed)


def _ack(connection: sqlite3.Connection, mark: MarkWrite, stamp: int) -> list[bytes]:
    unknown: list[bytes] = []
    key, level = mark.recipient_key, int(mark.ack)
    for id_ in mark.notification_ids:
        if connection.execute(_LIFT_ACK, (level, key, id_[-1] & 1, id_)).rowcount:
            continue  # one statement for what nearly always happens
        unknown.append(id_)
        found = connection.execute(_SELECT_STATE, (key, id_[-1] & 1, id_)).fetchone()
        if found is not None:
            _save(connection, key, _apply(_state(found), mark, stamp, again=False))
        elif mark.vouched:
            _insert_mark(connection, mark, id_, stamp)
    return unknown


def _apply(before: RowState, mark: MarkWrite, stamp: int, again: bool) -> RowState:
    """The row after the mark; of two values for `read` the one with the larger stamp stays."""
    read = before.read
    if mark.read is not None and stamp >= before.mark_stamp:
        read = mark.read
    hidden = before.hidden or mark.hide
    ack = max(before.ack, mark.ack)
    visible = again or (read, hidden) != (before.read, before.hidden)
    # A repeated value counts with its later stamp: an older opposite one that comes after it must lose.
    mark_stamp = max(before.mark_stamp, stamp) if visible or mark.read is not None else before.mark_stamp
    row_stamp = max(before.stamp, stamp) if visible else before.stamp
    return RowState(before.notification_id, before.revision, row_stamp, mark_stamp, ack, read, hidden, before.expire_us)


def _save(connection: sqlite3.Connection, key: str, row: RowState) -> None:
    id_ = row.notification_id
    values = (row.ack, row.read, row.hidden, row.mark_stamp, row.stamp, key, id_[-1] & 1, id_)
    connection.execute(_UPDATE_MARK, values)


def _insert_mark(connection: sqlite3.Connection, mark: MarkWrite, id_: bytes, stamp: int) -> None:
    """Keeps a mark that precedes its row."""
    high = id_[-1] & 1
    if id_ < _read_floor(connection, mark.recipient_key, high):
        return
    mark_stamp = stamp if mark.read is not None or mark.hide else 0
    values = (mark.recipient_key, high, id_, stamp, mark_stamp, int(mark.ack), mark.read is True, mark.hide)
    connection.execute(_INSERT_MARK, values)
    connection.execute(_LIFT_HEAD, (mark.recipient_key, stamp))


# ---------------------------------------------------------------- reads


def _read_meta(connection: sqlite3.Connection) -> tuple[str, bytes]:
    found = dict(connection.execute("select name, value from meta").fetchall())
    return found["epoch"], found["floor"]


def _read_head(connection: sqlite3.Connection, key: str) -> int:
    found = connection.execute("select head from recipient where key = ?", (key,)).fetchone()
    return 0 if found is None else int(found[0])


def _read_floor(connection: sqlite3.Connection, key: str, high: int) -> bytes:
    found = connection.execute("select rest_floor, high_floor from recipient where key = ?", (key,)).fetchone()
    return b"" if found is None else bytes(found[high])


def _read_window(connection: sqlite3.Connection, key: str, now_us: int, limits: Limits) -> tuple[Window, list[int]]:
    """The window, and the classes that want trimming."""
    rows: list[RowState] = []
    gone: list[RowState] = []
    for high in _CLASSES:
        _read_class(connection.execute(_SELECT_CLASS, (key, high)), now_us, limits.window, rows, gone)
    rows.sort(key=_by_id, reverse=True)
    gone.sort(key=_by_id, reverse=True)
    crowded = [high for high in _CLASSES if connection.execute(_SELECT_NTH, (key, high, limits.trim_at)).fetchone()]
    return Window(_read_head(connection, key), rows, gone), crowded


def _read_class(
    found: Iterable[tuple[bytes, int, int, int, int, int, int, int]],
    now_us: int,
    size: int,
    rows: list[RowState],
    gone: list[RowState],
) -> None:
    wanted = size
    for values in found:
        if values[1] == 0:  # only marks
            continue
        row = _state(values)
        if row.hidden or row.expire_us <= now_us:
            gone.append(row)
            continue
        rows.append(row)
        wanted -= 1
        if wanted == 0:
            return


def _by_id(row: RowState) -> bytes:
    return row.notification_id


def _read_state(connection: sqlite3.Connection, key: RowKey) -> RowState | None:
    id_ = key.notification_id
    found = connection.execute(_SELECT_STATE, (key.recipient_key, id_[-1] & 1, id_)).fetchone()
    return None if found is None or found[1] == 0 else _state(found)


def _read_bodies(connection: sqlite3.Connection, keys: Sequence[RowKey]) -> dict[RowKey, Body]:
    bodies: dict[RowKey, Body] = {}
    for key in keys:
        id_ = key.notification_id
        found = connection.execute(
            "select revision, content from inbox where recipient = ? and high = ? and id = ? and revision > 0",
            (key.recipient_key, id_[-1] & 1, id_),
        ).fetchone()
        if found is not None:
            bodies[key] = Body(*found)
    return bodies


def _sweep_rows(connection: sqlite3.Connection, after: int, oldest_change: int, limit: int) -> tuple[int, int]:
    """Looks at the rows that came next after a rowid; returns the last rowid and how many were removed."""
    found = connection.execute(
        "select rowid, stamp from inbox where rowid > ? order by rowid limit ?", (after, limit)
    ).fetchall()
    old = [(rowid,) for rowid, stamp in found if stamp <= oldest_change]
    connection.executemany("delete from inbox where rowid = ?", old)
    return (found[-1][0] if found else 0), len(old)

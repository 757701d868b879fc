"""Windows of the inbox in Cassandra, and the trimming of what no window needs.

A window is one read of the first rows of a partition, high priority first; only an inbox that is full beyond that costs
more. A row may be shown by a later page than the head was: so each page brings the head along, and the largest counts.

Trimming is one range delete. Its timestamp is above every cell that it is to hide, so a row that is written again below
it has a fresh stamp and no content, and readers pass over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mesh.cassandra import Row, Session
from svc_delivery.ports import RowState, Window
from svc_delivery.store.cassandra_rows import STATE, id_us, row_state
from svc_delivery.store.sqlite import Limits

_COLUMNS: Final = f"select high, head, {STATE} from inbox where tenant = ? and recipient = ?"
_FIRST: Final = f"{_COLUMNS} limit ?"
_CLASS: Final = f"{_COLUMNS} and high = ? limit ?"
_NEXT: Final = f"{_COLUMNS} and high = ? and id < ? limit ?"
_COUNT: Final = "select count(*) from inbox where tenant = ? and recipient = ? and high = ?"
_TRIM: Final = "delete from inbox using timestamp ? where tenant = ? and recipient = ? and high = ? and id < ?"

WINDOW_STATEMENTS: Final = (_FIRST, _CLASS, _NEXT, _COUNT, _TRIM)

_HIGH_AND_REST: Final = (True, False)
_PAGE: Final = 200
# Content is at the time in its id plus its revision: no content below a floor is later than this above it.
_REVISIONS: Final = 1 << 31


class _Class:
    """What was read of one class, newest first."""

    def __init__(self, size: int, now_us: int) -> None:
        self.rows: list[RowState] = []
        self.gone: list[RowState] = []
        self.ids: list[bytes] = []
        self.done = False
        self._size = size
        self._now_us = now_us

    @property
    def full(self) -> bool:
        """Whether the window needs no more of it."""
        return len(self.rows) >= self._size

    def take(self, id_: bytes, cells: Row) -> None:
        """Takes the next row."""
        self.ids.append(id_)
        if cells[1] is None or self.full:  # only marks, or trimmed; or beyond the window
            return
        row = row_state(*cells)
        (self.gone if row.hidden or row.expire_us <= self._now_us else self.rows).append(row)


class Windows:
    """Reads windows and trims."""

    def __init__(self, session: Session, *, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        # So much tells of a usual inbox in one read whether one of its classes is crowded.
        self._first = limits.trim_at + limits.window // 2

    async def read(self, partition: tuple[str, str], now_us: int) -> Window:
        """See `Inbox.window`."""
        found = {high: _Class(self._limits.window, now_us) for high in _HIGH_AND_REST}
        rows = await self._session.execute(_FIRST, (*partition, self._first))
        head = _take(found, rows)
        # High priority comes first: a row of the rest says that there is no more of it.
        found[False].done = len(rows) < self._first
        found[True].done = found[False].done or bool(found[False].ids)
        for high in _HIGH_AND_REST:
            head = max(head, await self._complete(partition, high, found[high], lambda one: one.full))
        for high in _HIGH_AND_REST:
            await self._trim_crowded(partition, high, found[high], at_us=max(head, now_us))
        shown = [row for one in found.values() for row in one.rows]
        gone = [row for one in found.values() for row in one.gone]
        shown.sort(key=_by_id, reverse=True)
        gone.sort(key=_by_id, reverse=True)
        return Window(head, shown, gone)

    async def trim(self, partition: tuple[str, str], high: bool, now_us: int) -> None:
        """Trims a class if it is crowded."""
        if await self._count(partition, high) <= self._limits.trim_at:
            return
        one = _Class(self._limits.window, now_us)
        head = await self._complete(partition, high, one, self._knows_floor)
        await self._delete_below(partition, high, one, at_us=max(head, now_us))

    async def _trim_crowded(self, partition: tuple[str, str], high: bool, one: _Class, *, at_us: int) -> None:
        limits = self._limits
        if (
            not one.full
        ):  # hidden rows crowd the class, if any do; the next visible ones may still slide into the window
            return
        count = len(one.ids) if one.done else await self._count(partition, high)
        if count > limits.trim_at:
            head = await self._complete(partition, high, one, self._knows_floor)
            await self._delete_below(partition, high, one, at_us=max(head, at_us))

    async def _complete(
        self, partition: tuple[str, str], high: bool, one: _Class, enough: Callable[[_Class], bool]
    ) -> int:
        """Reads on in a class until it is enough; returns the largest head on the way."""
        head = 0
        while not one.done and not enough(one):
            if one.ids:
                rows = await self._session.execute(_NEXT, (*partition, high, one.ids[-1], _PAGE))
            else:
                rows = await self._session.execute(_CLASS, (*partition, high, _PAGE))
            head = max(head, _take({high: one}, rows))
            one.done = len(rows) < _PAGE
        return head

    async def _count(self, partition: tuple[str, str], high: bool) -> int:
        return int((await self._session.execute(_COUNT, (*partition, high)))[0][0])

    def _knows_floor(self, one: _Class) -> bool:
        return one.full and len(one.ids) >= self._limits.trim_to

    async def _delete_below(self, partition: tuple[str, str], high: bool, one: _Class, *, at_us: int) -> None:
        if not self._knows_floor(one):
            return
        floor = min(one.ids[self._limits.trim_to - 1], one.rows[-1].notification_id)
        timestamp = max(at_us, id_us(floor) + _REVISIONS)
        await self._session.execute(_TRIM, (timestamp, *partition, high, floor))


def _take(found: Mapping[bool, _Class], rows: Sequence[Row]) -> int:
    """Sorts rows into their classes; returns the largest head."""
    head = 0
    for high, its_head, id_, *cells in rows:
        head = max(head, its_head or 0)
        if id_ is not None:  # none: the partition has a head and no row
            found[high].take(id_, (id_, *cells))
    return head


def _by_id(row: RowState) -> bytes:
    return row.notification_id

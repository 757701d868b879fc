"""The client's copy of its inbox: enough of each row to compare it with the server's window and to count unread.

It holds no content: the application has that. Pure; time is an argument. Must not know frames or connections.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec

from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState

# The newest of each class that the server's window lists.
WINDOW_ROWS = 100
# Of each class; beyond the window, since a row that is hidden lets an older one slide in.
_KEPT_ROWS = 200
_SLACK_ROWS = 50
# Within so many seconds of its expiry a row is in one window and not yet, or no more, in the other.
_EXPIRY_DOUBT_S = 10.0

_READ, _HIDDEN = NotificationState.NOTIFICATION_STATE_READ, NotificationState.NOTIFICATION_STATE_HIDDEN
_NEW, _RECEIVED = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_RECEIVED
_SEEN = NotificationState.NOTIFICATION_STATE_SEEN


class Row(msgspec.Struct, gc=False):
    """One notification of the copy.

    Attributes:
        revision: of its content.
        high: it is of high priority.
        state: a `NotificationState`, as the server last said it.
        expire_time: Unix seconds, 0: never.
    """

    revision: int
    high: bool
    state: int
    expire_time: float = 0.0


class InboxCopy:
    """Rows by id."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._since_welcome: set[str] = set()

    def welcome(self) -> None:
        """A session begins: what comes from now on survives a reload."""
        self._since_welcome.clear()

    def put(self, id_: str, revision: int, *, high: bool, state: int, expire_time: float) -> None:
        """Notes a notification that came.

        Args:
            id_: the notification.
            revision: of its content; a lower one than the copy's changes nothing but the state.
            high: it is of high priority.
            state: 0 when nothing was said about it: a live frame.
            expire_time: Unix seconds, 0: never.
        """
        self._since_welcome.add(id_)
        row = self.rows.get(id_)
        if row is None:
            self.rows[id_] = Row(revision, high, state or _NEW, expire_time)
            self._trim()
            return
        if revision >= row.revision:
            row.revision, row.high, row.expire_time = revision, high, expire_time
        if state:
            row.state = state

    def set_state(self, id_: str, state: int) -> bool:
        """Notes a state that the server said; tells whether it is news."""
        self._since_welcome.add(id_)
        row = self.rows.get(id_)
        if row is None or row.state == state:
            return False
        row.state = state
        return True

    def confirm(self, id_: str, kind: int) -> None:
        """An own ack or mark is durable: the server's state has it."""
        row = self.rows.get(id_)
        if row is None or row.state == _HIDDEN:
            return
        if kind == MarkKind.MARK_KIND_HIDDEN:
            row.state = _HIDDEN
        elif kind == MarkKind.MARK_KIND_READ:
            row.state = _READ
        elif kind == MarkKind.MARK_KIND_UNREAD:
            row.state = _SEEN if row.state == _READ else row.state
        elif row.state != _READ:
            row.state = max(row.state, _SEEN if kind == MarkKind.MARK_KIND_SEEN else _RECEIVED)

    def reload(self) -> None:
        """What came since welcome is the whole window: everything else goes."""
        self.rows = {id_: row for id_, row in self.rows.items() if id_ in self._since_welcome}

    def window(self, now: float) -> list[str]:
        """Returns the ids that the server's window should list, in ascending order."""
        ids = []
        for high in (True, False):
            visible = [id_ for id_, row in self.rows.items() if row.high == high and _visible(row, now)]
            ids += sorted(visible, reverse=True)[:WINDOW_ROWS]
        return sorted(ids)

    def checksum(self, now: float) -> int:
        """Returns CRC-32, signed, over the window in ascending id order."""
        lines = [f"{id_} {self.rows[id_].revision} {int(self.rows[id_].state == _READ)}\n" for id_ in self.window(now)]
        value = zlib.crc32("".join(lines).encode())
        return value - (1 << 32) if value >= 1 << 31 else value

    def doubtful(self, now: float) -> bool:
        """Tells whether a row expires just now, so that nothing can be said about the server's window."""
        return any(row.expire_time and abs(row.expire_time - now) < _EXPIRY_DOUBT_S for row in self.rows.values())

    def unread(self, now: float, mark_of: Callable[[str], int | None]) -> int:
        """Counts the window's rows that are not read.

        Args:
            now: Unix seconds.
            mark_of: the own mark of an id that the server has not confirmed; it decides.
        """
        return sum(self._unread(id_, mark_of(id_)) for id_ in self.window(now))

    def _unread(self, id_: str, mark: int | None) -> bool:
        if mark is None:
            return self.rows[id_].state != _READ
        return mark == MarkKind.MARK_KIND_UNREAD

    def _trim(self) -> None:
        if len(self.rows) <= 2 * _KEPT_ROWS + _SLACK_ROWS:
            return
        for high in (True, False):
            ids = sorted(id_ for id_, row in self.rows.items() if row.high == high)
            for id_ in ids[:-_KEPT_ROWS]:
                del self.rows[id_]


def _visible(row: Row, now: float) -> bool:
    return row.state != _HIDDEN and (row.expire_time == 0 or row.expire_time > now)

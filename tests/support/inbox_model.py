"""A small model of inboxes and of a client's copy, for properties of replays.

The store shows a write only some time after its stamp was taken, as a quorum store may. The client keeps nothing but
its window, the least that a copy may be.
"""

from __future__ import annotations

from collections.abc import Callable

from svc_delivery import replay
from svc_delivery.ports import RowState, Window
from svc_delivery.replay import ReplayEntry
from tests.support.inbox import DAY_US, NOW_US, make_id

WINDOW = 3
SECOND_US = 1_000_000
W_US = 5 * SECOND_US
S_US = 1 * SECOND_US
EPOCH = "model"


class ModelInbox:
    """Rows whose writes commute and become visible late."""

    def __init__(self) -> None:
        self.now = NOW_US
        self.rows: dict[bytes, RowState] = {}
        self._coming: list[tuple[int, Callable[[], None]]] = []

    def advance(self, micros: int) -> None:
        """Lets time pass; what becomes visible meanwhile does so in that order."""
        self.now += micros
        ready = sorted((item for item in self._coming if item[0] <= self.now), key=lambda item: item[0])
        self._coming = [item for item in self._coming if item[0] > self.now]
        for _, show in ready:
            show()

    def write(self, id_: bytes, revision: int, expire_us: int, *, skew: int, delay: int) -> None:
        """Writes a row; it is visible after `delay`."""
        stamp = self.now + skew

        def show() -> None:
            old = self.rows.get(id_)
            if old is None:
                self.rows[id_] = RowState(id_, revision, stamp, 0, 0, False, False, expire_us)
                return
            newer = revision > old.revision
            self.rows[id_] = RowState(
                id_,
                max(revision, old.revision),
                max(stamp, old.stamp),
                old.mark_stamp,
                old.ack,
                old.read,
                old.hidden,
                expire_us if newer else old.expire_us,
            )

        self._show_after(delay, show)

    def mark(self, id_: bytes, read: bool | None, hide: bool, *, skew: int, delay: int) -> None:
        """Marks a row, if it is visible then."""
        stamp = self.now + skew

        def show() -> None:
            old = self.rows.get(id_)
            if old is None:
                return
            wins = read is not None and stamp >= old.mark_stamp
            self.rows[id_] = RowState(
                id_,
                old.revision,
                max(stamp, old.stamp),
                max(stamp, old.mark_stamp),
                old.ack,
                bool(read) if wins else old.read,
                old.hidden or hide,
                old.expire_us,
            )

        self._show_after(delay, show)

    def window(self) -> Window:
        """What a read sees now."""
        rows: list[RowState] = []
        gone: list[RowState] = []
        for high in (0, 1):
            wanted = WINDOW
            for id_ in sorted((id_ for id_ in self.rows if id_[-1] & 1 == high), reverse=True):
                row = self.rows[id_]
                if wanted == 0:
                    break
                if row.hidden or row.expire_us <= self.now:
                    gone.append(row)
                else:
                    rows.append(row)
                    wanted -= 1
        rows.sort(key=lambda row: row.notification_id, reverse=True)
        return Window(max((row.stamp for row in self.rows.values()), default=0), rows, gone)

    def _show_after(self, delay: int, show: Callable[[], None]) -> None:
        self._coming.append((self.now + delay, show))
        self.advance(0)


class ModelClient:
    """A copy of the window: id → (revision, read, expiry)."""

    def __init__(self) -> None:
        self.copy: dict[bytes, tuple[int, bool, int]] = {}
        self.received: dict[bytes, int] = {}
        self.cursor: int | None = None

    def hear(self, row: RowState, now: int) -> None:
        """Gets a row live, at most so young that it is not known otherwise."""
        known = self.copy.get(row.notification_id)
        if known is None or known[0] < row.revision:
            self.copy[row.notification_id] = (row.revision, False if known is None else known[1], row.expire_us)
            self.received[row.notification_id] = row.revision
        self._prune(now)

    def replay(
        self,
        inbox: ModelInbox,
        *,
        skew: int,
        page_size: int,
        between: Callable[[], None] = lambda: None,
        margin_us: int = W_US + S_US,
    ) -> bool:
        """Catches up; returns whether the copy has the checksum that the last page named."""
        received = {id_: revision for id_, revision in self.received.items() if id_ in self.copy}
        page: replay.Page | None = None
        reloaded: dict[bytes, tuple[int, bool, int]] = {}
        while True:
            window = inbox.window()
            answer = replay.plan_replay(
                window,
                cursor_stamp=self.cursor,
                received=received,
                page=page,
                page_size=page_size,
                window_size=WINDOW,
                read_us=inbox.now + skew,
            )
            for entry in answer.entries:
                self._apply(entry, reloaded if answer.reload else self.copy)
            if answer.next_page is None:
                break
            page = replay.read_token(b"R", replay.write_token(b"R", answer.next_page))
            between()
        if answer.reload:
            self.copy = reloaded
        self._prune(inbox.now)
        self.cursor = replay.cursor_after(answer.read_us, margin=margin_us / SECOND_US)
        counted = replay.count(window, inbox.now)
        return self.checksum(inbox.now) == (counted.item_count, counted.checksum)

    def checksum(self, now: int) -> tuple[int, int]:
        """Number and checksum of the copy, the way a client computes them."""
        rows = [
            RowState(id_, revision, 0, 0, 0, read, False, expire_us)
            for id_, (revision, read, expire_us) in sorted(self.copy.items(), reverse=True)
        ]
        counted = replay.count(Window(0, rows, []), now)
        return counted.item_count, counted.checksum

    def unread(self) -> int:
        """How many of the copy are not read."""
        return sum(not read for _, read, _ in self.copy.values())

    def _apply(self, entry: ReplayEntry, copy: dict[bytes, tuple[int, bool, int]]) -> None:
        row = entry.row
        if entry.gone:
            copy.pop(row.notification_id, None)
        elif entry.with_body:
            copy[row.notification_id] = (row.revision, row.read, row.expire_us)
        elif row.notification_id in copy:
            revision, _, expire_us = copy[row.notification_id]
            copy[row.notification_id] = (revision, row.read, expire_us)

    def _prune(self, now: int) -> None:
        kept: list[bytes] = []
        for high in (0, 1):
            ids = [id_ for id_, cells in self.copy.items() if id_[-1] & 1 == high and cells[2] > now]
            kept += sorted(ids, reverse=True)[:WINDOW]
        self.copy = {id_: self.copy[id_] for id_ in kept}


def far_expiry(number: int) -> int:
    """An expiry that no test reaches."""
    return NOW_US + 365 * DAY_US + number


def model_id(number: int) -> bytes:
    """Ids of both classes by number."""
    return make_id(number, high=number % 3 == 0)

"""The rules of the window: its number and checksum, the pages of a list, and what a replay sends.

Path step 10. A client that applies what a replay sends has the window, or sees by the checksum that it has not and
loads it anew. Pure: time is an argument, no I/O.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mesh.errors import InvalidArgument, Violation
from mesh.ids import to_text
from svc_delivery import core
from svc_delivery.ports import RowState, Window

DAY_US: Final = 86_400_000_000
LIST_PAGE: Final = 50
REPLAY_PAGE: Final = 100
LARGEST_PAGE: Final = 200

# ---------------------------------------------------------------- the window as numbers


class Count(msgspec.Struct, frozen=True, gc=False):
    """What a window amounts to.

    Attributes:
        head: largest stamp of the inbox when it was counted.
        unread_count: rows of the window that are not read.
        item_count: rows of the window.
        checksum: CRC-32 as a signed number, as `ReplayInboxResponse.checksum` describes it.
        settle_us: nothing of the window changed after this: the head, or a later expiry.
        end_us: the first expiry to come; the count does not hold from then on.
    """

    head: int
    unread_count: int
    item_count: int
    checksum: int
    settle_us: int
    end_us: int


def count(window: Window, now_us: int) -> Count:
    """Counts a window as it was read at `now_us`."""
    checksum = 0
    unread_count = 0
    end_us = now_us + 90 * DAY_US
    for row in reversed(window.rows):
        line = f"{to_text(row.notification_id)} {row.revision} {int(row.read)}\n"
        checksum = zlib.crc32(line.encode(), checksum)
        unread_count += not row.read
        end_us = min(end_us, row.expire_us)
    settle_us = max([window.head, *(row.expire_us for row in window.gone if row.expire_us <= now_us)])
    signed = checksum - (1 << 32) if checksum >> 31 else checksum
    return Count(window.head, unread_count, len(window.rows), signed, settle_us, end_us)


# ---------------------------------------------------------------- page tokens

# A version byte, the kind, whether a replay reloads, the first page's read, then the last row's stamp and id.
_TOKEN: Final = struct.Struct(">BcBqq16s")
_VERSION: Final = 1


class Page(msgspec.Struct, frozen=True, gc=False):
    """Where the next page goes on: after this row."""

    reload: bool
    read_us: int
    stamp: int
    notification_id: bytes


def write_token(kind: bytes, page: Page) -> str:
    """Returns the token of a page: `b"L"` of a list, `b"R"` of a replay."""
    packed = _TOKEN.pack(_VERSION, kind, page.reload, page.read_us, page.stamp, page.notification_id)
    return urlsafe_b64encode(packed).decode()


def read_token(kind: bytes, token: str) -> Page | None:
    """Returns where a token goes on, None for an empty one.

    Raises:
        InvalidArgument: it is not a token of this kind.
    """
    if not token:
        return None
    try:
        version, of_kind, reload, read_us, stamp, id_ = _TOKEN.unpack(
            b64decode(token.encode("ascii"), b"-_", validate=True)
        )
    except (ValueError, struct.error):
        raise _bad_token() from None
    if (version, of_kind) != (_VERSION, kind) or reload > 1 or read_us < 0 or stamp < 0:
        raise _bad_token()
    return Page(reload == 1, read_us, stamp, id_)


def _bad_token() -> InvalidArgument:
    return core.invalid([Violation("page_token", "must be one that the last answer gave")])


def page_size_of(asked: int, default: int) -> int:
    """Returns the size of a page.

    Raises:
        InvalidArgument: it is negative.
    """
    if asked < 0:
        raise core.invalid([Violation("page_size", "must not be negative")])
    return min(asked or default, LARGEST_PAGE)


# ---------------------------------------------------------------- the list


def list_page(
    window: Window, *, page: Page | None, page_size: int, unread_only: bool
) -> tuple[Sequence[RowState], Page | None]:
    """Returns the rows of one page, newest first, and where the next one goes on."""
    rows = [
        row
        for row in window.rows
        if (page is None or row.notification_id < page.notification_id) and not (unread_only and row.read)
    ]
    taken = rows[:page_size]
    more = len(rows) > page_size
    return taken, Page(False, 0, 0, taken[-1].notification_id) if more else None


# ---------------------------------------------------------------- the replay


class Position(msgspec.Struct, frozen=True, gc=False):
    """A cursor: the epoch it belongs to, and the stamp up to which a copy is complete."""

    epoch: str
    stamp: int


class ReplayEntry(msgspec.Struct, frozen=True, gc=False):
    """One row that a client must hear of.

    Attributes:
        row: as it is now.
        with_body: whether the client lacks its content.
        gone: it left the window: hidden, or its time is over.
    """

    row: RowState
    with_body: bool
    gone: bool = False


class ReplayPage(msgspec.Struct, frozen=True, gc=False):
    """One page of a replay.

    Attributes:
        entries: oldest stamp first.
        reload: the client must drop its copy; the same on every page.
        next_page: where the next page goes on; None on the last page.
        read_us: when the first page was read; the new cursor counts from there.
    """

    entries: Sequence[ReplayEntry]
    reload: bool
    next_page: Page | None
    read_us: int


def reload_reason(cursor: Position | None, *, epoch: str, read_us: int, keep_days: int) -> str | None:
    """Says why the whole window must be sent: "ABSENT", "FOREIGN", "FUTURE", "OLD"; None when the cursor is usable."""
    if cursor is None:
        return "ABSENT"
    if cursor.epoch != epoch:
        return "FOREIGN"
    if cursor.stamp > read_us:
        return "FUTURE"
    if cursor.stamp <= read_us - keep_days * DAY_US:
        return "OLD"
    return None


def is_current(cursor_stamp: int, known: Count) -> bool:
    """Whether a copy that is complete up to the cursor lacks nothing of the window that was counted."""
    return known.settle_us <= cursor_stamp


def cursor_after(read_us: int, *, margin: float) -> int:
    """Returns the stamp of the new cursor: `margin` (W + S) before the read, for rows that it could not see yet."""
    return max(0, read_us - round(margin * 1_000_000))


def plan_replay(
    window: Window,
    *,
    cursor_stamp: int | None,
    received: Mapping[bytes, int],
    page: Page | None,
    page_size: int,
    window_size: int,
    read_us: int,
) -> ReplayPage:
    """Decides what one page of a replay sends. Each page reads the window anew; changes meanwhile come on later pages.

    Args:
        window: as it is now.
        cursor_stamp: the client's copy is complete up to it; None for a reload.
        received: revisions of what the client got since the cursor, by id; 0 for whichever.
        page: where this page goes on; None for the first.
        page_size: so many entries at most.
        window_size: rows of each class that a window shows.
        read_us: the writer's clock before this read.
    """
    if cursor_stamp is None:
        entries = [ReplayEntry(row, with_body=True) for row in window.rows]
    else:
        entries = _changes(window, cursor_stamp, received, window_size)
    entries.sort(key=_place)
    if page is not None:
        reached = (page.stamp, page.notification_id)
        entries = [entry for entry in entries if _place(entry) > reached]
    first_read_us = read_us if page is None else page.read_us
    taken = entries[:page_size]
    next_page = None
    if len(entries) > page_size:
        stamp, id_ = _place(taken[-1])
        next_page = Page(cursor_stamp is None, first_read_us, stamp, id_)
    return ReplayPage(taken, cursor_stamp is None, next_page, first_read_us)


def _place(entry: ReplayEntry) -> tuple[int, bytes]:
    return entry.row.stamp, entry.row.notification_id


def _changes(window: Window, cursor_stamp: int, received: Mapping[bytes, int], window_size: int) -> list[ReplayEntry]:
    entries: list[ReplayEntry] = []
    left: list[RowState] = []
    for row in window.gone:
        # An expiry sets no stamp; its own time says whether the client may still have the row.
        since = (row.stamp if row.hidden else row.expire_us) > cursor_stamp
        if since or row.notification_id in received:  # a frame that was offered late does not say that it is hidden
            left.append(row)
            entries.append(ReplayEntry(row, with_body=False, gone=True))
    slid = _slid(window, left, window_size)
    for row in window.rows:
        revision = received.get(row.notification_id)
        has_body = revision is not None and (revision == 0 or revision >= row.revision)
        if has_body:
            # Nor does a frame say that another device has read it before.
            if row.read or row.mark_stamp > cursor_stamp:
                entries.append(ReplayEntry(row, with_body=False))
        elif revision is not None or row.stamp > cursor_stamp or row.notification_id in slid:
            entries.append(ReplayEntry(row, with_body=True))
    return entries


def _slid(window: Window, left: Sequence[RowState], window_size: int) -> set[bytes]:
    """Rows that may have come into the window unchanged, because younger ones left it since the cursor.

    At the cursor a window had at most the rows that it has now and those that left since: what is not among the newest
    of them may be new to the client. (A row with a younger stamp may have been there as well, with other marks.)
    """
    slid: set[bytes] = set()
    for high in (0, 1):
        ids = [row.notification_id for row in (*left, *window.rows) if row.notification_id[-1] & 1 == high]
        slid.update(sorted(ids, reverse=True)[window_size:])
    return slid

"""The copy of an inbox: its window, checksum and number of unread."""

from __future__ import annotations

import zlib

import pytest

from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState
from heliograph_client.inbox_copy import InboxCopy
from tests.support.scripted_gateway import checksum_of, id_of

NEW, RECEIVED = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_RECEIVED
SEEN, READ = NotificationState.NOTIFICATION_STATE_SEEN, NotificationState.NOTIFICATION_STATE_READ
HIDDEN = NotificationState.NOTIFICATION_STATE_HIDDEN
NOW = 1_000.0


def _put(copy: InboxCopy, number: int, *, state: int = NEW, high: bool = False, expire_time: float = 0.0) -> str:
    id_ = id_of(number, high=high)
    copy.put(id_, 1, high=high, state=state, expire_time=expire_time)
    return id_


def test_the_window_is_the_newest_hundred_of_each_class() -> None:
    """A hundred likes do not push out last night's security alert; hidden and expired rows are not listed."""
    copy = InboxCopy()
    alert = _put(copy, 0, high=True)
    rest = [_put(copy, number) for number in range(1, 103)]
    _put(copy, 200, state=HIDDEN)
    _put(copy, 201, expire_time=NOW)
    assert copy.window(NOW) == sorted([alert, *rest[2:]])


def test_a_hidden_row_lets_an_older_one_slide_in() -> None:
    """More rows are kept than the window lists."""
    copy = InboxCopy()
    rest = [_put(copy, number) for number in range(101)]
    assert rest[0] not in copy.window(NOW)
    copy.set_state(rest[100], HIDDEN)
    assert copy.window(NOW) == rest[:100]


def test_it_stays_small() -> None:
    """However many come, the newest are kept."""
    copy = InboxCopy()
    ids = [_put(copy, number) for number in range(5_000)]
    assert len(copy.rows) <= 450
    assert copy.window(NOW) == ids[-100:]


def test_the_checksum_is_the_contracts() -> None:
    """CRC-32, signed, over id, revision and read, one line each in ascending order."""
    copy = InboxCopy()
    second, first = _put(copy, 2, state=READ), _put(copy, 1)
    text = f"{first} 1 0\n{second} 1 1\n".encode()
    assert copy.checksum(NOW) % (1 << 32) == zlib.crc32(text)
    assert copy.checksum(NOW) == checksum_of([(second, 1, True), (first, 1, False)])
    assert -(1 << 31) <= copy.checksum(NOW) < 1 << 31
    assert InboxCopy().checksum(NOW) == 0


def test_a_live_frame_of_a_known_row_keeps_its_state() -> None:
    """A live frame says nothing about the state; a lower revision changes no content."""
    copy = InboxCopy()
    id_ = _put(copy, 1, state=READ)
    copy.put(id_, 2, high=False, state=0, expire_time=0.0)
    copy.put(id_, 1, high=False, state=0, expire_time=0.0)
    assert (copy.rows[id_].revision, copy.rows[id_].state) == (2, READ)


def test_a_reload_drops_what_did_not_come() -> None:
    """What came since welcome, as content or as a change, is the whole window."""
    copy = InboxCopy()
    gone, kept = _put(copy, 1), _put(copy, 2)
    copy.welcome()
    copy.set_state(kept, NEW)
    new = _put(copy, 3)
    copy.reload()
    assert list(copy.rows) == [kept, new]
    assert gone not in copy.rows


@pytest.mark.parametrize(
    ("before", "kind", "after"),
    [
        (NEW, MarkKind.MARK_KIND_RECEIVED, RECEIVED),
        (NEW, MarkKind.MARK_KIND_FOREGROUND, RECEIVED),
        (RECEIVED, MarkKind.MARK_KIND_SEEN, SEEN),
        (SEEN, MarkKind.MARK_KIND_RECEIVED, SEEN),
        (NEW, MarkKind.MARK_KIND_READ, READ),
        (READ, MarkKind.MARK_KIND_SEEN, READ),
        (READ, MarkKind.MARK_KIND_UNREAD, SEEN),
        (NEW, MarkKind.MARK_KIND_UNREAD, NEW),
        (READ, MarkKind.MARK_KIND_HIDDEN, HIDDEN),
        (HIDDEN, MarkKind.MARK_KIND_READ, HIDDEN),
    ],
)
def test_a_confirmed_mark_moves_the_state_as_the_server_does(before: int, kind: int, after: int) -> None:
    """States only move up, except that "unread" takes "read" back."""
    copy = InboxCopy()
    id_ = _put(copy, 1, state=before)
    copy.confirm(id_, kind)
    assert copy.rows[id_].state == after


def test_own_marks_decide_what_is_unread() -> None:
    """The number follows what the recipient did before the server has confirmed it."""
    copy = InboxCopy()
    first, second, third = _put(copy, 1), _put(copy, 2, state=READ), _put(copy, 3)
    assert copy.unread(NOW, lambda _: None) == 2
    marks = {first: MarkKind.MARK_KIND_READ, second: MarkKind.MARK_KIND_UNREAD, third: MarkKind.MARK_KIND_HIDDEN}
    assert copy.unread(NOW, marks.get) == 1


def test_a_row_that_expires_just_now_makes_it_doubtful() -> None:
    """Two clocks never agree to the millisecond."""
    copy = InboxCopy()
    _put(copy, 1, expire_time=NOW + 100)
    assert not copy.doubtful(NOW)
    assert copy.doubtful(NOW + 95)

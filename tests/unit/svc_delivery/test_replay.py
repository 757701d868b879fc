"""Properties and examples of `svc_delivery.replay`."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mesh.errors import InvalidArgument
from mesh.ids import to_text
from svc_delivery import replay
from svc_delivery.ports import RowState, Window
from svc_delivery.replay import Count, Page, Position
from tests.support.inbox import DAY_US, NOW_US, make_id, numbers
from tests.support.inbox_model import S_US, SECOND_US, W_US, ModelClient, ModelInbox, far_expiry, model_id


class Play:
    """Writers, marks, live frames and replays that meet at random."""

    def __init__(self, seed: int, *, interrupted: bool, margin_us: int) -> None:
        self.source = random.Random(seed)
        self.inbox = ModelInbox()
        self.client = ModelClient()
        self.interrupted = interrupted
        self.margin_us = margin_us

    def act(self) -> None:
        """One step of anybody but the client's replay."""
        source, inbox = self.source, self.inbox
        id_ = model_id(source.randrange(14))
        delay = source.choice([0, 0, 0, source.randint(0, W_US)])
        match source.randrange(8):
            case 0 | 1 | 2:
                expire_us = source.choice([far_expiry(0), far_expiry(0), inbox.now + source.randint(0, 40 * SECOND_US)])
                inbox.write(id_, source.choice([1, 1, 2]), expire_us, skew=self.skew(), delay=delay)
            case 3:
                inbox.mark(id_, source.random() < 0.7, False, skew=self.skew(), delay=delay)
            case 4:
                inbox.mark(id_, None, True, skew=self.skew(), delay=delay)
            case 5 if id_ in inbox.rows:
                self.client.hear(inbox.rows[id_], inbox.now)
            case _:
                inbox.advance(source.choice([0, 1, SECOND_US, 7 * SECOND_US, 60 * SECOND_US]))

    def skew(self) -> int:
        """How far some process's clock is off."""
        return self.source.randint(-S_US // 2, S_US // 2)

    def catch_up(self, page_size: int) -> bool:
        """A replay; returns whether the copy is equal then."""
        return self.client.replay(
            self.inbox,
            skew=self.skew(),
            page_size=page_size,
            between=self.act if self.interrupted else lambda: None,
            margin_us=self.margin_us,
        )

    def is_window(self) -> bool:
        """Whether the copy is the window, row for row, with its unread number."""
        window = self.inbox.window()
        held = sorted(self.client.copy, reverse=True) == [row.notification_id for row in window.rows]
        return held and self.client.unread() == replay.count(window, self.inbox.now).unread_count


def run(seed: int, steps: int, *, interrupted: bool, margin_us: int = W_US + S_US) -> tuple[bool, bool]:
    """Returns whether every replay ended with an equal copy, and whether the copy was the window at rest."""
    play = Play(seed, interrupted=interrupted, margin_us=margin_us)
    always_equal = True
    for _ in range(steps):
        play.act()
        if play.source.random() < 0.2 and not play.catch_up(play.source.choice([1, 2, 100])):
            always_equal = False
            if interrupted:
                play.client.cursor = None  # what the contract asks of a client whose copy differs
    play.inbox.advance(10 * SECOND_US)
    play.interrupted = False
    if not play.catch_up(100):
        always_equal = False
        play.client.cursor = None
        assert play.catch_up(100)
    return always_equal, play.is_window()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 120))
@example(7, 120)
def test_a_copy_that_replays_is_the_window(seed: int, steps: int) -> None:
    """After every replay the copy has the window's rows and checksum, without a reload; at rest unread is right too."""
    assert run(seed, steps, interrupted=False) == (True, True)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 120))
def test_changes_between_pages_end_in_an_equal_copy(seed: int, steps: int) -> None:
    """When rows change while a replay is paged, the copy is equal at the latest after the reload it asks for."""
    assert run(seed, steps, interrupted=True)[1]


def test_the_margin_of_cursors_is_needed() -> None:
    """A cursor at the time of its read loses rows that became visible later: the property can fail."""
    assert not all(run(seed, 120, interrupted=False, margin_us=0)[0] for seed in range(200))


# ---------------------------------------------------------------- numbers


def row(number: int, *, high: bool = False, stamp: int = NOW_US, **cells: int | bool) -> RowState:
    """A plain row."""
    values = {"revision": 1, "mark_stamp": 0, "ack": 0, "read": False, "hidden": False, "expire_us": NOW_US + DAY_US}
    values |= cells
    return RowState(
        make_id(number, high=high),
        int(values["revision"]),
        stamp,
        int(values["mark_stamp"]),
        int(values["ack"]),
        bool(values["read"]),
        bool(values["hidden"]),
        int(values["expire_us"]),
    )


def test_a_count_is_what_the_contract_says() -> None:
    """CRC-32 over the lines in ascending id order, as a signed number."""
    rows = [row(2, revision=3), row(1, read=True, expire_us=NOW_US + 5)]
    text = f"{to_text(make_id(1))} 1 1\n{to_text(make_id(2))} 3 0\n"
    unsigned = zlib.crc32(text.encode())
    counted = replay.count(Window(NOW_US, rows, [row(0, expire_us=NOW_US - 5)]), NOW_US)
    assert counted.checksum % (1 << 32) == unsigned
    assert -(1 << 31) <= counted.checksum < 1 << 31
    assert (counted.unread_count, counted.item_count, counted.end_us) == (1, 2, NOW_US + 5)


def test_an_expiry_after_the_head_unsettles_a_count() -> None:
    """A copy from before the expiry is not current, although no stamp moved since."""
    gone = [row(0, expire_us=NOW_US + 50)]
    counted = replay.count(Window(NOW_US, [], gone), NOW_US + 60)
    assert not replay.is_current(NOW_US + 49, counted)
    assert replay.is_current(NOW_US + 50, counted)


# ---------------------------------------------------------------- cursors and tokens


@pytest.mark.parametrize(
    ("cursor", "reason"),
    [
        (None, "ABSENT"),
        (Position("other", NOW_US - 1), "FOREIGN"),
        (Position("", NOW_US - 1), "FOREIGN"),
        (Position("here", NOW_US + 1), "FUTURE"),
        (Position("here", NOW_US - 90 * DAY_US), "OLD"),
        (Position("here", -5), "OLD"),
        (Position("here", NOW_US - 90 * DAY_US + 1), None),
        (Position("here", NOW_US), None),
    ],
)
def test_only_a_cursor_of_this_store_and_time_is_used(cursor: Position | None, reason: str | None) -> None:
    """Whatever cannot be complete is answered with the whole window."""
    assert replay.reload_reason(cursor, epoch="here", read_us=NOW_US, keep_days=90) == reason


@given(st.booleans(), st.integers(0, 2**62), st.integers(0, 2**62), st.binary(min_size=16, max_size=16))
def test_a_token_comes_back_as_it_went(reload: bool, read_us: int, stamp: int, id_: bytes) -> None:
    """Tokens hold what the next page needs."""
    page = Page(reload, read_us, stamp, id_)
    assert replay.read_token(b"R", replay.write_token(b"R", page)) == page
    assert replay.read_token(b"R", "") is None


@given(st.text(min_size=1))
@example(replay.write_token(b"L", Page(False, 1, 1, bytes(16))))
@example(replay.write_token(b"R", Page(False, 1, 1, bytes(16)))[:-4])
@example(replay.write_token(b"R", Page(False, 1, 1, bytes(16))) * 2)
@example(replay.write_token(b"R", Page(False, -1, 1, bytes(16))))
@example("é")
def test_another_text_is_no_token(text: str) -> None:
    """Guessed, cut and foreign tokens are refused, with the field named."""
    with pytest.raises(InvalidArgument) as caught:
        replay.read_token(b"R", text)
    assert [violation.field for violation in caught.value.violations] == ["page_token"]


def test_page_sizes_have_a_default_and_a_limit() -> None:
    """0 means the default, more than 200 is cut down, negative is refused."""
    assert [replay.page_size_of(asked, 50) for asked in (0, 1, 200, 201)] == [50, 1, 200, 200]
    with pytest.raises(InvalidArgument):
        replay.page_size_of(-1, 50)


# ---------------------------------------------------------------- examples of pages


def test_a_list_is_paged_newest_first() -> None:
    """Pages follow each other without gap or overlap, over both classes."""
    window = Window(NOW_US, [row(number, high=number % 2 == 0, read=number == 3) for number in range(5, 0, -1)], [])
    first, page = replay.list_page(window, page=None, page_size=2, unread_only=True)
    assert page is not None
    second, end = replay.list_page(window, page=page, page_size=2, unread_only=True)
    assert (numbers(list(first)), numbers(list(second)), end) == ([5, 4], [2, 1], None)


def test_a_received_row_is_named_only_when_its_marks_changed() -> None:
    """Content that the client has is not sent again; its new state is."""
    rows = [
        row(4, stamp=NOW_US + 5, revision=2),
        row(3, stamp=NOW_US + 4, mark_stamp=NOW_US + 4, read=True),
        row(2, stamp=NOW_US + 3),
        row(1, stamp=NOW_US),
    ]
    received = {make_id(4): 1, make_id(3): 0, make_id(2): 1}
    answer = replay.plan_replay(
        Window(NOW_US + 5, rows, []),
        cursor_stamp=NOW_US,
        received=received,
        page=None,
        page_size=100,
        window_size=100,
        read_us=NOW_US + 9,
    )
    assert [(numbers([entry.row]), entry.with_body) for entry in answer.entries] == [([3], False), ([4], True)]


def test_a_count_struct_is_compared_by_value() -> None:
    """Two reads of the same window give equal counts, so a remembered one can stand for a fresh one."""
    window = Window(NOW_US, [row(1)], [])
    assert replay.count(window, NOW_US) == replay.count(window, NOW_US)
    assert isinstance(replay.count(window, NOW_US), Count)

"""What every inbox promises; see `svc_delivery.ports.Inbox`."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from svc_delivery.ports import AckLevel, Body, DecisionWrite, Inbox, MarkOutcome, MarkWrite, RowState
from svc_delivery.store import InboxStore
from tests.support.backends import (
    InboxOpener,
    Opener,
    expiring_inbox_backends,
    inbox_backends,
    lasting_inbox_backends,
    swept_inbox_backends,
)
from tests.support.inbox import ALICE, BASE_MS, BOB, DAY_US, NOW_US, make_id, make_key, make_row, numbers
from tests.support.wait import until


@pytest.fixture(params=inbox_backends())
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[InboxStore]:
    """Opens the same store again and again."""
    opened: Opener[InboxStore] = request.param(tmp_path)
    return opened


@pytest.fixture(params=swept_inbox_backends())
async def swept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Inbox]:
    """An empty inbox of each kind that forgets when it is swept."""
    async with request.param(tmp_path)() as store:
        yield store.inbox


@pytest.fixture(params=expiring_inbox_backends())
async def expiring(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Inbox]:
    """An empty inbox of each kind that forgets by itself."""
    async with request.param(tmp_path)() as store:
        yield store.inbox


@pytest.fixture
async def inbox(opener: Opener[InboxStore]) -> AsyncIterator[Inbox]:
    """An empty inbox of each kind."""
    async with opener() as store:
        yield store.inbox


async def shown(inbox: Inbox, recipient_key: str = ALICE, now_us: int = NOW_US) -> list[int]:
    """The numbers in the window, newest first."""
    return numbers(list((await inbox.window(recipient_key, now_us)).rows))


async def state(inbox: Inbox, number: int = 1) -> RowState:
    """The cells of one of Alice's rows."""
    (found,) = await inbox.states([make_key(number)])
    assert found is not None
    return found


async def mark(
    inbox: Inbox,
    *marked: int,
    stamp: int,
    ack: AckLevel = AckLevel.NONE,
    read: bool | None = None,
    hide: bool = False,
    vouched: bool = False,
) -> MarkOutcome:
    """Marks rows of Alice's."""
    ids = [make_id(number) for number in marked]
    (outcome,) = await inbox.mark([MarkWrite(ALICE, ids, ack, read, hide, vouched)], stamp=stamp)
    return outcome


# ---------------------------------------------------------------- rows


async def test_a_row_written_is_shown_with_its_content(inbox: Inbox) -> None:
    """What write stored is in the window at once, and its bytes come back."""
    await inbox.write([make_row(1), make_row(2, recipient_key=BOB)], stamp=NOW_US)
    window = await inbox.window(ALICE, NOW_US)
    assert window.head == NOW_US
    assert window.gone == []
    expire_us = BASE_MS * 1000 + 1000 + 90 * DAY_US
    assert window.rows == [RowState(make_id(1), 1, NOW_US, 0, AckLevel.NONE, False, False, expire_us)]
    assert await inbox.bodies([make_key(1), make_key(2)]) == {make_key(1): Body(1, b"content 1 of 1")}


async def test_an_unknown_recipient_has_an_empty_window(inbox: Inbox) -> None:
    """Nobody has to be made known first."""
    window = await inbox.window(BOB, NOW_US)
    assert (window.head, list(window.rows), list(window.gone)) == (0, [], [])
    assert list(await inbox.heads([BOB])) == [0]


async def test_the_same_id_twice_is_one_row_with_the_later_stamp(inbox: Inbox) -> None:
    """A repeated write is the same row, and replays find it under its fresh stamp."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    await inbox.write([make_row(1), make_row(1)], stamp=NOW_US + 5)
    assert await shown(inbox) == [1]
    assert (await state(inbox)).stamp == NOW_US + 5
    assert list(await inbox.heads([ALICE])) == [NOW_US + 5]


async def test_an_older_stamp_later_moves_nothing_back(inbox: Inbox) -> None:
    """A write that was abandoned and arrives late is shadowed by the later stamp."""
    await inbox.write([make_row(1)], stamp=NOW_US + 5)
    await inbox.write([make_row(1)], stamp=NOW_US)
    assert (await state(inbox)).stamp == NOW_US + 5
    assert list(await inbox.heads([ALICE])) == [NOW_US + 5]


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])))
async def test_the_higher_revision_wins_in_any_order(inbox: Inbox, order: tuple[int, ...]) -> None:
    """Content is replaced by a higher revision only; marks stay."""
    for step, revision in enumerate(order):
        await inbox.write([make_row(1, revision=revision, expire_us=NOW_US + revision)], stamp=NOW_US + step)
        await mark(inbox, 1, stamp=NOW_US + 1, read=True)
    found = await state(inbox)
    assert (found.revision, found.expire_us, found.read) == (3, NOW_US + 3, True)
    assert (await inbox.bodies([make_key(1)]))[make_key(1)] == Body(3, b"content 3 of 1")


async def test_since_a_stamp_every_newer_row_is_found(inbox: Inbox) -> None:
    """Late rows with old ids have new stamps, so a reader that goes by stamp misses none."""
    for step, number in enumerate([5, 9, 2, 7]):
        await inbox.write([make_row(number)], stamp=NOW_US + step)
    newer = [row for row in (await inbox.window(ALICE, NOW_US)).rows if row.stamp > NOW_US + 1]
    assert numbers(newer) == [7, 2]


async def test_an_expired_row_is_gone_and_not_shown(inbox: Inbox) -> None:
    """Expiry takes a row out of the window at its time, and reads say that it is gone."""
    await inbox.write([make_row(1, expire_us=NOW_US + 10), make_row(2)], stamp=NOW_US)
    assert await shown(inbox, now_us=NOW_US + 9) == [2, 1]
    window = await inbox.window(ALICE, NOW_US + 10)
    assert (numbers(list(window.rows)), numbers(list(window.gone))) == ([2], [1])


async def test_a_row_is_shown_for_ninety_days_at_most(inbox: Inbox) -> None:
    """A later expiry does not outlast the inbox."""
    await inbox.write([make_row(1, expire_us=NOW_US + 1000 * DAY_US)], stamp=NOW_US)
    end = (BASE_MS + 1) * 1000 + 90 * DAY_US
    assert await shown(inbox, now_us=end - 1) == [1]
    assert await shown(inbox, now_us=end) == []


async def test_two_writers_at_once_lose_nothing(inbox: Inbox) -> None:
    """Writers of the same inbox, with crossing stamps, all find their rows in it."""
    writes = [inbox.write([make_row(number)], stamp=NOW_US + 100 - number) for number in range(100)]
    marks = [mark(inbox, number, stamp=NOW_US + 200, read=True, vouched=True) for number in range(0, 100, 2)]
    await asyncio.gather(*writes, *marks)
    window = await inbox.window(ALICE, NOW_US)
    assert numbers(list(window.rows)) == list(range(99, -1, -1))
    assert [row.read for row in window.rows] == [number % 2 == 0 for number in range(99, -1, -1)]
    assert window.head == NOW_US + 200


async def test_the_head_is_never_behind_a_row_that_a_read_shows(inbox: Inbox) -> None:
    """While writers are at work, every read's head covers all stamps in it."""
    random.seed(7)
    stamps = random.sample(range(NOW_US, NOW_US + 1000), 120)

    async def look() -> None:
        window = await inbox.window(ALICE, NOW_US)
        assert all(row.stamp <= window.head for row in (*window.rows, *window.gone))

    writes = [inbox.write([make_row(number % 40)], stamp=stamp) for number, stamp in enumerate(stamps)]
    marks = [mark(inbox, number % 40, stamp=stamp + 1, hide=True, vouched=True) for number, stamp in enumerate(stamps)]
    await asyncio.gather(*itertools.chain(*zip(writes, marks, (look() for _ in stamps), strict=True)))
    await look()
    assert list(await inbox.heads([ALICE])) == [max(stamps) + 1]


# ---------------------------------------------------------------- window and trimming


async def test_the_window_is_the_newest_hundred_of_each_class(inbox: Inbox) -> None:
    """Many rows of one class do not push out the other, and the list is in id order over both."""
    rows = [make_row(number, high=number % 50 == 0) for number in range(170)]
    random.Random(3).shuffle(rows)
    await inbox.write(rows, stamp=NOW_US)
    rest = [number for number in range(169, -1, -1) if number % 50][:100]
    assert await shown(inbox) == sorted([0, 50, 100, 150, *rest], reverse=True)


async def test_hidden_rows_leave_their_place_to_older_ones(inbox: Inbox) -> None:
    """The window has a hundred visible rows where there are so many, however many were hidden."""
    await inbox.write([make_row(number) for number in range(190)], stamp=NOW_US)
    await mark(inbox, *range(100, 190), stamp=NOW_US + 1, hide=True)
    window = await inbox.window(ALICE, NOW_US)
    assert numbers(list(window.rows)) == list(range(99, -1, -1))
    assert numbers(list(window.gone)) == list(range(189, 99, -1))


async def test_old_rows_are_trimmed_and_late_ones_stay_away(inbox: Inbox) -> None:
    """Beyond 200 a class is cut, by a read too; a trimmed row that is written again is not shown, ever."""
    for first in range(0, 210, 30):
        await inbox.write([make_row(number) for number in range(first, first + 30)], stamp=NOW_US)
    assert len(await shown(inbox)) == 100
    assert list(await inbox.states([make_key(0)])) == [None]
    await inbox.write([make_row(0), make_row(0, high=True), make_row(300)], stamp=NOW_US + 1)
    assert list(await inbox.states([make_key(0)])) == [None]
    await mark(inbox, *range(110, 210), stamp=NOW_US + 2, hide=True)
    assert 0 not in numbers(
        [row for row in (await inbox.window(ALICE, NOW_US)).rows if not row.notification_id[-1] & 1]
    )
    outcome = await mark(inbox, 0, stamp=NOW_US + 3, read=True, vouched=True)
    assert list(outcome.unknown_ids) == [make_id(0)]
    assert (await inbox.states([make_key(0, high=True)]))[0] is not None


async def test_trimming_removes_no_row_that_a_window_needs(inbox: Inbox) -> None:
    """With many hidden rows in front, the hundred visible ones behind them are kept."""
    await inbox.write([make_row(number) for number in range(120)], stamp=NOW_US)
    for first in range(200, 500, 50):
        hidden = range(first, first + 50)
        await mark(inbox, *hidden, stamp=NOW_US, hide=True, vouched=True)
        await inbox.write([make_row(number) for number in hidden], stamp=NOW_US + 1)
        assert await shown(inbox) == list(range(119, 19, -1))


async def test_writes_trim_without_any_reader(opener: Opener[InboxStore]) -> None:
    """An inbox that nobody reads does not grow for ever."""
    async with opener() as store:
        for number in range(450):
            await store.inbox.write([make_row(number)], stamp=NOW_US + number)
        assert (await store.inbox.states([make_key(0)]))[0] is None
    async with opener() as store:
        await store.inbox.write([make_row(0)], stamp=NOW_US + 1000)
        assert (await store.inbox.states([make_key(0)]))[0] is None


async def test_sweeping_removes_what_is_over_and_nothing_else(swept: Inbox) -> None:
    """Rows have ninety days after their last change, decisions thirty; the budget is kept."""
    inbox = swept
    await inbox.write([make_row(number) for number in range(10)], stamp=NOW_US)
    await inbox.write([make_row(20)], stamp=NOW_US + DAY_US, decisions=[decision(NOW_US + 70 * DAY_US)])
    await mark(inbox, 3, stamp=NOW_US + 5 * DAY_US, read=True)
    assert await inbox.sweep(NOW_US + 90 * DAY_US - 1, 4) == 0
    assert await inbox.sweep(NOW_US + 90 * DAY_US, 4) == 3
    assert await inbox.sweep(NOW_US + 90 * DAY_US, 4) == 4
    assert await inbox.sweep(NOW_US + 90 * DAY_US, 4) == 2
    assert await inbox.sweep(NOW_US + 90 * DAY_US, 4) == 0
    left = await inbox.states([make_key(number) for number in (2, 3, 20)])
    assert [row is not None for row in left] == [False, True, True]
    assert len(await inbox.decisions("acme", make_id(1))) == 1
    assert await inbox.sweep(NOW_US + 101 * DAY_US, 4) == 3
    assert await inbox.decisions("acme", make_id(1)) == []


async def test_what_is_over_goes_by_itself(expiring: Inbox) -> None:
    """A row lives for what is left of its ninety days, marks that wait for it too; its head does not go back."""
    inbox = expiring
    almost = (BASE_MS + 1) * 1000 + 90 * DAY_US - 1_500_000
    await inbox.write([make_row(1), make_row(86_400_000)], stamp=almost)
    await mark(inbox, 2, stamp=almost + 1, read=True, vouched=True)
    assert await shown(inbox, now_us=almost) == [86_400_000, 1]
    assert await inbox.sweep(almost + 2_000_000, 100) == 0
    await until(lambda: has_gone(inbox, 1), 15.0, "the row goes")
    assert await shown(inbox, now_us=almost) == [86_400_000]
    assert await inbox.bodies([make_key(1)]) == {}
    assert list(await inbox.heads([ALICE])) == [almost + 1]
    await inbox.write([make_row(2)], stamp=almost - 60_000_000)
    assert not (await state(inbox, 2)).read


async def has_gone(inbox: Inbox, number: int) -> bool:
    """Whether a row of Alice's is not there."""
    return list(await inbox.states([make_key(number)])) == [None]


# ---------------------------------------------------------------- marks


async def test_an_ack_only_rises_and_is_no_change_to_others(inbox: Inbox) -> None:
    """Ack levels are kept with the row; stamp and head stay, so no device hears of another's ack."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    for ack in (AckLevel.FOREGROUND, AckLevel.RECEIVED):
        assert await mark(inbox, 1, stamp=NOW_US + 9, ack=ack) == MarkOutcome([], [])
    found = await state(inbox)
    assert (found.ack, found.stamp, found.mark_stamp) == (AckLevel.FOREGROUND, NOW_US, 0)
    assert list(await inbox.heads([ALICE])) == [NOW_US]


async def test_a_read_mark_is_a_change(inbox: Inbox) -> None:
    """Read moves row stamp, mark stamp and head, and the outcome tells the row as it is now."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    outcome = await mark(inbox, 1, stamp=NOW_US + 9, ack=AckLevel.SEEN, read=True)
    found = await state(inbox)
    assert outcome.changed == [found]
    assert (found.read, found.ack, found.stamp, found.mark_stamp) == (True, AckLevel.SEEN, NOW_US + 9, NOW_US + 9)
    assert list(await inbox.heads([ALICE])) == [NOW_US + 9]


async def test_a_repeated_mark_changes_nothing(inbox: Inbox) -> None:
    """Repeating is harmless: no change is told twice and no stamp moves."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    for hide in (False, True):
        await mark(inbox, 1, stamp=NOW_US + 1, read=True, hide=hide)
        outcome = await mark(inbox, 1, stamp=NOW_US + 2, read=True, hide=hide)
        assert outcome == MarkOutcome([], [])
    assert (await state(inbox)).stamp == NOW_US + 1
    assert list(await inbox.heads([ALICE])) == [NOW_US + 1]


async def test_a_mark_stored_again_lifts_its_stamps(inbox: Inbox) -> None:
    """After a late answer the same mark gets a fresh stamp, so no cursor has passed it."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    marks = [MarkWrite(ALICE, [make_id(1)], read=True)]
    await inbox.mark(marks, stamp=NOW_US + 1)
    (outcome,) = await inbox.mark(marks, stamp=NOW_US + 9, again=True)
    found = await state(inbox)
    assert list(outcome.changed) == [found]
    assert (found.read, found.stamp, found.mark_stamp) == (True, NOW_US + 9, NOW_US + 9)
    assert list(await inbox.heads([ALICE])) == [NOW_US + 9]


@pytest.mark.parametrize("order", list(itertools.permutations([(1, True), (2, False), (3, True), (4, False)])))
async def test_of_two_marks_the_later_stamp_stays(inbox: Inbox, order: list[tuple[int, bool]]) -> None:
    """Whatever order read and unread arrive in, the one with the latest stamp holds."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    for later, read in order:
        await mark(inbox, 1, stamp=NOW_US + later, read=read)
    assert not (await state(inbox)).read


async def test_a_repeated_value_counts_with_its_later_stamp(inbox: Inbox) -> None:
    """Read, read again, then an unread from between: the second read came later."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    await mark(inbox, 1, stamp=NOW_US + 1, read=True)
    await mark(inbox, 1, stamp=NOW_US + 3, read=True)
    await mark(inbox, 1, stamp=NOW_US + 2, read=False)
    assert (await state(inbox)).read


async def test_marks_of_one_call_apply_in_order(inbox: Inbox) -> None:
    """A read and an unread in one batch have one stamp; the second holds."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    marks = [MarkWrite(ALICE, [make_id(1)], read=read) for read in (True, False)]
    outcomes = await inbox.mark(marks, stamp=NOW_US + 1)
    assert [[row.read for row in outcome.changed] for outcome in outcomes] == [[True], [False]]
    assert not (await state(inbox)).read


async def test_hiding_is_final(inbox: Inbox) -> None:
    """Neither a later unread nor a higher revision brings a hidden row back."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    await mark(inbox, 1, stamp=NOW_US + 1, hide=True)
    await mark(inbox, 1, stamp=NOW_US + 2, read=False)
    await inbox.write([make_row(1, revision=2)], stamp=NOW_US + 3)
    assert await shown(inbox) == []
    assert numbers(list((await inbox.window(ALICE, NOW_US)).gone)) == [1]


@pytest.mark.parametrize("stamp", [NOW_US - 5, NOW_US + 5])
async def test_a_vouched_mark_before_its_row_counts(inbox: Inbox, stamp: int) -> None:
    """The mark waits unseen; when its row comes it is read from the start, under the later of both stamps."""
    outcome = await mark(inbox, 1, stamp=stamp, ack=AckLevel.SEEN, read=True, vouched=True)
    assert (list(outcome.unknown_ids), list(outcome.changed)) == ([make_id(1)], [])
    assert await shown(inbox) == []
    assert list(await inbox.states([make_key(1)])) == [None]
    await inbox.write([make_row(1)], stamp=NOW_US)
    found = await state(inbox)
    assert (found.read, found.ack, found.stamp) == (True, AckLevel.SEEN, max(stamp, NOW_US))
    assert list(await inbox.heads([ALICE])) == [max(stamp, NOW_US)]


async def test_marks_that_wait_are_merged(inbox: Inbox) -> None:
    """Several marks before the row have the effect they would have had after it."""
    await mark(inbox, 1, stamp=NOW_US + 1, ack=AckLevel.RECEIVED, vouched=True)
    await mark(inbox, 1, stamp=NOW_US + 4, read=False, vouched=True)
    outcome = await mark(inbox, 1, stamp=NOW_US + 3, read=True, vouched=True)
    assert list(outcome.unknown_ids) == [make_id(1)]
    await mark(inbox, 1, stamp=NOW_US + 5, ack=AckLevel.FOREGROUND, vouched=True)
    await inbox.write([make_row(1)], stamp=NOW_US)
    found = await state(inbox)
    assert (found.read, found.ack) == (False, AckLevel.FOREGROUND)
    assert list(await inbox.heads([ALICE])) == [(await inbox.window(ALICE, NOW_US)).head]
    assert (await inbox.window(ALICE, NOW_US)).head >= found.stamp


async def test_a_mark_that_nobody_vouches_for_is_dropped(inbox: Inbox) -> None:
    """Guessed ids leave no trace, and the known ones beside them are marked."""
    await inbox.write([make_row(1)], stamp=NOW_US)
    outcome = await mark(inbox, 7, 1, 8, stamp=NOW_US + 1, read=True)
    assert (list(outcome.unknown_ids), numbers(list(outcome.changed))) == ([make_id(7), make_id(8)], [1])
    await inbox.write([make_row(7)], stamp=NOW_US + 2)
    assert not (await state(inbox, 7)).read


async def test_marks_of_another_recipient_do_not_reach_a_row(inbox: Inbox) -> None:
    """The same notification of two recipients has two states."""
    await inbox.write([make_row(1), make_row(1, recipient_key=BOB)], stamp=NOW_US)
    await mark(inbox, 1, stamp=NOW_US + 1, read=True, hide=True)
    assert await shown(inbox, BOB) == [1]
    assert list(await inbox.heads([BOB, ALICE])) == [NOW_US, NOW_US + 1]


# ---------------------------------------------------------------- decisions, durability


def decision(decide_us: int = NOW_US, *recipient_ids: str) -> DecisionWrite:
    """A decision on event 1."""
    return DecisionWrite("acme", make_id(1), 1, recipient_ids or ("carol", "dave"), decide_us)


async def test_a_decision_is_kept_once(inbox: Inbox) -> None:
    """A page repeated after a crash is the same record; another page of the event is another."""
    await inbox.write([], stamp=NOW_US, decisions=[decision(), decision(NOW_US + 5)])
    await inbox.write([], stamp=NOW_US + 1, decisions=[decision(NOW_US + 6), decision(NOW_US + 7, "erin")])
    assert await inbox.decisions("acme", make_id(1)) == [decision(), decision(NOW_US + 7, "erin")]
    assert await inbox.decisions("other", make_id(1)) == []


async def test_the_epoch_belongs_to_the_store(opener: Opener[InboxStore], tmp_path: Path) -> None:
    """A store opened again has its epoch and its rows."""
    async with opener() as store:
        epoch = store.inbox.epoch
        await store.inbox.write([make_row(1)], stamp=NOW_US)
    async with opener() as store:
        assert store.inbox.epoch == epoch != ""
        assert await shown(store.inbox) == [1]


@pytest.mark.parametrize("make", inbox_backends())
async def test_two_stores_have_two_epochs(make: Callable[[Path], InboxOpener], tmp_path: Path) -> None:
    """A cursor of one store is foreign to another."""
    async with make(tmp_path / "first")() as one, make(tmp_path / "second")() as other:
        assert one.inbox.epoch != other.inbox.epoch


@pytest.mark.parametrize("make", lasting_inbox_backends())
async def test_what_was_answered_survives_a_kill(make: Callable[[Path], InboxOpener], tmp_path: Path) -> None:
    """After SIGKILL of the writing process every row and follow-up whose write had returned is there."""
    opener = make(tmp_path)
    root = Path(__file__).parents[2]
    async with opener():
        arguments = ("-m", "tests.support.inbox", opener.url, str(tmp_path))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    for _ in range(40):
        last = int(await process.stdout.readline())
    process.kill()
    rest = (await process.stdout.read()).decode()
    last = max([last, *(int(line) for line in rest.splitlines() if rest.endswith("\n"))])
    await process.wait()
    async with opener() as store:
        found = await store.inbox.states([make_key(number) for number in range(max(0, last - 100), last + 1)])
        assert all(row is not None for row in found)
        due = await store.follow_ups.due(NOW_US, 100_000)
        assert {record.record for record in due} >= {b"follow-up %d" % number for number in range(last + 1)}
        assert len(due) - (last + 1) in (0, 1)

"""Stamps that count: `svc_delivery.writes`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from mesh.clock import ManualClock, Stamper, SteadyClock
from mesh.errors import Unavailable
from svc_delivery.ports import DecisionWrite, FollowUpWrite, Inbox, MarkOutcome, MarkWrite, RowsRefused, RowWrite
from svc_delivery.store import InboxStore, open_store
from svc_delivery.writes import FreshWriter
from tests.support.backends import SqlitePoison
from tests.support.inbox import ALICE, NOW_US, make_id, make_key, make_row

LIMIT = 5.0


class SlowInbox:
    """An inbox whose answers take some time of a manual clock, one number of seconds after the other."""

    def __init__(self, inbox: Inbox, clock: ManualClock, delays: Sequence[float]) -> None:
        self._inbox = inbox
        self._clock = clock
        self._delays = list(delays)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inbox, name)

    async def write(
        self,
        rows: Sequence[RowWrite],
        *,
        stamp: int,
        follow_up: FollowUpWrite | None = None,
        decisions: Sequence[DecisionWrite] = (),
    ) -> None:
        """Writes, then answers late, whatever the answer is."""
        try:
            await self._inbox.write(rows, stamp=stamp, follow_up=follow_up, decisions=decisions)
        finally:
            self._clock.advance(self._delays.pop(0))

    async def mark(self, marks: Sequence[MarkWrite], *, stamp: int, again: bool = False) -> Sequence[MarkOutcome]:
        """Marks, then answers late."""
        outcomes = await self._inbox.mark(marks, stamp=stamp, again=again)
        self._clock.advance(self._delays.pop(0))
        return outcomes


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[InboxStore]:
    """An empty store."""
    opened = open_store("sqlite:///inbox.db", tmp_path)
    await opened.open()
    yield opened
    await opened.close()


class Bench:
    """A writer on a slow store, and how often it was late."""

    def __init__(self, store: InboxStore, *delays: float) -> None:
        self.clock = ManualClock(wall=NOW_US / 1e6)
        self.late = 0
        slow = SlowInbox(store.inbox, self.clock, delays)
        self.writer = FreshWriter(
            inbox=slow,  # type: ignore[arg-type]  # what is not slow is passed on by name
            stamper=Stamper(self.clock),
            limit=LIMIT,
            late=self._count,
        )

    def _count(self) -> None:
        self.late += 1


async def test_an_answer_in_time_counts(store: InboxStore) -> None:
    """The stamp returned is the one that the row has."""
    bench = Bench(store, LIMIT)
    stamp = await bench.writer.write([make_row(1)])
    (found,) = await store.inbox.states([make_key(1)])
    assert found is not None
    assert (found.stamp, bench.late) == (stamp, 0)


async def test_an_answer_after_the_limit_is_written_again(store: InboxStore) -> None:
    """Under a stamp of its own time, with one follow-up and one decision all the same."""
    bench = Bench(store, LIMIT + 0.001, 0.0)
    decision = DecisionWrite("acme", make_id(1), 1, ("bob",), NOW_US)
    stamp = await bench.writer.write([make_row(1)], FollowUpWrite(NOW_US, b"once"), [decision])
    (found,) = await store.inbox.states([make_key(1)])
    assert found is not None
    assert found.stamp == stamp >= NOW_US + round((LIMIT + 0.001) * 1e6)
    assert bench.late == 1
    assert [record.record for record in await store.follow_ups.due(NOW_US, 10)] == [b"once"]
    assert await store.inbox.decisions("acme", make_id(1)) == [decision]


async def test_a_wall_clock_that_jumped_makes_an_answer_late(store: InboxStore) -> None:
    """Whichever clock says that it took longer is believed."""
    bench = Bench(store, 0.0)
    bench.clock.step_wall(LIMIT + 1)
    with pytest.raises(IndexError):  # it asks for a second write, which this bench has not
        await bench.writer.write([make_row(1)])
    assert bench.late == 1


async def test_a_store_that_is_always_late_does_not_answer(store: InboxStore) -> None:
    """The caller hears of it, with a delay, and may repeat: nothing is confirmed."""
    bench = Bench(store, 6.0, 6.0, 6.0)
    with pytest.raises(Unavailable) as caught:
        await bench.writer.write([make_row(1)])
    assert (caught.value.reason, caught.value.retry_delay, bench.late) == ("STORE_UNAVAILABLE", LIMIT, 3)


async def test_refused_rows_are_named_once_the_others_count(store: InboxStore, tmp_path: Path) -> None:
    """A late answer that refuses some is no answer either: the others are written again under a fresh stamp."""
    SqlitePoison(tmp_path / "inbox.db").refuse()
    bench = Bench(store, LIMIT + 1, 0.0)
    poisonous = msgspec.structs.replace(make_row(2), category="poison")
    with pytest.raises(RowsRefused) as caught:
        await bench.writer.write([make_row(1), poisonous], FollowUpWrite(NOW_US, b"not yet"))
    assert (list(caught.value.reasons), bench.late) == ([1], 1)
    assert caught.value.unknown == {1}, "what the late answer left behind"
    (found,) = await store.inbox.states([make_key(1)])
    assert found is not None
    assert found.stamp >= NOW_US + round((LIMIT + 1) * 1e6)
    assert await store.follow_ups.next_due() is None


async def test_a_late_mark_is_stored_again_and_told(store: InboxStore) -> None:
    """Its row gets a fresh stamp although it is read already, and the change is not forgotten."""
    await store.inbox.write([make_row(1)], stamp=NOW_US - 1)
    bench = Bench(store, LIMIT + 1, 0.0)
    (outcome,) = await bench.writer.mark([MarkWrite(ALICE, [make_id(1)], read=True)])
    (found,) = await store.inbox.states([make_key(1)])
    assert found is not None
    assert list(outcome.changed) == [found]
    assert found.stamp >= NOW_US + round((LIMIT + 1) * 1e6)


async def test_marks_of_a_store_that_is_always_late_are_not_confirmed(store: InboxStore) -> None:
    """The gateway keeps them and says them again."""
    bench = Bench(store, 6.0, 6.0, 6.0)
    with pytest.raises(Unavailable):
        await bench.writer.mark([MarkWrite(ALICE, [make_id(1)], read=True, vouched=True)])


@pytest.mark.parametrize("step", [60.0, -60.0])
async def test_nothing_is_written_once_the_clock_was_set(store: InboxStore, step: float) -> None:
    """Neither rows nor marks; when the clock is right again both are."""
    machine = ManualClock(wall=NOW_US / 1e6)
    slow = SlowInbox(store.inbox, ManualClock(), [0.0, 0.0])
    writer = FreshWriter(
        inbox=slow,  # type: ignore[arg-type]  # what is not slow is passed on by name
        stamper=Stamper(SteadyClock(machine)),
        limit=LIMIT,
        late=lambda: None,
    )
    machine.step_wall(step)
    for refused in (writer.write([make_row(1)]), writer.mark([MarkWrite(ALICE, [make_id(1)], read=True)])):
        with pytest.raises(Unavailable) as caught:
            await refused
        assert caught.value.reason == "CLOCK_SET"
    assert await store.inbox.states([make_key(1)]) == [None]
    machine.step_wall(-step)
    await writer.write([make_row(1)])
    (outcome,) = await writer.mark([MarkWrite(ALICE, [make_id(1)], read=True)])
    assert outcome is not None


async def test_a_clock_that_is_set_while_the_store_works_makes_a_write_unknown(store: InboxStore) -> None:
    """How long the answer took cannot be told: it does not count, although the row is there."""
    machine = ManualClock(wall=NOW_US / 1e6)

    class Stepped(ManualClock):
        def advance(self, seconds: float) -> None:
            machine.step_wall(seconds)

    slow = SlowInbox(store.inbox, Stepped(), [60.0])
    writer = FreshWriter(
        inbox=slow,  # type: ignore[arg-type]  # what is not slow is passed on by name
        stamper=Stamper(SteadyClock(machine)),
        limit=LIMIT,
        late=lambda: None,
    )
    with pytest.raises(Unavailable) as caught:
        await writer.write([make_row(1)])
    assert caught.value.reason == "CLOCK_SET"

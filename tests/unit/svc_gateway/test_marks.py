"""Marks on their way to be stored."""

from __future__ import annotations

from heliograph.type.v1.notification_pb2 import Mark, NotificationRef
from svc_gateway.marks import LARGEST_BATCH, MarkLedger
from tests.support.sessions import id_of


def _mark(number: int = 1, refs: int = 1) -> Mark:
    return Mark(device_id=str(number), refs=[NotificationRef(notification_id=id_of(one)) for one in range(refs)])


class _Wakes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def _ledger(limit: int = 1_000) -> MarkLedger[str]:
    return MarkLedger[str](limit=limit, now=0.0)


def _names(batch: tuple[int, object] | None) -> list[str]:
    assert batch is not None
    items = batch[1]
    assert isinstance(items, list)
    return [item.mark.device_id for item in items]


def test_a_mark_goes_over_the_link_its_notification_came_by() -> None:
    """Another link does not take it while that one is open."""
    ledger, first, second = _ledger(), _Wakes(), _Wakes()
    ledger.attach("d-1", first)
    ledger.attach("d-2", second)
    assert ledger.add([_mark()], "session", 2, "d-2")
    assert (first.count, second.count) == (0, 1)
    assert ledger.next_batch("d-1") is None
    assert _names(ledger.next_batch("d-2")) == ["1"]


def test_a_mark_without_its_link_goes_over_any_other() -> None:
    """Waiting marks go with the first link that opens."""
    ledger, wake = _ledger(), _Wakes()
    ledger.add([_mark()], "session", 2, "d-9")
    ledger.attach("d-1", wake)
    assert wake.count == 1
    assert ledger.idle_since is None
    assert _names(ledger.next_batch("d-1")) == ["1"]


def test_batches_are_numbered_and_confirmed_up_to_a_number() -> None:
    """Nothing is counted as stored before."""
    ledger = _ledger()
    ledger.attach("d-1", _Wakes())
    for number in (1, 2, 3):
        ledger.add([_mark(number)], "session", number, "d-1")
        batch = ledger.next_batch("d-1")
        assert batch is not None
        assert batch[0] == number
    assert (ledger.count, ledger.outstanding("d-1")) == (3, 3)
    assert [item.frame_number for item in ledger.stored("d-1", 2)] == [1, 2]
    assert ledger.stored("d-1", 2) == []
    assert (ledger.count, ledger.outstanding("d-1")) == (1, 1)


def test_what_a_broken_link_had_not_confirmed_is_sent_again_first() -> None:
    """In the old order, over another link, whose numbers begin with 1."""
    ledger, wake, other = _ledger(), _Wakes(), _Wakes()
    ledger.attach("d-1", wake)
    for number in (1, 2):
        ledger.add([_mark(number)], "session", number, "d-1")
    ledger.next_batch("d-1")
    ledger.add([_mark(3)], "session", 3, "d-1")
    ledger.attach("d-2", other)
    ledger.detach("d-1", wake, 5.0)
    assert ledger.idle_since is None
    assert other.count == 1
    batch = ledger.next_batch("d-2")
    assert _names(batch) == ["1", "2", "3"]
    assert batch is not None
    assert batch[0] == 1


def test_a_link_that_was_replaced_takes_nothing_away_when_it_ends() -> None:
    """The newer link of the same process keeps its marks."""
    ledger, older, newer = _ledger(), _Wakes(), _Wakes()
    ledger.attach("d-1", older)
    ledger.add([_mark()], "session", 2, "d-1")
    ledger.next_batch("d-1")
    ledger.attach("d-1", newer)
    ledger.detach("d-1", older, 1.0)
    assert _names(ledger.next_batch("d-1")) == ["1"]
    assert ledger.idle_since is None


def test_the_ledger_is_bounded_and_takes_frames_whole() -> None:
    """A frame's marks are taken all or not at all."""
    ledger = _ledger(limit=3)
    assert ledger.add([_mark(1), _mark(2)], "session", 1, "")
    assert not ledger.add([_mark(3), _mark(4)], "session", 2, "")
    assert ledger.count == 2


def test_batches_have_at_most_so_many_marks_and_ids() -> None:
    """The limits of a call hold for a link as well."""
    ledger = _ledger(limit=10_000)
    ledger.attach("d-1", _Wakes())
    for number in range(LARGEST_BATCH + 1):
        ledger.add([_mark(number)], "session", number + 1, "d-1")
    assert len(_names(ledger.next_batch("d-1"))) == LARGEST_BATCH
    assert len(_names(ledger.next_batch("d-1"))) == 1
    for number in range(11):
        ledger.add([_mark(number, refs=500)], "session", number + 1_000, "d-1")
    assert len(_names(ledger.next_batch("d-1"))) == 10
    assert len(_names(ledger.next_batch("d-1"))) == 1


def test_marks_can_be_stored_without_a_link() -> None:
    """What could not be stored keeps its place."""
    ledger, wake = _ledger(), _Wakes()
    ledger.attach("d-1", wake)
    ledger.detach("d-1", wake, 7.0)
    assert ledger.idle_since == 7.0
    ledger.add([_mark(1)], "session", 1, "d-1")
    items = ledger.take()
    ledger.add([_mark(2)], "session", 2, "d-1")
    ledger.give_back(items)
    again = ledger.take()
    assert [item.mark.device_id for item in again] == ["1", "2"]
    ledger.done(again)
    assert ledger.count == 0

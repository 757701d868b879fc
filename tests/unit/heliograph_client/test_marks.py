"""Unconfirmed acks and marks: what waits, flies, is confirmed, and what of it survives a break."""

from __future__ import annotations

import pytest

from heliograph.gateway.v1.client_frames_pb2 import ClientMark
from heliograph.type.v1.notification_pb2 import MarkKind
from heliograph_client.marks import HELLO_REFS, PendingMarks, Said
from mesh.errors import ResourceExhausted

RECEIVED, SEEN = MarkKind.MARK_KIND_RECEIVED, MarkKind.MARK_KIND_SEEN
READ, UNREAD = MarkKind.MARK_KIND_READ, MarkKind.MARK_KIND_UNREAD


def _say(marks: PendingMarks, kind: MarkKind.ValueType, *ids: str, revision: int = 1, hold: bool = False) -> None:
    for id_ in ids:
        marks.say(Said(id_, revision, kind, 10.0), hold=hold)


def _ids(mark: ClientMark) -> list[str]:
    return [ref.notification_id for ref in mark.refs]


def test_what_waits_leaves_by_kind() -> None:
    """One frame for each kind, in the order in which the kinds were first said."""
    marks = PendingMarks()
    _say(marks, RECEIVED, "a")
    _say(marks, READ, "a")
    _say(marks, RECEIVED, "b")
    first, second = marks.take(2), marks.take(3)
    assert (first.kind, _ids(first)) == (RECEIVED, ["a", "b"])
    assert (second.kind, _ids(second)) == (READ, ["a"])
    assert not marks.waiting
    assert len(marks) == 3


def test_a_frame_has_500_ids_at_most() -> None:
    """The rest leaves with the next frame."""
    marks = PendingMarks()
    _say(marks, RECEIVED, *(str(number) for number in range(501)))
    assert [len(marks.take(number).refs) for number in (2, 3)] == [500, 1]


def test_an_ack_that_was_said_is_not_said_again() -> None:
    """A further ack, or one of a later revision, is."""
    marks = PendingMarks()
    _say(marks, SEEN, "a")
    marks.take(2)
    _say(marks, SEEN, "a")
    _say(marks, RECEIVED, "a")
    assert not marks.waiting
    _say(marks, SEEN, "a", revision=2)
    assert marks.take(3).refs[0].revision == 2


def test_a_confirmation_covers_every_frame_up_to_its_number() -> None:
    """Later frames stay unconfirmed."""
    marks = PendingMarks()
    for number, id_ in enumerate("abc", start=2):
        _say(marks, READ, id_)
        marks.take(number)
    assert [said.id for said in marks.confirm(3)] == ["a", "b"]
    assert marks.mark_of("c") == READ
    assert marks.confirm(3) == []


def test_a_break_brings_back_what_was_not_confirmed() -> None:
    """The last word on a notification stands, also when an older one had been sent."""
    marks = PendingMarks()
    _say(marks, READ, "a", "b")
    marks.take(2)
    _say(marks, UNREAD, "a")
    marks.lost()
    assert {_ids(mark)[0]: mark.kind for mark in marks.take_for_hello(1)} == {"a": UNREAD, "b": READ}


def test_a_refused_mark_does_not_undo_a_later_one() -> None:
    """What was said after the refused frame stands."""
    marks = PendingMarks()
    _say(marks, READ, "a", "b")
    marks.take(2)
    _say(marks, UNREAD, "a")
    batch = marks.refuse(2)
    marks.say_again(batch)
    assert marks.mark_of("a") == UNREAD
    assert marks.mark_of("b") == READ
    marks.hold(batch)
    assert marks.mark_of("a") == UNREAD


def test_a_hello_names_marks_before_acks_and_no_more_than_fits() -> None:
    """What does not fit stays and follows in frames."""
    marks = PendingMarks()
    _say(marks, RECEIVED, *(str(number) for number in range(HELLO_REFS)))
    _say(marks, READ, "read")
    named = marks.take_for_hello(1)
    assert sum(len(mark.refs) for mark in named) == HELLO_REFS
    assert (named[0].kind, _ids(named[0])) == (READ, ["read"])
    assert marks.take(2).kind == RECEIVED
    assert len(marks.confirm(1)) == HELLO_REFS
    assert len(marks) == 1


def test_what_a_session_cannot_take_waits_for_the_next_hello() -> None:
    """It is kept, not sent."""
    marks = PendingMarks()
    _say(marks, READ, "old", hold=True)
    _say(marks, READ, "older", "known")
    marks.hold_all_but({"known"})
    assert _ids(marks.take(2)) == ["known"]
    assert not marks.waiting
    assert (marks.mark_of("old"), marks.mark_of("older")) == (READ, READ)
    assert sorted(_ids(marks.take_for_hello(1)[0])) == ["old", "older"]


def test_there_is_a_limit() -> None:
    """What finds no room is refused aloud."""
    marks = PendingMarks(limit=1)
    _say(marks, READ, "a")
    with pytest.raises(ResourceExhausted):
        _say(marks, READ, "b")

"""What single frames of the server's do, where the order of a whole session does not show it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heliograph.gateway.v1.client_frames_pb2 import ConnectResponse
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState
from heliograph_client.inbound import receive
from heliograph_client.marks import FRAMES_IN_FLIGHT
from heliograph_client.resume import Resume
from heliograph_client.session import Action, Leave, Renew, Retry, Session, Show, Stop, Tell
from heliograph_client.values import MarksRefused, StateChanged
from mesh.errors import Failure, InvalidArgument, PermissionDenied, ResourceExhausted
from tests.support.scripted_gateway import (
    confirmed,
    go_away,
    id_of,
    notify,
    refused,
    replayed,
    welcome,
)

WALL = 1_700_000_000.0
NEW, READ = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_READ
HIDDEN = NotificationState.NOTIFICATION_STATE_HIDDEN


class Case:
    """A welcomed session with three notifications."""

    def __init__(self, *, renewable: bool = False) -> None:
        self.session = Session(Resume("laptop"), random=lambda: 0.5, auto_ack=False, renewable=renewable)
        self.now = 0.0
        self.session.hello("token", self.now)
        window = [(id_of(number), 1, False) for number in (1, 2, 3)]
        self.say(welcome(now=WALL))
        for number in (1, 2, 3):
            self.say(notify(number, state=NEW))
        self.say(replayed("c1", window, reload=True))

    def say(self, frame: ConnectResponse) -> Sequence[Action]:
        return receive(self.session, frame, self.now, WALL + self.now)

    def mark(self, number: int, kind: MarkKind.ValueType = MarkKind.MARK_KIND_READ) -> int:
        """Says it and lets it leave; returns the frame's number."""
        self.session.mark(kind, [id_of(number)], WALL)
        (frame,) = self.session.take_frames(self.now)
        return frame.frame_number


def test_an_own_mark_that_was_stored_during_the_read_is_no_difference() -> None:
    """The window was read before the mark and checked after its confirmation: that says nothing about the copy.

    So it is compared once more when that may not be the reason any more, and loaded anew when it differs still.
    """
    case = Case()
    case.say(confirmed(case.mark(1)))
    case.now += 1.0
    old = [(id_of(number), 1, False) for number in (1, 2, 3)]
    assert not any(isinstance(action, Leave) for action in case.say(replayed("c2", old)))
    assert case.session.due() == 16.0
    case.now = 16.0
    assert any(isinstance(action, Leave) for action in case.session.tick(case.now))
    assert case.session.ended(1000, "", case.now) == Retry(0.0, "the copy differs")
    assert case.session.hello("token", case.now).hello.cursor == "c2"
    assert any(isinstance(action, Leave) for action in case.say(replayed("c3", old)))
    assert case.session.resume.cursor == ""


def test_a_copy_is_not_compared_while_marks_go_on() -> None:
    """Whoever reads through a list does not connect again and again; a checkpoint that agrees ends the doubt."""
    case = Case()
    case.say(confirmed(case.mark(1)))
    case.say(replayed("c2", [(id_of(number), 1, False) for number in (1, 2, 3)]))
    case.now = 14.0
    case.say(confirmed(case.mark(2)))
    case.now = 15.0
    assert case.session.tick(case.now) == ()
    assert case.session.due() == 30.0
    case.say(replayed("c3", [(id_of(1), 1, True), (id_of(2), 1, True), (id_of(3), 1, False)]))
    assert case.session.due() > 30.0


def test_marks_without_room_are_sent_again_after_the_delay() -> None:
    """Not before, and under a new number; a confirmation of later frames does not cover them."""
    case = Case()
    number = case.mark(1)
    case.say(refused(number, ResourceExhausted("full", reason="OVERLOADED", retry_delay=2.0)))
    assert case.session.take_frames(case.now) == []
    assert case.session.due() == 2.0
    case.say(confirmed(number + 1))
    case.now = 2.0
    (frame,) = case.session.take_frames(case.now)
    assert (frame.frame_number, frame.mark.refs[0].notification_id) == (number + 1, id_of(1))


def test_behind_many_unconfirmed_frames_the_next_marks_leave_together() -> None:
    """A server keeps a few hundred frames at most: a slow one is not sent a frame for each notification."""
    case = Case()
    kinds = (MarkKind.MARK_KIND_READ, MarkKind.MARK_KIND_UNREAD)
    last = [case.mark(1, kinds[count % 2]) for count in range(FRAMES_IN_FLIGHT)][-1]
    for number in (2, 3):
        case.session.mark(kinds[0], [id_of(number)], WALL)
        assert case.session.take_frames(case.now) == []
    case.say(confirmed(last))
    (frame,) = case.session.take_frames(case.now)
    assert [ref.notification_id for ref in frame.mark.refs] == [id_of(2), id_of(3)]


def test_marks_that_the_session_forgot_go_with_the_next_hello() -> None:
    """They are kept; after a few such refusals a new session is begun, before the server ends this one."""
    case = Case()
    unknown = InvalidArgument("unknown", reason="NOTIFICATION_UNKNOWN")
    actions: list[Action] = []
    for kind in (MarkKind.MARK_KIND_READ, MarkKind.MARK_KIND_UNREAD) * 3:
        case.session.link.allowed.add(id_of(1))
        actions += case.say(refused(case.mark(1, kind), unknown))
    assert any(isinstance(action, Leave) for action in actions)
    case.session.ended(1000, "", case.now)
    hello = case.session.hello("token", case.now).hello
    assert [(mark.kind, mark.refs[0].notification_id) for mark in hello.unconfirmed_marks] == [
        (MarkKind.MARK_KIND_UNREAD, id_of(1))
    ]


def test_a_mark_that_is_refused_for_good_is_told() -> None:
    """Keeping it would only have it refused again."""
    case = Case()
    actions = case.say(refused(case.mark(1), InvalidArgument("no", reason="FIELD_INVALID")))
    (told,) = [action.update for action in actions if isinstance(action, Tell)]
    assert isinstance(told, MarksRefused)
    assert (told.ids, told.failure.reason) == ((id_of(1),), "FIELD_INVALID")
    assert len(case.session.resume.marks) == 0


def test_a_cursor_that_the_server_does_not_take_is_dropped() -> None:
    """The session goes on, and the whole window follows."""
    case = Case()
    case.say(refused(1, InvalidArgument("malformed", reason="CURSOR_INVALID")))
    assert case.session.resume.cursor == ""
    assert case.session.link.welcomed


def test_the_refusal_of_a_hello_says_more_than_the_close_code() -> None:
    """The iteration raises it, with its violations."""
    session = Session(Resume("laptop"), random=lambda: 0.5)
    session.hello("token", 0.0)
    receive(session, refused(1, PermissionDenied("not this tenant", reason="CALLER_NOT_ALLOWED")), 0.0, WALL)
    follows = session.ended(4503, "CALLER_NOT_ALLOWED", 0.0)
    assert isinstance(follows, Stop)
    assert follows.failure.reason == "CALLER_NOT_ALLOWED"


def test_a_refused_token_is_followed_by_another() -> None:
    """There is time left: the source is asked again."""
    case = Case(renewable=True)
    case.session.renewed("second", case.now, WALL)
    (frame,) = case.session.take_frames(case.now)
    case.say(refused(frame.frame_number, PermissionDenied("no", reason="CALLER_NOT_ALLOWED")))
    case.now = 1.0
    assert case.session.tick(case.now) == (Renew(),)
    assert case.session.tick(case.now) == ()


def test_a_server_that_wants_no_new_connection_is_obeyed() -> None:
    """Whatever the close code says afterwards."""
    case = Case()
    case.say(go_away("DRAINING", delay=0, reconnect=False))
    follows = case.session.ended(1001, "", case.now)
    assert isinstance(follows, Stop)
    assert isinstance(follows.failure, Failure)
    assert follows.failure.reason == "DRAINING"


@pytest.mark.parametrize(
    ("frame", "shown"),
    [
        (notify(4), True),
        (notify(4, state=READ), True),
        (notify(4, state=HIDDEN), False),
        (notify(4, expires=WALL - 1), False),
        (notify(4, expires=WALL + 60), True),
        (notify(1), False),
        (notify(1, revision=2), True),
    ],
)
def test_what_is_shown(frame: ConnectResponse, shown: bool) -> None:
    """New revisions are, live or replayed; what was shown, hidden or is over is not."""
    case = Case()
    assert any(isinstance(action, Show) for action in case.say(frame)) is shown


def test_a_replay_tells_the_state_of_what_is_known() -> None:
    """Content that came before with another state is a change, not a notification."""
    case = Case()
    assert case.say(notify(1, state=READ)) == (Tell(StateChanged((id_of(1),), "read")),)
    assert case.session.stats.duplicates_on_wire == 1


def test_an_unknown_frame_is_counted_and_left_alone() -> None:
    """A newer server may say more than this version knows."""
    case = Case()
    assert case.say(ConnectResponse()) == ()
    assert case.session.stats.frames_unknown == 1


def test_a_mark_that_no_hello_named_waits_for_the_next() -> None:
    """Sent in this session it could only be refused."""
    resume = Resume("laptop")
    for number in range(701):
        resume.remember(id_of(number), 1, float(number))
    session = Session(resume, random=lambda: 0.5)
    session.mark(MarkKind.MARK_KIND_READ, [id_of(number) for number in range(500, 700)], WALL)
    session.mark(MarkKind.MARK_KIND_READ, [id_of(0), id_of(700)], WALL)
    session.hello("token", 701.0)
    receive(session, welcome(now=WALL), 701.0, WALL)
    (frame,) = session.take_frames(701.0)
    assert [ref.notification_id for ref in frame.mark.refs] == [id_of(700)]
    session.ended(1006, "", 702.0)
    named = session.hello("token", 703.0).hello.unconfirmed_marks
    assert sum(len(mark.refs) for mark in named) == 200
    assert len(resume.marks) == 202

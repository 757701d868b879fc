"""What a client's frame does to its session: hello, marks, topics, a fresh token, pings. Pure: time is an argument.

A frame that breaks a rule is refused and the session goes on; before hello it ends the session. Must not write or store
anything: it answers with decisions. Steps 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.gateway.v1.client_frames_pb2 import ClientMark, ConnectRequest, Hello
from mesh.errors import Failure, InvalidArgument, ResourceExhausted
from svc_gateway import answers, shared
from svc_gateway.decisions import (
    Admission,
    ChangeTopics,
    CloseCode,
    Decision,
    Decisions,
    Desk,
    Identity,
    Register,
    Send,
    State,
    Store,
)
from svc_gateway.given import GivenIds
from svc_gateway.hello import check_hello, check_mark, check_topics, read_cursor
from svc_gateway.session import Session

_NOTHING: Decisions = ()
# Hello is the first frame, and frames are numbered from 1.
_HELLO_NUMBER = 1


def receive(session: Session, frame: ConnectRequest, now: float, desk: Desk) -> Decisions:
    """Takes a client's frame."""
    session.heard = shared.second(now)
    if session.state is State.CLOSING:
        return _NOTHING
    kind = frame.WhichOneof("frame")
    if session.state is State.OPENING:
        if kind != "hello" or frame.frame_number != _HELLO_NUMBER:
            return refuse(session, frame.frame_number, answers.hello_first())
        return _take_hello(session, frame.hello, now, desk)
    if frame.frame_number <= session.frame_number:
        return refuse(session, frame.frame_number, answers.number_not_rising(session.frame_number))
    session.frame_number = frame.frame_number
    try:
        if kind == "mark":
            return (_take_mark(session, frame.mark, frame.frame_number),)
        if kind == "subscribe":
            return (_take_topics(session, frame.subscribe.topic_ids, frame.frame_number, begin=True),)
        if kind == "unsubscribe":
            return (_take_topics(session, frame.unsubscribe.topic_ids, frame.frame_number, begin=False),)
        if kind == "ping":
            return (Send(answers.pong()),)
        if kind == "reauthenticate":
            _extend(session, frame.reauthenticate.token, now, desk)
        elif kind == "hello":
            raise answers.hello_first()
    except Failure as failure:
        return refuse(session, frame.frame_number, failure)
    return _NOTHING


def refuse(session: Session, frame_number: int, failure: Failure) -> Decisions:
    """Refuses a client's frame; who sends too many such frames is closed, and who has not said hello, at once."""
    if session.state is State.CLOSING:
        return _NOTHING
    session.frame_number = max(session.frame_number, frame_number)
    refused = Send(answers.refused(frame_number, failure))
    if isinstance(failure, ResourceExhausted):
        # The store is slow; the client, which may have said more before it can know, is not to blame.
        return (refused,)
    session.refused_count += 1
    if session.state is State.OPENING or session.refused_count > session.limits.refused_count:
        return (refused, *session.close(CloseCode.PROTOCOL, failure.reason))
    return (refused,)


def _take_hello(session: Session, hello: Hello, now: float, desk: Desk) -> Decisions:
    try:
        check_hello(hello)
        identity = desk.verify(hello.token)
        if session.recipient_key not in ("", identity.recipient_key):
            raise answers.other_recipient()
        admission = desk.admit()
    except Failure as failure:
        farewell = answers.turned_away(failure) or answers.refused(_HELLO_NUMBER, failure)
        return (
            Send(farewell),
            *session.close(answers.close_code(failure), failure.reason, failure.retry_delay or 0.0),
        )
    _begin(session, identity, admission, now)
    session.device_id = hello.device_id
    decisions: list[Decision] = [
        Send(answers.welcome(admission, identity, session.limits.heartbeat_interval, hello.features)),
        Register(),
    ]
    if hello.cursor:
        try:
            session.cursor_epoch, session.cursor_stamp = read_cursor(hello.cursor)
        except InvalidArgument as failure:
            decisions.append(Send(answers.refused(_HELLO_NUMBER, failure)))
    if hello.received_refs or hello.unconfirmed_marks:
        session.given = _named_in(hello, now, resumes=bool(session.cursor_epoch))
    # A hello without marks has nothing to confirm.
    session.confirmed = 0 if hello.unconfirmed_marks else _HELLO_NUMBER
    if hello.unconfirmed_marks:
        decisions.append(_store(session, hello.unconfirmed_marks, _HELLO_NUMBER, ""))
    return decisions


def _begin(session: Session, identity: Identity, admission: Admission, now: float) -> None:
    """Presence is told, and then the inbox is read."""
    limits = session.limits
    session.frame_number = _HELLO_NUMBER
    session.recipient_key, session.connect_number = identity.recipient_key, admission.connect_number
    session.token_due, session.age_due = now + identity.seconds_left, now + admission.age
    session.ping_due = shared.second(now + limits.heartbeat_interval)
    session.round_due = shared.second(now + limits.round_interval * (0.5 + admission.random))
    session.checkpoint_at = limits.checkpoint_frames
    session.state, session.step_due = State.JOINING, now + limits.join_timeout


def _named_in(hello: Hello, now: float, *, resumes: bool) -> GivenIds:
    """Returns the ids that a hello names: the client may mark them, and has those it received if it resumes."""
    given = GivenIds()
    for mark in hello.unconfirmed_marks:
        for ref in mark.refs:
            given.allow(ref.notification_id, now)
    for ref in hello.received_refs:
        if resumes:
            given.add(ref.notification_id, ref.revision, "", now, acked=True)
        else:
            # Without a cursor the client drops what it had: it needs everything.
            given.allow(ref.notification_id, now)
    return given


def _take_mark(session: Session, mark: ClientMark, frame_number: int) -> Store:
    check_mark(mark)
    given, source = session.given, ""
    for ref in mark.refs:
        if given is None or not given.allows(ref.notification_id):
            raise answers.unknown_notification(ref.notification_id)
    if session.pending is not None and len(session.pending) >= session.limits.pending_count:
        raise answers.too_many_marks()
    if given is not None:
        for ref in mark.refs:
            source = given.ack(ref.notification_id) or source
    return _store(session, (mark,), frame_number, source)


def _store(session: Session, marks: Sequence[ClientMark], frame_number: int, source: str) -> Store:
    _expect(session, frame_number, len(marks))
    return Store([answers.mark(session.recipient_key, session.device_id, mark) for mark in marks], frame_number, source)


def _expect(session: Session, frame_number: int, count: int) -> None:
    """Notes that a frame is confirmed once so much of it is durable."""
    if session.pending is None:
        session.pending = {}
    session.pending[frame_number] = count
    session.last_kept = frame_number


def _take_topics(session: Session, topic_ids: Sequence[str], frame_number: int, *, begin: bool) -> ChangeTopics:
    check_topics(topic_ids, "subscribe" if begin else "unsubscribe")
    if session.topics_pending >= session.limits.topics_count:
        raise answers.too_many_topics()
    session.topics_pending += 1
    _expect(session, frame_number, 1)
    return ChangeTopics(list(topic_ids), begin, frame_number)


def _extend(session: Session, token: str, now: float, desk: Desk) -> None:
    identity = desk.verify(token)
    if identity.recipient_key != session.recipient_key:
        raise answers.other_recipient()
    session.token_due = now + identity.seconds_left


# ---------------------------------------------------------------- frames become durable


def stored(session: Session, frame_number: int) -> None:
    """Notes that one mark, or the topics, of a frame are durable; `confirmation` tells the client."""
    pending = session.pending
    if pending is None or frame_number not in pending:
        return
    pending[frame_number] -= 1
    if pending[frame_number] == 0:
        del pending[frame_number]
        session.pending = pending or None


def unstored(session: Session, frame_number: int) -> Decisions:
    """Takes back a frame whose marks could not be kept: the client sends them again in another one."""
    _drop(session, frame_number)
    if session.state is State.CLOSING:
        return _NOTHING
    return (Send(answers.refused(frame_number, answers.too_many_marks())),)


def topics_changed(session: Session, frame_number: int, failure: Failure | None) -> Decisions:
    """Takes what became of a change of topics; `confirmation` tells the client of those that are durable.

    Args:
        session: whose.
        frame_number: the client's frame.
        failure: why it is not durable; None: it is.
    """
    session.topics_pending -= 1
    if failure is None:
        stored(session, frame_number)
        return _NOTHING
    _drop(session, frame_number)
    if isinstance(failure, InvalidArgument):
        return refuse(session, frame_number, failure)
    # The client is not to blame: however often this happens, it is not closed for it.
    return () if session.state is State.CLOSING else (Send(answers.refused(frame_number, failure)),)


def _drop(session: Session, frame_number: int) -> None:
    if session.pending is not None:
        session.pending.pop(frame_number, None)
        session.pending = session.pending or None


def confirmation(session: Session) -> Decisions:
    """Returns what is to be confirmed: one number for all frames up to it."""
    number = min(session.pending) - 1 if session.pending else session.last_kept
    # While the socket is full nothing is written; the number is sent when it drains.
    if number <= session.confirmed or session.full or session.state is State.CLOSING:
        return _NOTHING
    session.confirmed = number
    return (Send(answers.confirmed(number)),)

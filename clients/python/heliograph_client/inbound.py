"""What the server's frames do to a subscriber's session: frames in, actions out.

Pure: time is an argument. Must not write or wait: it answers with actions, and leaves what is to be sent with the
session. Step 7 of one notification (`architecture.md` §3), seen from the other end.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.gateway.v1.client_frames_pb2 import (
    Changed,
    Confirmed,
    ConnectRequest,
    ConnectResponse,
    GoAway,
    Notify,
    Pong,
    Refused,
    Replayed,
    Welcome,
)
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState, Priority, Unread
from heliograph_client.marks import Said
from heliograph_client.session import Action, Actions, Leave, Session, Show, Tell
from heliograph_client.topics import TopicChange
from heliograph_client.values import (
    CaughtUp,
    Connected,
    MarksConfirmed,
    MarksRefused,
    Notification,
    StateChanged,
    TopicsChanged,
    UnreadChanged,
    state_text,
)
from mesh.errors import Failure, ResourceExhausted, from_description

_NANOS = 1_000_000_000
_NEW, _HIDDEN = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_HIDDEN
_RECEIVED = MarkKind.MARK_KIND_RECEIVED
# Servers end a session after twenty refused frames; what a session forgot can be marked again after a new hello.
_UNKNOWN_FRAMES = 5
# When the server has no room and names no delay.
_MARKS_DELAY_S = 1.0
_HELLO_NUMBER = 1


def receive(session: Session, frame: ConnectResponse, now: float, wall: float) -> Actions:
    """Takes a frame of the server's.

    Args:
        session: whose connection it came by.
        frame: what came.
        now: monotonic seconds.
        wall: Unix seconds.
    """
    link = session.link
    link.heard, link.pinged = now, False
    match frame.WhichOneof("frame"):
        case "notify":
            return _notify(session, frame.notify, now, wall)
        case "changed":
            return _changed(session, frame.changed)
        case "unread":
            return _count(session, frame.unread)
        case "replayed":
            return _replayed(session, frame.replayed, now, wall)
        case "confirmed":
            return _confirmed(session, frame.confirmed, now)
        case "refused":
            return _refused(session, frame.refused, now)
        case "welcome":
            return _welcome(session, frame.welcome, now, wall)
        case "go_away":
            return _go_away(session, frame.go_away, now)
        case "ping":
            link.answers.append(ConnectRequest(pong=Pong(), frame_number=session.next_number()))
        case "pong":
            pass
        case None:
            session.stats.frames_unknown += 1
    return ()


def _welcome(session: Session, welcome: Welcome, now: float, wall: float) -> Actions:
    link = session.link
    link.welcomed, link.welcome_due = True, float("inf")
    link.heartbeat = _seconds_of(welcome.heartbeat_interval) or float("inf")
    if welcome.HasField("server_time"):
        server = _time_of(welcome.server_time)
        session.clock_offset = server - wall
        if welcome.HasField("token_expire_time"):
            session.plan_renewal(_time_of(welcome.token_expire_time) - server, now)
    session.stats.connections += 1
    return (Tell(Connected(welcome.session_id, session.stats.connections)),)


def _notify(session: Session, notify: Notify, now: float, wall: float) -> Actions:
    message, stats, resume = notify.notification, session.stats, session.resume
    id_, revision = message.notification_id, message.revision
    stats.notifications_on_wire += 1
    session.link.allowed.add(id_)
    before = resume.copy.rows.get(id_)
    state_before = None if before is None else before.state
    fresh = resume.remember(id_, revision, now)
    resume.copy.put(
        id_,
        revision,
        high=message.priority == Priority.PRIORITY_HIGH,
        state=notify.state,
        expire_time=_time_of(message.expire_time) if message.HasField("expire_time") else 0.0,
    )
    # One that came before is acked again: it would not come if the first ack had been stored.
    if session.auto_ack and notify.state in (0, _NEW):
        _ack(session, Said(id_, revision, _RECEIVED, wall))
    if not fresh:
        stats.duplicates_on_wire += 1
        if notify.state and state_before not in (None, notify.state):
            return (Tell(StateChanged((id_,), state_text(notify.state))),)
        return ()
    if notify.state == _HIDDEN:
        stats.hidden_on_wire += 1
        return ()
    if message.HasField("expire_time") and _time_of(message.expire_time) <= wall + session.clock_offset:
        stats.expired_on_wire += 1
        return ()
    stats.shown += 1
    replayed = notify.state != 0
    stats.replayed += replayed
    return (Show(Notification(message, state_text(notify.state), replayed, wall)),)


def _ack(session: Session, said: Said) -> None:
    try:
        session.resume.marks.say(said)
    except ResourceExhausted:
        session.stats.acks_dropped += 1


def _changed(session: Session, changed: Changed) -> Actions:
    copy = session.resume.copy
    ids = tuple(ref.notification_id for ref in changed.refs if copy.set_state(ref.notification_id, changed.state))
    session.link.allowed.update(ref.notification_id for ref in changed.refs)
    if not ids:
        return ()
    return (Tell(StateChanged(ids, state_text(changed.state))),)


def _count(session: Session, unread: Unread) -> Actions:
    """The number with the newer head wins; one with the same head was counted again."""
    before = session.unread
    if before is not None and _nanos_of(unread.head_time) < _nanos_of(before.head_time):
        return ()
    session.unread = unread
    if before is not None and before.unread_count == unread.unread_count:
        return ()
    return (Tell(UnreadChanged(unread.unread_count)),)


def _replayed(session: Session, replayed: Replayed, now: float, wall: float) -> Actions:
    resume, stats = session.resume, session.stats
    session.attempt = 0
    stats.checkpoints += 1
    if replayed.reload:
        stats.reloads += 1
        resume.copy.reload()
    resume.checkpoint(replayed.cursor, now)
    actions: list[Action] = []
    if replayed.HasField("unread"):
        actions += _count(session, replayed.unread)
    server_now = wall + session.clock_offset
    window = resume.copy.window(server_now)
    equal = (len(window), resume.copy.checksum(server_now)) == (replayed.item_count, replayed.checksum)
    actions.append(Tell(CaughtUp(replayed.reload, tuple(window) if replayed.reload else ())))
    session.link.compare_due = float("inf")
    if equal:
        session.reload_tried = False
    elif session.is_changed_lately(now) or resume.copy.doubtful(server_now):
        session.compare_later(now)
    else:
        stats.mismatches += 1
        if not session.reload_tried:
            session.reload_tried = session.link.differs = True
            resume.cursor = ""
            actions.append(Leave("the copy differs from the inbox"))
    return actions


def _confirmed(session: Session, confirmed: Confirmed, now: float) -> Actions:
    change = session.topics.confirm(confirmed.frame_number)
    actions: list[Action] = [] if change is None else [Tell(TopicsChanged(change, None))]
    batch = session.resume.marks.confirm(confirmed.frame_number)
    if not batch:
        return actions
    session.stats.acks_confirmed += len(batch)
    for said in batch:
        session.resume.copy.confirm(said.id, said.kind)
        if not said.is_ack:
            session.last_change = now
    return [*actions, Tell(MarksConfirmed(_ids(batch)))]


def _refused(session: Session, refused: Refused, now: float) -> Actions:
    link, number = session.link, refused.frame_number
    failure = from_description(refused.refusal)
    session.stats.frames_refused += 1
    if number == _HELLO_NUMBER:
        link.refused = failure
        if failure.reason == "CURSOR_INVALID":
            session.resume.cursor = ""
        # Without room for its marks the session goes on; they are sent again.
        return _return_marks(session, number, failure, now) if link.welcomed and failure.retry_delay else ()
    if number == link.renew_number:
        # There is some time left: another one may do.
        link.token_due = now + _MARKS_DELAY_S
        return ()
    change = session.topics.refuse(number)
    if change is not None:
        return _return_topics(session, change, failure, now)
    return _return_marks(session, number, failure, now)


def _return_topics(session: Session, change: TopicChange, failure: Failure, now: float) -> Actions:
    if not _later(failure):
        return (Tell(TopicsChanged(change, failure)),)
    session.topics.say_again(change)
    session.link.topics_due = now + (_MARKS_DELAY_S if failure.retry_delay is None else failure.retry_delay)
    return ()


def _later(failure: Failure) -> bool:
    return failure.retriable or failure.retry_delay is not None or isinstance(failure, ResourceExhausted)


def _return_marks(session: Session, number: int, failure: Failure, now: float) -> Actions:
    marks, link = session.resume.marks, session.link
    batch = marks.refuse(number)
    if _later(failure):
        marks.say_again(batch)
        link.marks_due = now + (_MARKS_DELAY_S if failure.retry_delay is None else failure.retry_delay)
        return ()
    if failure.reason == "NOTIFICATION_UNKNOWN":
        # They came to this device, and the session has forgotten them: a hello may name them.
        link.allowed.difference_update(_ids(batch))
        marks.hold(batch)
        link.unknown_count += 1
        return (Leave("marks need a new hello"),) if link.unknown_count >= _UNKNOWN_FRAMES else ()
    return (Tell(MarksRefused(_ids(batch), failure)),) if batch else ()


def _go_away(session: Session, go_away: GoAway, now: float) -> Actions:
    link = session.link
    link.away, link.away_reason = go_away.reconnect, go_away.reason
    if go_away.reconnect:
        link.leave_due = now + _seconds_of(go_away.reconnect_delay) * session.random()
    return ()


def _ids(batch: Sequence[Said]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(said.id for said in batch))


def _seconds_of(duration: Duration) -> float:
    return duration.seconds + duration.nanos / _NANOS


def _time_of(timestamp: Timestamp) -> float:
    return timestamp.seconds + timestamp.nanos / _NANOS


def _nanos_of(timestamp: Timestamp) -> int:
    return timestamp.seconds * _NANOS + timestamp.nanos

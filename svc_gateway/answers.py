"""What a session says to its client, as messages, and its failures. Pure.

Must not know states: when something is said is decided in `session.py` and `inbound.py`. Steps 7 and 10 of one
notification (`architecture.md` §3).
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration

from heliograph.delivery.v1.inbox_service_pb2 import ReplayInboxResponse
from heliograph.gateway.v1.client_frames_pb2 import (
    Changed,
    ClientMark,
    Confirmed,
    ConnectResponse,
    GoAway,
    Ping,
    Pong,
    Refused,
    Replayed,
    Welcome,
)
from heliograph.type.v1.notification_pb2 import Mark, NotificationRef, NotificationState, Unread
from heliograph.type.v1.refusal_pb2 import Refusal
from mesh.errors import (
    DeadlineExceeded,
    Failure,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    describe,
)
from svc_gateway.decisions import Admission, CloseCode, Identity

FEATURES: frozenset[str] = frozenset()
_NANOS = 1_000_000_000
# When a client may try again what found no room.
_RETRY_DELAY = 1.0

# ---------------------------------------------------------------- failures


def unknown_notification(id_: str) -> InvalidArgument:
    """The id was not given to this session."""
    return InvalidArgument(
        f"notification {id_} was not given to this session",
        reason="NOTIFICATION_UNKNOWN",
        metadata={"notification_id": id_},
    )


def number_not_rising(last: int) -> InvalidArgument:
    """The frame's number is not above that of the last one."""
    return InvalidArgument(
        f"frame numbers rise; the last one was {last}", reason="FRAME_INVALID", metadata={"frame_number": str(last)}
    )


def hello_first() -> InvalidArgument:
    """A session begins with hello, once, numbered 1."""
    return InvalidArgument("hello is the first frame, once, with number 1", reason="FRAME_INVALID")


def other_recipient() -> PermissionDenied:
    """The fresh token is another recipient's."""
    return PermissionDenied("the token is not of this session's recipient", reason="CALLER_NOT_ALLOWED")


def no_recipient() -> Unauthenticated:
    """The token has another role."""
    return Unauthenticated("the token is not a recipient's", reason="TOKEN_INVALID")


def too_many_marks() -> ResourceExhausted:
    """There is no room for marks that wait to be stored."""
    return ResourceExhausted(
        "too many marks are not stored yet; send them again", reason="OVERLOADED", retry_delay=_RETRY_DELAY
    )


def too_many_topics() -> ResourceExhausted:
    """There is no room for changes of topics that wait to be stored."""
    return ResourceExhausted(
        "too many changes of topics are not stored yet; send this one again",
        reason="OVERLOADED",
        retry_delay=_RETRY_DELAY,
    )


def topics_unchanged(failure: Failure) -> Failure:
    """Returns what a client is told of a change of topics that failed: where repeating helps, after a delay."""
    if not failure.retriable and not isinstance(failure, DeadlineExceeded):
        return failure
    return Unavailable(
        "topics cannot be changed now; send the frame again",
        reason=failure.reason or "PEER_UNAVAILABLE",
        metadata=failure.metadata,
        retry_delay=failure.retry_delay or _RETRY_DELAY,
    )


def too_many_sessions(count: int, delay: float) -> ResourceExhausted:
    """The node is full."""
    return ResourceExhausted(
        f"the node holds {count} sessions",
        reason="OVERLOADED",
        metadata={"session_count": str(count)},
        retry_delay=delay,
    )


def node_draining(delay: float) -> Unavailable:
    """The node takes no more sessions."""
    return Unavailable("the node leaves service; connect again", reason="DRAINING", retry_delay=delay)


_CLOSE_CODES = {
    "TOKEN_EXPIRED": CloseCode.TOKEN_EXPIRED,
    "TOKEN_INVALID": CloseCode.TOKEN_INVALID,
    "OVERLOADED": CloseCode.OVERLOADED,
    "DRAINING": CloseCode.DRAINING,
    # Another node has another clock.
    "CLOCK_SET": CloseCode.DRAINING,
    "CALLER_NOT_ALLOWED": CloseCode.TOKEN_INVALID,
}


def close_code(failure: Failure) -> CloseCode:
    """Returns the code that ends a session whose hello failed so."""
    return _CLOSE_CODES.get(failure.reason, CloseCode.PROTOCOL)


# ---------------------------------------------------------------- frames


def _duration(seconds: float) -> Duration:
    nanos = round(seconds * _NANOS)
    return Duration(seconds=nanos // _NANOS, nanos=nanos % _NANOS)


def welcome(
    admission: Admission, identity: Identity, heartbeat_interval: float, features: Iterable[str]
) -> ConnectResponse:
    """Answers hello."""
    message = Welcome(
        session_id=admission.session_id,
        heartbeat_interval=_duration(heartbeat_interval),
        features=sorted(FEATURES.intersection(features)),
    )
    message.token_expire_time.seconds = int(identity.expire_time)
    message.server_time.FromNanoseconds(int(admission.wall * 1_000_000) * 1_000)
    return ConnectResponse(welcome=message)


def refused(frame_number: int, failure: Failure) -> ConnectResponse:
    """Says that a frame was refused, and why."""
    return ConnectResponse(refused=Refused(frame_number=frame_number, refusal=describe(failure, Refusal())))


def turned_away(failure: Failure) -> ConnectResponse | None:
    """Says when to come back to a client that finds no room; None for another failure."""
    return None if failure.retry_delay is None else go_away(failure.reason, failure.retry_delay)


def go_away(reason: str, delay: float) -> ConnectResponse:
    """Announces an end after which the client connects again."""
    return ConnectResponse(go_away=GoAway(reason=reason, reconnect=True, reconnect_delay=_duration(delay)))


def confirmed(frame_number: int) -> ConnectResponse:
    """Confirms frames."""
    return ConnectResponse(confirmed=Confirmed(frame_number=frame_number))


def changed(refs: Iterable[NotificationRef], state: NotificationState.ValueType) -> ConnectResponse:
    """Tells the state of notifications."""
    return ConnectResponse(changed=Changed(refs=refs, state=state))


def unread(number: Unread) -> ConnectResponse:
    """Tells the unread number."""
    return ConnectResponse(unread=number)


def replayed(page: ReplayInboxResponse, cursor: str, reload: bool) -> ConnectResponse:
    """Ends a replay."""
    message = Replayed(cursor=cursor, reload=reload, item_count=page.item_count, checksum=page.checksum)
    if page.HasField("unread"):
        message.unread.CopyFrom(page.unread)
    return ConnectResponse(replayed=message)


def ping() -> ConnectResponse:
    """Asks for a pong."""
    return ConnectResponse(ping=Ping())


def pong() -> ConnectResponse:
    """Answers a ping."""
    return ConnectResponse(pong=Pong())


# ---------------------------------------------------------------- marks


def mark(recipient_key: str, device_id: str, said: ClientMark) -> Mark:
    """Returns what a client said with its name on it."""
    message = Mark(recipient_key=recipient_key, device_id=device_id, kind=said.kind, refs=said.refs)
    if said.HasField("mark_time"):
        message.mark_time.CopyFrom(said.mark_time)
    return message

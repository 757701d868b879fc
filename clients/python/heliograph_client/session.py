"""The rules of a subscriber: what is said to the server, when to leave a connection, and what follows.

One `Session` for the life of a subscriber: `Resume` survives connections, `Link` begins anew with each hello. What the
server's frames do to it is in `inbound.py`. It never shows a revision twice, never loses an unconfirmed mark, and takes
cursors from checkpoints only. Pure: time is an argument, randomness is injected. Must not touch sockets, encode frames
or wait: `subscriber.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from heliograph.gateway.v1.client_frames_pb2 import (
    ConnectRequest,
    Hello,
    Ping,
    Reauthenticate,
    Subscribe,
    Unsubscribe,
)
from heliograph.type.v1.notification_pb2 import MarkKind, Unread
from heliograph_client import closing
from heliograph_client.marks import Said
from heliograph_client.resume import Resume
from heliograph_client.tokens import claims_of
from heliograph_client.topics import PendingTopics
from heliograph_client.values import Notification, SubscriberStats, Update
from mesh.backoff import full_jitter
from mesh.errors import FailedPrecondition, Failure, NotFound, Unauthenticated

_NEVER = float("inf")
_HELLO_NUMBER = 1


class Show(msgspec.Struct, frozen=True):
    """Hand this to the application."""

    notification: Notification


class Tell(msgspec.Struct, frozen=True):
    """Tell the application."""

    update: Update


class Leave(msgspec.Struct, frozen=True):
    """Close the connection, or cut it when the peer is silent, then call `ended`."""

    reason: str
    cut: bool = False


class Renew(msgspec.Struct, frozen=True):
    """Fetch a token, then call `renewed`."""


Action: TypeAlias = Show | Tell | Leave | Renew
Actions: TypeAlias = Sequence[Action]


class Retry(msgspec.Struct, frozen=True):
    """Connect again after so many seconds."""

    delay: float
    reason: str


class Stop(msgspec.Struct, frozen=True):
    """Do not connect again."""

    failure: Failure


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers a subscriber lives by, in seconds.

    Attributes:
        welcome_timeout: from hello to welcome.
        retry_base: bound of the first wait before connecting again; it doubles each time.
        retry_cap: largest bound.
        renew_early: a fresh token is sent so long before the old one ends, or when a fifth of its time is left.
        doubt: the window of a checkpoint was read a moment ago: an own mark that became durable since is not in it. So
            long a difference may have such a reason; then, up to twice as late, the copy is compared once more.
    """

    welcome_timeout: float = 10.0
    retry_base: float = 0.5
    retry_cap: float = 15.0
    renew_early: float = 60.0
    doubt: float = 10.0


class Link(msgspec.Struct):
    """What belongs to one connection.

    Attributes:
        heard: when the last frame came.
        connected: hello was said and the connection has not ended.
        welcomed: it was answered.
        frame_number: of the last frame that was numbered.
        answers: frames to be written before any mark.
        allowed: ids that may be marked in this session.
        heartbeat: seconds between the server's pings.
        pinged: this side asked for a sign of life.
        welcome_due: until when a welcome must come.
        leave_due: when it is left, after a "go away".
        token_due: when a fresh token is needed.
        renew_number: the frame of the last fresh token.
        marks_due: marks wait until then, after the server had no room.
        topics_due: changes of topics wait until then, after they could not be stored.
        compare_due: when the copy is compared once more, after a difference that may have passed by itself.
        unknown_count: frames refused for an id that the session does not know any more.
        refused: the last refusal of a hello.
        away: after a "go away": whether to connect again.
        away_reason: and why it is to go.
        differs: it is left because the copy differs, or may.
    """

    heard: float = 0.0
    connected: bool = False
    welcomed: bool = False
    frame_number: int = 0
    answers: list[ConnectRequest] = msgspec.field(default_factory=list)
    allowed: set[str] = msgspec.field(default_factory=set)
    heartbeat: float = _NEVER
    pinged: bool = False
    welcome_due: float = _NEVER
    leave_due: float = _NEVER
    token_due: float = _NEVER
    renew_number: int = 0
    marks_due: float = -_NEVER
    topics_due: float = -_NEVER
    compare_due: float = _NEVER
    unknown_count: int = 0
    refused: Failure | None = None
    away: bool | None = None
    away_reason: str = ""
    differs: bool = False


class Session:
    """One device's subscription.

    Attributes:
        resume: what the device knows.
        topics: changes of topics that are not confirmed; they live as long as this process.
        stats: what was counted.
        link: what belongs to the present connection.
        unread: the server's newest number.
        attempt: connections that ended without a checkpoint, in a row.
        reload_tried: the copy differed, and a reload did not help yet.
        last_change: when an own mark that changes what is shown became durable.
        clock_offset: seconds that the server's clock is ahead.
    """

    def __init__(
        self,
        resume: Resume,
        *,
        random: Callable[[], float],
        client_name: str = "",
        auto_ack: bool = True,
        renewable: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """Makes a subscription that is not connected.

        Args:
            resume: what the device knows.
            random: numbers in [0, 1).
            client_name: for the server's logs.
            auto_ack: what arrives is acked as received.
            renewable: a fresh token can be had.
            limits: its numbers.
        """
        self.resume = resume
        self.topics = PendingTopics()
        self.stats = SubscriberStats()
        self.link = Link()
        self.unread: Unread | None = None
        self.attempt = 0
        self.reload_tried = False
        self.last_change = -_NEVER
        self.clock_offset = 0.0
        self.auto_ack = auto_ack
        self.random = random
        self._client_name = client_name
        self._renewable = renewable
        self._limits = limits or Limits()

    # ------------------------------------------------------------ what is said

    def hello(self, token: str, now: float) -> ConnectRequest:
        """Begins a session; returns its first frame."""
        resume, owner = self.resume, claims_of(token).owner
        if owner != resume.owner:
            # Another recipient's ids and marks are none of this one's business.
            if resume.owner:
                resume.forget(owner)
            resume.owner = owner
        resume.copy.welcome()
        link = self.link = Link(heard=now, connected=True, frame_number=_HELLO_NUMBER)
        link.welcome_due = now + self._limits.welcome_timeout
        hello = Hello(
            token=token,
            device_id=resume.device_id,
            cursor=resume.cursor,
            received_refs=resume.received_refs(),
            unconfirmed_marks=resume.marks.take_for_hello(_HELLO_NUMBER),
            client_name=self._client_name,
        )
        link.allowed.update(ref.notification_id for ref in hello.received_refs)
        link.allowed.update(ref.notification_id for mark in hello.unconfirmed_marks for ref in mark.refs)
        resume.marks.hold_all_but(link.allowed)
        self.stats.acks_sent += sum(len(mark.refs) for mark in hello.unconfirmed_marks)
        return ConnectRequest(hello=hello, frame_number=_HELLO_NUMBER)

    def mark(self, kind: MarkKind.ValueType, ids: Iterable[str], wall: float) -> None:
        """Says something about notifications; it is sent, and kept until it is confirmed.

        Raises:
            NotFound: an id never came to this device; nothing is said then.
            ResourceExhausted: too much is unconfirmed.
        """
        batch = list(ids)
        for id_ in batch:
            if not self.resume.knows(id_):
                text = f"notification {id_} did not come to this device"
                raise NotFound(text, reason="NOTIFICATION_UNKNOWN", metadata={"notification_id": id_})
        for id_ in batch:
            hold = self.link.connected and id_ not in self.link.allowed
            self.resume.marks.say(Said(id_, 0, kind, wall), hold=hold)

    def renewed(self, token: str, now: float, wall: float) -> None:
        """A fresh token is to be sent."""
        expire_time = claims_of(token).expire_time
        self.plan_renewal(_NEVER if expire_time is None else expire_time - wall - self.clock_offset, now)
        number = self.link.renew_number = self.next_number()
        self.link.answers.append(ConnectRequest(reauthenticate=Reauthenticate(token=token), frame_number=number))

    def plan_renewal(self, left: float, now: float) -> None:
        """Decides when a fresh token is needed, with so many seconds left of the present one."""
        early = min(self._limits.renew_early, left / 5)
        self.link.token_due = now + max(left - early, 1.0) if self._renewable else _NEVER

    def take_frames(self, now: float) -> list[ConnectRequest]:
        """Returns what is to be written now, in this order."""
        link, marks = self.link, self.resume.marks
        frames, link.answers = link.answers, []
        while link.welcomed and marks.may_leave and now >= link.marks_due:
            number = self.next_number()
            mark = marks.take(number)
            self.stats.acks_sent += len(mark.refs)
            frames.append(ConnectRequest(mark=mark, frame_number=number))
        if link.welcomed and self.topics.waiting and now >= link.topics_due:
            frames.append(self._topics_frame(self.next_number()))
        return frames

    def _topics_frame(self, number: int) -> ConnectRequest:
        change = self.topics.take(number)
        if change.begin:
            return ConnectRequest(subscribe=Subscribe(topic_ids=change.topic_ids), frame_number=number)
        return ConnectRequest(unsubscribe=Unsubscribe(topic_ids=change.topic_ids), frame_number=number)

    def next_number(self) -> int:
        """Returns the number of one more frame."""
        self.link.frame_number += 1
        return self.link.frame_number

    # ------------------------------------------------------------ time

    def is_changed_lately(self, now: float) -> bool:
        """Tells whether a checkpoint may lack an own mark."""
        return now - self.last_change < self._limits.doubt

    def compare_later(self, now: float) -> None:
        """Plans a checkpoint for when what made the copy differ may have passed."""
        self.link.compare_due = now + self._limits.doubt * (1.0 + self.random())

    def due(self) -> float:
        """Returns when `tick` has something to do; it may be sooner than needed, never later."""
        link = self.link
        silence = link.heartbeat * (2.0 if link.pinged else 1.5)
        marks_due = link.marks_due if link.welcomed and self.resume.marks.waiting else _NEVER
        if marks_due == -_NEVER:
            marks_due = _NEVER
        topics_due = link.topics_due if link.welcomed and self.topics.waiting else _NEVER
        if topics_due == -_NEVER:
            topics_due = _NEVER
        dues = (link.welcome_due, link.leave_due, link.token_due, link.compare_due, marks_due, topics_due)
        return min(link.heard + silence, *dues)

    def tick(self, now: float) -> Actions:
        """Does what is due."""
        link = self.link
        if now >= link.welcome_due:
            return (Leave("no welcome came", cut=True),)
        if now >= link.heard + 2.0 * link.heartbeat:
            return (Leave("nothing was heard for two heartbeats", cut=True),)
        if now >= link.leave_due:
            return (Leave(f"go away: {link.away_reason}"),)
        if now >= link.compare_due:
            if not self.is_changed_lately(now):
                link.compare_due, link.differs = _NEVER, True
                return (Leave("the copy may differ from the inbox"),)
            self.compare_later(now)
        if now >= link.marks_due:
            link.marks_due = -_NEVER
        if now >= link.topics_due:
            link.topics_due = -_NEVER
        if not link.pinged and now >= link.heard + 1.5 * link.heartbeat:
            link.pinged = True
            link.answers.append(ConnectRequest(ping=Ping(), frame_number=self.next_number()))
        if now >= link.token_due:
            # Set anew by `renewed`; until then it is being fetched.
            link.token_due = _NEVER
            return (Renew(),)
        return ()

    # ------------------------------------------------------------ the end of a connection

    def ended(self, code: int, text: str, now: float) -> Retry | Stop:
        """The connection is gone; says what follows.

        Args:
            code: the close code; 1006 for a connection that broke.
            text: the closing frame's own words.
            now: monotonic seconds.
        """
        link = self._lose()
        if closing.is_final(code):
            return Stop(closing.final_failure(code, text, link.refused))
        if link.away is False:
            reason = link.away_reason
            return Stop(FailedPrecondition(f"the server wants no new connection: {reason}", reason=reason))
        if code == closing.TOKEN_EXPIRED and not self._renewable:
            words = "the token expired, and only a fixed one was given: give a function that returns the current one"
            return Stop(Unauthenticated(words, reason="TOKEN_EXPIRED"))
        reason = f"closed with {code} {text}".rstrip()
        if link.differs:
            return Retry(0.0, "the copy differs")
        attempt, self.attempt = self.attempt, self.attempt + 1
        named = max(0.0, link.leave_due - now) if link.away else 0.0
        # Told to go away from a session that was complete, it comes back when it was told; else it backs off.
        wait = 0.0 if link.away and attempt == 0 else self._jitter(attempt)
        return Retry(named + wait, reason)

    def failed(self, failure: Failure, *, final: bool) -> Retry | Stop:
        """No connection came about; says what follows.

        Args:
            failure: why.
            final: trying again is forbidden.
        """
        self._lose()
        if final or (failure.reason == "TOKEN_EXPIRED" and not self._renewable):
            return Stop(failure)
        attempt, self.attempt = self.attempt, self.attempt + 1
        named = (failure.retry_delay or 0.0) * self.random()
        return Retry(named + self._jitter(attempt), failure.message)

    def _lose(self) -> Link:
        link, self.link = self.link, Link()
        self.resume.marks.lost()
        self.topics.lost()
        return link

    def _jitter(self, attempt: int) -> float:
        limits = self._limits
        return full_jitter(attempt, base=limits.retry_base, cap=limits.retry_cap, random=self.random())

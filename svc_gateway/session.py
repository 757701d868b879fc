"""One session's rules: opening, live, replay, behind, time, the end. Pure: time and randomness are arguments.

What the client's frames do to it is in `inbound.py`. A session has no queue: what is offered is written, or comes with
a replay, or is refused and comes with a replay later; nothing is written after the close. Offers arrive only after
their row is durable: whatever is offered before a replay begins to read is in what it reads, and only what comes during
the reading has to be held back.

Must not touch sockets, encode frames or call peers: the shell in `service.py` carries out what is decided here.
Steps 6, 7, 10 and 11 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import msgspec

from heliograph.delivery.v1.inbox_service_pb2 import ReplayInboxRequest, ReplayInboxResponse
from heliograph.type.v1.notification_pb2 import NotificationState
from mesh.backoff import dither, full_jitter
from mesh.errors import Failure, InvalidArgument
from svc_gateway import answers, shared
from svc_gateway.decisions import (
    Close,
    CloseCode,
    Decision,
    Decisions,
    Limits,
    Offer,
    Replay,
    Round,
    Send,
    SendEntry,
    SendHeld,
    SendPing,
    State,
)
from svc_gateway.given import GivenIds
from svc_gateway.hello import cursor_of, cursor_text, micros_of

_NEVER = float("inf")
_NOTHING: Decisions = ()
# One round in so many reads the window whatever the head says.
_FULL_ROUND_ONE_IN = 20.0

_OPENING, _JOINING, _QUEUED, _READING = State.OPENING, State.JOINING, State.QUEUED, State.READING
_LIVE, _BEHIND, _CLOSING = State.LIVE, State.BEHIND, State.CLOSING

# id, revision, delivery process, frame, end of its time; a frame that is no notification has no id.
_Held = tuple[str, int, str, object, float]


class Session(msgspec.Struct, gc=False, eq=False):
    """The state of one session. Made when the connection is open; every method may be called at any time."""

    limits: Limits
    # End of the present step of opening: hello, then presence.
    step_due: float
    state: State = _OPENING
    recipient_key: str = ""
    device_id: str = ""
    connect_number: int = 0
    frame_number: int = 0
    refused_count: int = 0

    heard: float = 0.0
    token_due: float = _NEVER
    age_due: float = _NEVER
    ping_due: float = _NEVER
    round_due: float = _NEVER
    full_due: float = _NEVER
    retry_due: float = _NEVER
    leave_due: float = _NEVER
    leave_code: CloseCode = CloseCode.GO_AWAY
    leave_reason: str = ""
    leave_delay: float = 0.0
    joined: bool = False
    # The socket takes no more.
    full: bool = False

    given: GivenIds | None = None
    last_kept: int = 0
    confirmed: int = 0
    # Frames that are not durable yet: number → marks, or the one change of topics, outstanding.
    pending: dict[int, int] | None = None
    topics_pending: int = 0

    cursor_epoch: str = ""
    cursor_stamp: int = 0
    page_token: str = ""
    reload: bool = False
    held: list[_Held] | None = None
    # A replay waits for its turn.
    wanted: bool = False
    # Something was not kept while a replay was on its way: it is followed by another.
    again: bool = False
    read_start: float = 0.0
    failures: int = 0
    since_checkpoint: int = 0
    checkpoint_at: int = 0

    # Where the timer wheel has it; the wheel's own.
    wheel_slot: int = 0

    @property
    def alive(self) -> bool:
        """Said hello and was not closed."""
        return self.state is not _OPENING and self.state is not _CLOSING

    # ------------------------------------------------------------ opening

    def registered(self) -> Decisions:
        """Presence knows the session. A replay that was read before is read again: rows in between were not offered."""
        late = not self.joined and self.state is not _JOINING
        self.joined, self.step_due = True, _NEVER
        if self.state is _JOINING:
            return self._queue()
        return self.restored() if late else _NOTHING

    def restored(self) -> Decisions:
        """Presence had lost the session, or learnt of it late: what came meanwhile was not offered here."""
        if self.state is _READING or self.page_token:
            self.again = True
            return _NOTHING
        return self._want()

    def head(self, stamp: int) -> Decisions:
        """Compares the inbox's newest change with the cursor, in a round."""
        return self._want() if stamp > self.cursor_stamp else _NOTHING

    # ------------------------------------------------------------ what delivery offers

    def offer(self, id_: str, revision: int, source: str, frame: object, now: float, end: float) -> Offer:
        """Tells what becomes of a live notification; the shell writes it on SEND.

        Args:
            id_: the notification.
            revision: of its content.
            source: the delivery process it came from; acks go back there.
            frame: what `SendHeld` gives back when it is held.
            now: monotonic seconds.
            end: when its time is over; what is held until then is not written.
        """
        given = self.given
        if self.state is not _LIVE:
            return self._keep_back((id_, revision, source, frame, end))
        if given is None:
            self.given = given = GivenIds()
        elif given.has(id_, revision):
            return Offer.SKIP
        given.add(id_, revision, source, now, acked=False)
        self.since_checkpoint += 1
        return Offer.SEND

    def notice(self, frame: object) -> Offer:
        """Tells what becomes of a frame about changes: as an offer, but neither counted nor acked."""
        return Offer.SEND if self.state is _LIVE else self._keep_back(("", 0, "", frame, _NEVER))

    def _keep_back(self, held: _Held) -> Offer:
        state = self.state
        if state is _READING:
            if self.held is None or len(self.held) >= self.limits.held_count:
                # No list any more: the replay is followed by another.
                self.held = None
            else:
                self.held.append(held)
            return Offer.HELD
        if state is _BEHIND:
            # A replay that was interrupted goes on behind its first read, and may not contain this.
            self.again = self.again or bool(self.page_token)
            return Offer.BEHIND
        return Offer.HELD if state is _JOINING or state is _QUEUED else Offer.ABSENT

    def frames_passed(self, now: float) -> Decisions:
        """Asks for a checkpoint when many frames have passed since the last; the shell calls it at `checkpoint_at`."""
        limits = self.limits
        self.checkpoint_at = self.since_checkpoint + limits.checkpoint_frames
        if self.given is not None:
            self.given.trim(limits.given_count, limits.allowed_count)
        if self.since_checkpoint >= limits.checkpoint_frames_at_most:
            return self._want()
        return (Replay(for_cursor=True),) if now - self.read_start >= limits.checkpoint_pause else _NOTHING

    def seek_checkpoint(self) -> None:
        """Wants its inbox read, unless that has happened meanwhile; call `begin_replay` afterwards."""
        if self.state is _LIVE and self.since_checkpoint >= self.limits.checkpoint_frames:
            self.wanted = True

    # ------------------------------------------------------------ replay

    def _queue(self) -> Decisions:
        if self.full:
            self.state = _BEHIND
            return _NOTHING
        self.state = _QUEUED
        return self._want()

    def _want(self) -> Decisions:
        if self.wanted or self.state not in (_LIVE, _QUEUED):
            return _NOTHING
        self.wanted, self.retry_due = True, _NEVER
        return (Replay(),)

    def begin_replay(self, now: float) -> ReplayInboxRequest | None:
        """Returns what to read now, or None when there is nothing to read any more."""
        wanted, self.wanted = self.wanted, False
        if not wanted or self.state not in (_LIVE, _QUEUED):
            return None
        self.state, self.held = _READING, []
        if not self.page_token:
            self.read_start, self.again = now, False
            self.reload = not self.cursor_epoch
        return self.next_page()

    def next_page(self) -> ReplayInboxRequest | None:
        """Returns the request for the page that follows; None when the session left its replay."""
        if self.state is not _READING:
            return None
        request = ReplayInboxRequest(
            recipient_key=self.recipient_key, page_size=self.limits.replay_page, page_token=self.page_token
        )
        if self.cursor_epoch:
            request.cursor.CopyFrom(cursor_of(self.cursor_epoch, self.cursor_stamp))
        if self.given is not None:
            request.received_refs.extend(self.given.newest(self.limits.given_count))
        return request

    def replayed(self, page: ReplayInboxResponse, now: float) -> Decisions:
        """Takes a page. Call `next_page` afterwards: it says whether and how to go on."""
        if self.state is not _READING:
            return _NOTHING
        self.failures = 0
        self.reload = self.reload or page.reload
        decisions: list[Decision] = []
        for entry in page.entries:
            ref = entry.ref
            if entry.notification:
                decisions.append(SendEntry(entry.notification, entry.state))
            else:
                decisions.append(Send(answers.changed([ref], entry.state)))
            self.given = self.given or GivenIds()
            acked = entry.state != NotificationState.NOTIFICATION_STATE_NEW
            self.given.add(ref.notification_id, ref.revision, "", self.read_start, acked=acked)
        if page.next_page_token:
            self.page_token = page.next_page_token
            return decisions
        return self._checkpoint(page, decisions, now)

    def page_written(self) -> None:
        """The page was handed to the socket: when that is full now, the replay pauses at its page."""
        if self.state is _READING and self.full:
            # What was held may be newer than the pages that follow.
            self.again = self.again or self.held is None or bool(self.held)
            self.held, self.state = None, _BEHIND

    def _checkpoint(self, page: ReplayInboxResponse, decisions: list[Decision], now: float) -> Decisions:
        self.page_token = ""
        self.cursor_epoch, self.cursor_stamp = shared.text(page.cursor.epoch), micros_of(page.cursor.stamp_time)
        decisions.append(Send(answers.replayed(page, cursor_text(self.cursor_epoch, self.cursor_stamp), self.reload)))
        self.since_checkpoint, self.checkpoint_at = 0, self.limits.checkpoint_frames
        again, self.again = self.again or self.held is None, False
        if self.given is not None:
            # Nothing is as new as the cursor: then it covers everything; else all but what is close to the read.
            quiet = page.HasField("unread") and micros_of(page.unread.head_time) <= self.cursor_stamp
            self.given.cover(self.read_start - (0.0 if quiet else self.limits.overlap))
            self.given.trim(self.limits.given_count, self.limits.allowed_count)
        decisions.extend(self._go_live(now))
        if again:
            decisions.extend(self._queue())
        return decisions

    def _go_live(self, now: float) -> Decisions:
        """Leaves the reading; writes what was held back, unless it is over, the client has it or the socket is full."""
        held, self.held = self.held, None
        if self.full:
            self.state = _BEHIND
            return _NOTHING
        self.state = _LIVE
        frames = [
            frame
            for id_, revision, source, frame, end in held or ()
            if now <= end and (not id_ or self.offer(id_, revision, source, frame, now, end) is Offer.SEND)
        ]
        return (SendHeld(frames),) if frames else _NOTHING

    def failed(self, failure: Failure, now: float, random: float) -> Decisions:
        """The inbox did not answer: live frames go on, and the replay is tried again later."""
        if self.state is not _READING:
            return _NOTHING
        decisions: list[Decision] = []
        lost = self.held is None
        if isinstance(failure, InvalidArgument):
            # The page or the cursor cannot be used: begin anew, without the cursor if it is to blame.
            self.page_token = ""
            if failure.reason == "CURSOR_INVALID" and self.cursor_epoch:
                self.cursor_epoch, self.cursor_stamp = "", 0
                if self.given is not None:
                    self.given.forget_revisions()
                decisions.append(Send(answers.refused(1, failure)))
                decisions.extend(self._queue())
                return decisions
        self.again = self.again or lost
        decisions.extend(self._go_live(now))
        wait = full_jitter(self.failures, base=self.limits.retry_base, cap=self.limits.retry_cap, random=random)
        self.failures += 1
        self.retry_due = now + max(wait, failure.retry_delay or 0.0)
        return decisions

    # ------------------------------------------------------------ the socket

    def behind(self, now: float) -> None:
        """The socket is full: nothing is kept until it drains."""
        if self.full or self.state is _CLOSING:
            return
        self.full, self.full_due = True, now + self.limits.behind_timeout
        if self.state is _LIVE or self.state is _QUEUED:
            self.state = _BEHIND

    def writable(self) -> Decisions:
        """The socket has drained: what was not kept comes with a replay."""
        self.full, self.full_due = False, _NEVER
        return self._queue() if self.state is _BEHIND else _NOTHING

    # ------------------------------------------------------------ time

    def due(self) -> float:
        """Returns when `tick` has something to do next; it may be sooner than needed, never later."""
        if self.state is _OPENING:
            return self.step_due
        return min(
            self.step_due if self.state is _JOINING else _NEVER,
            self.token_due,
            self.age_due,
            self.leave_due,
            self.ping_due,
            self.round_due,
            self.full_due,
            self.retry_due,
            self.heard + 2.0 * self.limits.heartbeat_interval,
        )

    def tick(self, now: float, random: float) -> Decisions:
        """Does what is due.

        Args:
            now: monotonic seconds.
            random: in [0, 1), spreads the rounds.
        """
        if self.state is _CLOSING:
            return _NOTHING
        ending = self._ending(now)
        if ending:
            return ending
        decisions: list[Decision] = []
        if self.state is _JOINING and now >= self.step_due:
            decisions.extend(self._queue())
        if now >= self.retry_due:
            self.retry_due = _NEVER
            decisions.extend(self._want())
        if now >= self.age_due:
            self.age_due = _NEVER
            leave_due = now + self.limits.go_away_grace
            decisions.extend(self.go_away(CloseCode.GO_AWAY, "SESSION_TOO_OLD", 0.0, leave_due))
        if now >= self.round_due:
            self.round_due = shared.second(now + dither(self.limits.round_interval, spread=0.2, random=random))
            decisions.append(Round())
            if random * _FULL_ROUND_ONE_IN % 1.0 < 1.0 / _FULL_ROUND_ONE_IN:
                decisions.extend(self._want())
        if now >= self.ping_due:
            self.ping_due = shared.second(now + self.limits.heartbeat_interval)
            if not self.full:
                decisions.append(SendPing())
        return decisions

    def look_by(self, due: float) -> None:
        """The next round comes by then, in monotonic seconds."""
        self.round_due = min(self.round_due, shared.second(due))

    def _ending(self, now: float) -> Decisions:
        if self.state is _OPENING:
            # Silence breaks no rule: the hello of a client may wait unread where this node has too much to do.
            return self.close(CloseCode.TOO_SLOW, "SLOW_CONSUMER") if now >= self.step_due else _NOTHING
        if now >= self.token_due:
            return self.close(CloseCode.TOKEN_EXPIRED, "TOKEN_EXPIRED")
        if now >= self.full_due or now >= self.heard + 2.0 * self.limits.heartbeat_interval:
            return self.close(CloseCode.TOO_SLOW, "SLOW_CONSUMER")
        if now >= self.leave_due:
            return self.close(self.leave_code, self.leave_reason, self.leave_delay)
        return _NOTHING

    # ------------------------------------------------------------ the end

    def go_away(self, code: CloseCode, reason: str, delay: float, leave_due: float) -> Decisions:
        """Announces the end; the session goes on until then.

        Args:
            code: what it will be closed with.
            reason: name of an ErrorReason.
            delay: the client waits up to so many seconds before it connects again.
            leave_due: when it is closed.
        """
        if self.state is _CLOSING or self.leave_due < leave_due:
            return _NOTHING
        self.leave_due, self.leave_code, self.leave_reason, self.leave_delay = leave_due, code, reason, delay
        return _NOTHING if self.state is _OPENING else (Send(answers.go_away(reason, delay)),)

    def close(self, code: CloseCode, reason: str, delay: float = 0.0) -> Decisions:
        """Ends the session; see `Close`."""
        if self.state is _CLOSING:
            return _NOTHING
        self.state, self.held, self.wanted = _CLOSING, None, False
        return (Close(code, reason, delay),)

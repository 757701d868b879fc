"""The shell around the sessions: takes what connections and links bring, asks the core, carries out what it decides.

No task, timer or queue belongs to a session: everything here runs inside the event that causes it. Must not decide
anything about a session, and must not wait. Steps 6, 7, 10 and 11 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from heliograph.gateway.v1.gateway_service_pb2 import Change
from heliograph.presence.v1.presence_service_pb2 import SessionEntry
from mesh.clock import Clock
from mesh.errors import DataLoss, Failure, InvalidArgument
from mesh.telemetry import logger
from svc_gateway import answers, frames, inbound
from svc_gateway.auth import FrontDesk
from svc_gateway.decisions import (
    ChangeTopics,
    Close,
    CloseCode,
    Decisions,
    Limits,
    Offer,
    Register,
    Replay,
    Round,
    Send,
    SendEntry,
    SendHeld,
    SendPing,
    State,
    Store,
)
from svc_gateway.host import ClientConnection
from svc_gateway.marks import MarkLedger, Waiting
from svc_gateway.metrics import Metrics
from svc_gateway.queues import PresenceQueue, SessionQueue
from svc_gateway.session import Session
from svc_gateway.sessions import Backlog, Sessions, Wheel, session_of

_Trace = Callable[..., None]

# S: two nodes' clocks differ by no more, in seconds.
_CLOCKS_DIFFER = 1.0


class TopicChanges(Protocol):
    """What has subscriptions begun and ended.

    Attributes:
        count: changes that wait or are being made.
    """

    count: int

    def add(self, connection: ClientConnection, change: ChangeTopics) -> bool:
        """Takes a change; `Gateway.topics_changed` follows. False when there is no room on this node."""
        ...


class Gateway:
    """Everything that happens to the sessions of this node; implements `host.Host`."""

    def __init__(
        self,
        *,
        desk: FrontDesk,
        limits: Limits,
        sessions: Sessions,
        marks: MarkLedger[ClientConnection],
        presence: PresenceQueue,
        replays: SessionQueue,
        checkpoints: SessionQueue,
        rounds: SessionQueue,
        topics: TopicChanges,
        clock: Clock,
        random: Callable[[], float],
        metrics: Metrics,
        backlog_bytes: int,
        trace: _Trace | None,
    ) -> None:
        """Connects the shell with its parts.

        Args:
            desk: lets sessions in.
            limits: the numbers each session lives by.
            sessions: those that said hello.
            marks: what is to be stored.
            presence: what presence is to be told.
            replays: sessions that wait for a replay.
            checkpoints: sessions whose cursor is to be moved on when there is room.
            rounds: sessions whose head is to be compared.
            topics: changes of topics.
            clock: tells the time.
            random: numbers in [0, 1).
            metrics: counts.
            backlog_bytes: so much may wait in all transports together.
            trace: logs steps of single notifications, if wanted.
        """
        self.desk = desk
        self.sessions = sessions
        self.marks = marks
        self.presence = presence
        self.replays = replays
        self.checkpoints = checkpoints
        self.rounds = rounds
        self.topics = topics
        self.metrics = metrics
        self._limits = limits
        self._clock = clock
        self._random = random
        self._trace = trace
        self._log = logger()
        self._wheel = Wheel(clock.monotonic())
        self._backlog = Backlog(limit=backlog_bytes, behind=self.behind, writable=self.writable)
        self._ping = frames.encode(answers.ping())

    # ------------------------------------------------------------ what connections bring

    def opened(self, connection: ClientConnection) -> None:
        """See `host.Host`."""
        step_due = self._clock.monotonic() + self._limits.hello_timeout
        known = connection.recipient_key
        connection.session = Session(limits=self._limits, step_due=step_due, recipient_key=known)
        self._wheel.schedule(connection)

    def received(self, connection: ClientConnection, payload: bytes | bytearray, text: bool) -> None:
        """See `host.Host`."""
        session = session_of(connection)
        try:
            frame = frames.decode(payload, text)
        except InvalidArgument as failure:
            self.metrics.frames_refused.inc()
            number = int(failure.metadata.get("frame_number", "0"))
            self.run(connection, session, inbound.refuse(session, number, failure))
            return
        opening = session.state is State.OPENING
        self.run(connection, session, inbound.receive(session, frame, self._clock.monotonic(), self.desk))
        if opening and session.alive:
            self._log.info(
                "session_opened",
                recipient_key=session.recipient_key,
                device_id=session.device_id,
                connect_number=session.connect_number,
                client=frame.hello.client_name,
                peer=connection.peer,
            )
            self._wheel.schedule(connection)

    def behind(self, connection: ClientConnection) -> None:
        """See `host.Host`; also for a session that must not be written to because too much waits altogether."""
        session_of(connection).behind(self._clock.monotonic())
        self.metrics.behind.inc()
        self._wheel.schedule(connection)

    def writable(self, connection: ClientConnection) -> None:
        """See `host.Host`."""
        session = session_of(connection)
        self.run(connection, session, session.writable())
        self.run(connection, session, inbound.confirmation(session))

    def closed(self, connection: ClientConnection, code: int) -> None:
        """See `host.Host`."""
        session = session_of(connection)
        if session.alive:
            self._forget(connection)
        # It is over: whatever else comes for it finds it closed.
        session.close(CloseCode.GO_AWAY, "")
        self.metrics.count_close(code)
        if session.connect_number:
            self._log.info(
                "session_closed",
                recipient_key=session.recipient_key,
                device_id=session.device_id,
                connect_number=session.connect_number,
                code=code,
            )

    # ------------------------------------------------------------ what the core decides

    def run(self, connection: ClientConnection, session: Session, decisions: Decisions) -> None:
        """Carries decisions out."""
        for decision in decisions:
            match decision:
                case Store():
                    self._store(connection, session, decision)
                case ChangeTopics():
                    self._change_topics(connection, decision)
                case Send():
                    self.write(connection, frames.encode(decision.response))
                case SendEntry():
                    self.metrics.replayed.inc()
                    self.write(connection, frames.notify(decision.notification, decision.state))
                case SendHeld():
                    self._write_held(connection, decision.frames)
                case SendPing():
                    self.write(connection, self._ping)
                case Register():
                    self._register(connection)
                case Replay():
                    queue = self.checkpoints if decision.for_cursor else self.replays
                    queue.add(connection, first=session.state is State.QUEUED)
                case Round():
                    self.presence.assert_again(connection)
                    self.rounds.add(connection)
                case Close():
                    self._end(connection, decision)

    def write(self, connection: ClientConnection, frame: frames.Encoded) -> None:
        """Writes a frame in the connection's form; one that has no such form is counted and left out."""
        try:
            data = frame.in_form(connection.form)
        except DataLoss as failure:
            self.metrics.undecodable.inc()
            self._log.error("notification_undecodable", error=failure.message)
            return
        connection.write(data)
        self._backlog.note(connection, len(data))

    def _write_held(self, connection: ClientConnection, held: Sequence[object]) -> None:
        for frame in held:
            assert isinstance(frame, frames.Encoded)
            self.write(connection, frame)

    def _change_topics(self, connection: ClientConnection, change: ChangeTopics) -> None:
        if not self.topics.add(connection, change):
            self.topics_changed(connection, change.frame_number, answers.too_many_topics())

    def _store(self, connection: ClientConnection, session: Session, store: Store) -> None:
        if self._trace is not None:
            for mark in store.marks:
                for ref in mark.refs:
                    self._trace("acked", event_id=ref.notification_id, recipient_key=session.recipient_key)
        self.metrics.marks.inc(len(store.marks))
        if not self.marks.add(store.marks, connection, store.frame_number, store.source):
            self.metrics.marks_refused.inc()
            self.run(connection, session, inbound.unstored(session, store.frame_number))

    def _register(self, connection: ClientConnection) -> None:
        older = self.sessions.join(connection)
        if older is not None:
            self._supersede(older)
        self.metrics.sessions.set(self.sessions.count)
        self.presence.join(connection)

    def _supersede(self, connection: ClientConnection) -> None:
        session = session_of(connection)
        self.metrics.superseded.inc()
        self.run(connection, session, session.close(CloseCode.SUPERSEDED, "SUPERSEDED"))

    def _end(self, connection: ClientConnection, close: Close) -> None:
        self._forget(connection)
        connection.close(close.code, close.reason, close.delay)

    def _forget(self, connection: ClientConnection) -> None:
        self.replays.discard(connection)
        self.checkpoints.discard(connection)
        self.rounds.discard(connection)
        self._backlog.forget(connection)
        # One that was replaced by its own device is not reported: its successor's entry took its place.
        if self.sessions.leave(connection):
            self.presence.leave(connection)
            self.metrics.sessions.set(self.sessions.count)

    # ------------------------------------------------------------ what delivery brings

    def offer(
        self, recipient_key: str, id_: str, revision: int, source: str, frame: frames.Encoded, seconds_left: float
    ) -> Offer:
        """Offers a notification to a recipient's sessions, of which none writes it once its seconds are over.

        Returns:
            ABSENT or BEHIND when no session took it, SEND when one did.
        """
        taken = Offer.ABSENT
        now = self._clock.monotonic()
        for connection in self.sessions.of(recipient_key):
            session = session_of(connection)
            outcome = session.offer(id_, revision, source, frame, now, now + seconds_left)
            if outcome is Offer.SEND:
                taken = Offer.SEND
                self.write(connection, frame)
                if self._trace is not None:
                    self._trace("written", event_id=id_, recipient_key=recipient_key, device_id=session.device_id)
                if session.since_checkpoint >= session.checkpoint_at:
                    self.run(connection, session, session.frames_passed(now))
            elif outcome is Offer.HELD or outcome is Offer.SKIP:
                taken = Offer.SEND
            elif outcome is Offer.BEHIND and taken is Offer.ABSENT:
                taken = Offer.BEHIND
        return taken

    def change(self, change: Change) -> None:
        """Tells a recipient's other sessions what one of them, or a call, has said."""
        told: list[frames.Encoded] = []
        for connection in self.sessions.of(change.recipient_key):
            session = session_of(connection)
            if session.device_id == change.origin_device_id:
                continue
            if not told:
                told.append(frames.encode(answers.changed(change.refs, change.state)))
                if change.HasField("unread"):
                    told.append(frames.encode(answers.unread(change.unread)))
            for frame in told:
                if session.notice(frame) is Offer.SEND:
                    self.write(connection, frame)

    def stored(self, items: Sequence[Waiting[ClientConnection]]) -> None:
        """Confirms marks that are durable: one frame a session."""
        touched: dict[ClientConnection, None] = {}
        for item in items:
            session = session_of(item.owner)
            inbound.stored(session, item.frame_number)
            touched[item.owner] = None
            if self._trace is not None:
                for ref in item.mark.refs:
                    self._trace("confirmed", event_id=ref.notification_id, recipient_key=session.recipient_key)
        for connection in touched:
            session = session_of(connection)
            self.run(connection, session, inbound.confirmation(session))

    # ------------------------------------------------------------ what prefs brings

    def topics_changed(self, connection: ClientConnection, frame_number: int, failure: Failure | None) -> None:
        """A change of topics is durable, or failed."""
        session = session_of(connection)
        (self.metrics.topics if failure is None else self.metrics.topics_refused).inc()
        told = None if failure is None else answers.topics_unchanged(failure)
        self.run(connection, session, inbound.topics_changed(session, frame_number, told))
        self.run(connection, session, inbound.confirmation(session))

    # ------------------------------------------------------------ what presence brings

    def registered(self, connections: Iterable[ClientConnection]) -> None:
        """Presence knows these sessions."""
        for connection in connections:
            session = session_of(connection)
            self.run(connection, session, session.registered())

    def restored(self, entries: Iterable[SessionEntry]) -> None:
        """Presence had lost these sessions: what came meanwhile was not offered here."""
        for connection in self.sessions.named(entries):
            session = session_of(connection)
            self.run(connection, session, session.restored())

    def superseded(self, entries: Iterable[SessionEntry]) -> None:
        """The devices of these sessions have connected elsewhere.

        Of a session that presence has never accepted this may be wrong: the other one may be older, drawn from a clock
        that is ahead, on a node that has just died. Its device connects again, and has a larger number then.
        """
        for connection in self.sessions.named(entries):
            session = session_of(connection)
            if session.joined:
                self._supersede(connection)
            else:
                self.run(connection, session, session.close(CloseCode.GO_AWAY, "SUPERSEDED", _CLOCKS_DIFFER))

    # ------------------------------------------------------------ what the inbox brings

    def heads(self, connections: Sequence[ClientConnection], stamps: Sequence[int]) -> None:
        """Compares heads with cursors."""
        for connection, stamp in zip(connections, stamps, strict=True):
            session = session_of(connection)
            self.run(connection, session, session.head(stamp))

    def look_soon(self, within: float) -> None:
        """Every session has its head compared within so many seconds: what came may not have been offered here."""
        now = self._clock.monotonic()
        for connection in self.sessions:
            session_of(connection).look_by(now + within * self._random())
            self._wheel.schedule(connection)

    def replay_failed(self, connection: ClientConnection, failure: Failure) -> None:
        """A replay was not answered."""
        session = session_of(connection)
        self.metrics.replays_failed.inc()
        self.run(connection, session, session.failed(failure, self._clock.monotonic(), self._random()))
        if session.alive:
            self._wheel.schedule(connection)

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        """Does what is due; called about once a second."""
        now = self._clock.monotonic()
        for connection in self._wheel.advance(now):
            session = session_of(connection)
            self.run(connection, session, session.tick(now, self._random()))
            if session.state is not State.CLOSING:
                self._wheel.schedule(connection)
        for connection in self._backlog.overdue():
            session = session_of(connection)
            self.run(connection, session, session.close(CloseCode.TOO_SLOW, "SLOW_CONSUMER"))
        self.metrics.backlog.set(self._backlog.waiting)

    # ------------------------------------------------------------ the end

    def go_away(self, delay: float, grace: float) -> None:
        """Tells every session that the node leaves service.

        Args:
            delay: clients spread their return over so many seconds.
            grace: seconds after which those that are still here are closed.
        """
        self.desk.draining = True
        leave_due = self._clock.monotonic() + grace
        for connection in self.sessions:
            session = session_of(connection)
            self.run(connection, session, session.go_away(CloseCode.DRAINING, "DRAINING", delay, leave_due))
            self._wheel.schedule(connection)

    def close_all(self) -> None:
        """Closes every session: the node leaves service now."""
        for connection in self.sessions:
            session = session_of(connection)
            self.run(connection, session, session.close(CloseCode.DRAINING, "DRAINING", session.leave_delay))

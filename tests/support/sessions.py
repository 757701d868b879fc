"""A client and an inbox for the gateway's session core: what it decides is carried out on plain values.

It must not use sockets or tasks: time passes only when a test says so.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Sequence

from heliograph.delivery.v1.inbox_service_pb2 import InboxEntry, ReplayInboxRequest, ReplayInboxResponse
from heliograph.gateway.v1.client_frames_pb2 import (
    ClientMark,
    ConnectRequest,
    ConnectResponse,
    Hello,
    Subscribe,
    Unsubscribe,
)
from heliograph.type.v1.notification_pb2 import (
    MarkKind,
    Notification,
    NotificationRef,
    NotificationState,
)
from mesh.errors import Unauthenticated
from svc_gateway import inbound
from svc_gateway.decisions import (
    Admission,
    ChangeTopics,
    Close,
    CloseCode,
    Decisions,
    Identity,
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
from svc_gateway.hello import cursor_of
from svc_gateway.session import Session

RECIPIENT = "acme/alice"
# The distance between a read and the cursor that it gives: W + S of the inbox.
_BEHIND_READ = 6_000_000
_NEW = NotificationState.NOTIFICATION_STATE_NEW


def id_of(number: int) -> str:
    """Returns a notification id."""
    return str(uuid.UUID(int=number))


class FixedDesk:
    """Lets in whoever says "good"."""

    def __init__(self, *, token_life: float = 3600.0, age: float = 36_000.0) -> None:
        self.token_life = token_life
        self.age = age
        self.admitted = 0

    def verify(self, token: str) -> Identity:
        """Knows three tokens: good, other (another recipient) and old."""
        if token == "old":
            raise Unauthenticated("the token has expired", reason="TOKEN_EXPIRED")
        if token not in ("good", "other"):
            raise Unauthenticated("the token is not acceptable", reason="TOKEN_INVALID")
        key = RECIPIENT if token == "good" else "acme/bob"
        return Identity(recipient_key=key, expire_time=1_700_003_600.0, seconds_left=self.token_life)

    def admit(self) -> Admission:
        """Numbers sessions from 1."""
        self.admitted += 1
        return Admission(
            connect_number=self.admitted,
            session_id=f"s-{self.admitted}",
            wall=1_700_000_000.0,
            age=self.age,
            random=0.5,
        )


class Inbox:
    """The rows of one recipient, as delivery would answer."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, int]] = {}
        self._last = 0

    def write(self, id_: str, revision: int, now: float) -> None:
        """Stores a row under a fresh stamp."""
        self._last = max(self._last + 1, int(now * 1_000_000))
        self.rows[id_] = (revision, self._last)

    @property
    def head(self) -> int:
        """The largest stamp."""
        return max((stamp for _, stamp in self.rows.values()), default=0)

    def replay(self, request: ReplayInboxRequest, now: float, page_size: int = 3) -> ReplayInboxResponse:
        """Answers with a page, oldest stamp first, without what the client named.

        All pages show the inbox as the first one found it, which is the least that a client may rely on.
        """
        upper, after, start = self.head, 0, int(now * 1_000_000)
        if request.page_token:
            upper, after, start = (int(part) for part in request.page_token.split(":"))
        if request.HasField("cursor"):
            after = max(after, request.cursor.stamp_time.ToMicroseconds())
        known = {(ref.notification_id, ref.revision) for ref in request.received_refs}
        found = sorted((stamp, id_, revision) for id_, (revision, stamp) in self.rows.items() if after < stamp <= upper)
        fresh = [row for row in found if (row[1], row[2]) not in known]
        page = ReplayInboxResponse()
        for _, id_, revision in fresh[:page_size]:
            notification = Notification(notification_id=id_, revision=revision)
            ref = NotificationRef(notification_id=id_, revision=revision)
            page.entries.append(InboxEntry(notification=notification.SerializeToString(), state=_NEW, ref=ref))
        if len(fresh) > page_size:
            page.next_page_token = f"{upper}:{fresh[page_size - 1][0]}:{start}"
            return page
        page.cursor.CopyFrom(cursor_of("store-1", max(0, start - _BEHIND_READ)))
        page.item_count = len(self.rows)
        lines = "".join(f"{id_} {revision} 0\n" for id_, (revision, _) in sorted(self.rows.items()))
        page.checksum = int.from_bytes(zlib.crc32(lines.encode()).to_bytes(4, "big"), "big", signed=True)
        page.unread.unread_count = len(self.rows)
        page.unread.head_time.FromMicroseconds(upper)
        return page


class Driver:
    """Carries a session's decisions out and keeps what its client sees."""

    def __init__(self, *, limits: Limits | None = None, desk: FixedDesk | None = None, now: float = 1_000.0) -> None:
        self.limits = limits or Limits()
        self.desk = desk or FixedDesk()
        self.now = now
        self.session = Session(limits=self.limits, step_due=now + self.limits.hello_timeout)
        self.written: list[ConnectResponse] = []
        self.seen: list[tuple[str, int]] = []
        self.stored: list[Store] = []
        self.changes: list[ChangeTopics] = []
        self.closed: Close | None = None
        self.registers = 0
        self.replays = 0
        self.checkpoints = 0
        self.rounds = 0
        self.pings = 0
        self._number = 0

    def run(self, decisions: Decisions) -> None:
        """Carries decisions out; anything written after the close is an error."""
        for decision in decisions:
            assert self.closed is None, f"after the close: {decision}"
            match decision:
                case Send(response=response):
                    self.written.append(response)
                case SendEntry(notification=notification):
                    self._show(notification)
                case SendHeld(frames=frames):
                    self._show_all(frames)
                case SendPing():
                    self.pings += 1
                case Register():
                    self.registers += 1
                case Replay():
                    self.replays += not decision.for_cursor
                    self.checkpoints += decision.for_cursor
                case Round():
                    self.rounds += 1
                case Store():
                    self.stored.append(decision)
                case ChangeTopics():
                    self.changes.append(decision)
                case Close():
                    self.closed = decision

    def _show_all(self, frames: Sequence[object]) -> None:
        for frame in frames:
            assert isinstance(frame, bytes)
            self._show(frame)

    def _show(self, notification: bytes) -> None:
        shown = Notification.FromString(notification)
        self.seen.append((shown.notification_id, shown.revision))

    # ------------------------------------------------------------ the client

    def say(self, frame: ConnectRequest) -> None:
        """Sends a frame under the next number, unless it has one."""
        self._number += 1
        frame.frame_number = frame.frame_number or self._number
        self.run(inbound.receive(self.session, frame, self.now, self.desk))

    def hello(self, **fields: object) -> None:
        """Says hello with a good token, unless told otherwise."""
        # Any keyword of the message; the message refuses what it does not have.
        self.say(ConnectRequest(hello=Hello(**{"token": "good", "device_id": "phone", **fields})))  # type: ignore[arg-type] # checked by the message

    def mark(self, ids: Sequence[str], kind: MarkKind.ValueType = MarkKind.MARK_KIND_RECEIVED) -> None:
        """Marks ids."""
        refs = [NotificationRef(notification_id=id_) for id_ in ids]
        self.say(ConnectRequest(mark=ClientMark(kind=kind, refs=refs)))

    def subscribe(self, *topic_ids: str) -> None:
        """Begins standing interests."""
        self.say(ConnectRequest(subscribe=Subscribe(topic_ids=topic_ids)))

    def unsubscribe(self, *topic_ids: str) -> None:
        """Ends them."""
        self.say(ConnectRequest(unsubscribe=Unsubscribe(topic_ids=topic_ids)))

    # ------------------------------------------------------------ delivery and time

    def offer(
        self, id_: str, revision: int = 1, source: str = "delivery-1", *, seconds_left: float = float("inf")
    ) -> Offer:
        """Offers a notification and writes it when it is taken."""
        frame = Notification(notification_id=id_, revision=revision).SerializeToString()
        outcome = self.session.offer(id_, revision, source, frame, self.now, self.now + seconds_left)
        if outcome is Offer.SEND:
            assert self.closed is None
            self._show(frame)
        return outcome

    def read(self, inbox: Inbox, page_size: int = 3) -> bool:
        """Runs a replay from its begin to its end or its pause; False when there was none to run."""
        request = self.session.begin_replay(self.now)
        began = request is not None
        while request is not None:
            self.run(self.session.replayed(inbox.replay(request, self.now, page_size), self.now))
            self.session.page_written()
            request = self.session.next_page()
        return began

    def tick(self, seconds: float, random: float = 0.5) -> None:
        """Lets time pass, then does what is due."""
        self.now += seconds
        self.run(self.session.tick(self.now, random))

    def go_live(self, inbox: Inbox | None = None) -> None:
        """Says hello, is registered and reads the inbox."""
        self.hello()
        self.run(self.session.registered())
        self.read(inbox or Inbox())

    # ------------------------------------------------------------ what was said

    def state(self) -> State:
        """Returns the session's state."""
        return self.session.state

    def end(self) -> tuple[CloseCode, str] | None:
        """Returns what the session was closed with, or None."""
        return None if self.closed is None else (self.closed.code, self.closed.reason)

    def end_code(self) -> CloseCode | None:
        """Returns the code that the session was closed with, or None."""
        return None if self.closed is None else self.closed.code

    def last(self, kind: str) -> ConnectResponse:
        """Returns the newest frame of a kind."""
        return next(frame for frame in reversed(self.written) if frame.WhichOneof("frame") == kind)

    def kinds(self) -> list[str | None]:
        """Returns the kinds of all frames but notifications, in order."""
        return [frame.WhichOneof("frame") for frame in self.written]

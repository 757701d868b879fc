"""The events of a run, joined: what was published, who was to get it, what each device saw. Linear in their number.

It must not judge: what is wrong is in `invariants`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from tests.faults import history
from tests.faults.history import Device, Line

Outcome = Literal["ok", "info", "fail"]
Owner = tuple[str, str]
# Tenant, recipient, id of the notification.
Delivery = tuple[str, str, str]


class Attempt(msgspec.Struct):
    """One publish: its invoke and how that ended; without an end nobody knows."""

    invoke: history.PublishInvoke
    outcome: Outcome = "info"
    notification_id: str = ""
    repeated: bool = False
    end: float | None = None


class Content(msgspec.Struct):
    """One content, by its nonce: every attempt to publish it."""

    nonce: str
    attempts: list[Attempt] = msgspec.field(default_factory=list)

    @property
    def first(self) -> history.PublishInvoke:
        """The earliest invoke."""
        return self.attempts[0].invoke

    @property
    def outcome(self) -> Outcome:
        """What happened: one ok makes it certain, one unknown keeps it open."""
        outcomes = {attempt.outcome for attempt in self.attempts}
        return "ok" if "ok" in outcomes else "info" if "info" in outcomes else "fail"

    @property
    def ids(self) -> list[str]:
        """The ids it was accepted under, each once."""
        return list(dict.fromkeys(attempt.notification_id for attempt in self.attempts if attempt.outcome == "ok"))

    @property
    def records(self) -> int:
        """How often it was accepted as something new: each time it got a record of its own."""
        return sum(attempt.outcome == "ok" and not attempt.repeated for attempt in self.attempts)

    @property
    def accept(self) -> float | None:
        """When it was first known to be accepted."""
        return min((attempt.end for attempt in self.attempts if attempt.outcome == "ok" and attempt.end), default=None)


class Fault(msgspec.Struct):
    """One fault; without an end it lasted to the end of the run."""

    begin: history.FaultBegan
    end: float = float("inf")
    evidence: str = ""


class Wish(msgspec.Struct):
    """One change of a wish; without an ok nobody knows from when on it counts."""

    invoke: history.WishInvoke
    ok: float | None = None


class Session(msgspec.Struct):
    """One session of a device."""

    device: Device
    number: int
    connected: history.Connected
    received: list[history.Received] = msgspec.field(default_factory=list)
    replayed: float | None = None
    reloaded: bool = False
    closed: float | None = None
    # ids confirmed in it, with the time
    confirmed: dict[str, float] = msgspec.field(default_factory=dict)


class Index:
    """The joined events of one run."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = sorted(lines, key=lambda line: line.event.at)
        self.contents: dict[str, Content] = {}
        self.faults: dict[str, Fault] = {}
        self.wishes: dict[Owner, list[Wish]] = defaultdict(list)
        self.sessions: dict[Device, list[Session]] = defaultdict(list)
        self.shown: dict[Device, list[history.Shown]] = defaultdict(list)
        # how often each notification of a recipient was marked, and when first
        self.marks: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        self.lists: dict[Device, history.FinalList] = {}
        self.rows: dict[Owner, list[history.Row]] = defaultdict(list)
        self.unread: dict[Owner, history.Unread] = {}
        self.terminals: dict[tuple[str, str, str], history.Terminal] = {}
        self.letters: list[history.Letter] = []
        self.poisoned: list[history.Poisoned] = []
        self.has_channel = False
        self.calls: dict[Delivery, list[history.ChannelCall]] = defaultdict(list)
        self.positions: list[history.Position] = []
        self.registries: list[history.Registry] = []
        self.settled: list[history.Settled] = []
        # Ends without a beginning: their actor died in between, or its file is not whole.
        self.unpaired = 0
        self._attempts: dict[str, Attempt] = {}
        self._wishes: dict[str, Wish] = {}
        self._sessions: dict[tuple[Device, int], Session] = {}
        for line in self.lines:
            self._take(line.event)
        self.by_id = {id_: content for content in self.contents.values() for id_ in content.ids}

    @property
    def received(self) -> Iterator[tuple[Device, Session, history.Received]]:
        """Everything that came over a wire."""
        for device, sessions in self.sessions.items():
            for session in sessions:
                for one in session.received:
                    yield device, session, one

    def faults_of(self, *, device: bool) -> list[Fault]:
        """Returns the faults of devices and the ways to them, or all others."""
        return [fault for fault in self.faults.values() if fault.begin.device == device]

    @property
    def end(self) -> float:
        """When the last line was written."""
        return self.lines[-1].event.at if self.lines else 0.0

    @property
    def healed(self) -> float:
        """When the last fault was over; 0 without faults, infinite while one is there."""
        return max((fault.end for fault in self.faults.values()), default=0.0)

    def _take(self, event: history.Event) -> None:
        match event:
            case history.PublishInvoke():
                attempt = self._attempts[event.operation] = Attempt(event)
                self.contents.setdefault(event.nonce, Content(event.nonce)).attempts.append(attempt)
            case history.PublishOk() | history.PublishFail() | history.PublishInfo():
                self._end_attempt(event)
            case history.WishInvoke() | history.WishOk():
                self._take_wish(event)
            case history.FaultBegan() | history.FaultEnded():
                self._take_fault(event)
            case history.FinalList():
                self.lists[event.device] = event
            case history.Shown():
                self.shown[event.device].append(event)
            case history.Marked():
                owner = event.device.tenant, event.device.recipient
                self.marks[*owner, event.notification_id].append(event.at)
            case (
                history.Connected()
                | history.Received()
                | history.Replayed()
                | history.Reloaded()
                | history.AckConfirmed()
                | history.Closed()
            ):
                self._take_session(event)
            case _:
                self._take_end(event)

    def _take_end(
        self,
        event: history.Row
        | history.Unread
        | history.Terminal
        | history.Letter
        | history.ChannelOpened
        | history.ChannelCall
        | history.Poisoned
        | history.Position
        | history.Registry
        | history.Settled,
    ) -> None:
        match event:
            case history.ChannelOpened():
                self.has_channel = True
            case history.ChannelCall():
                self.calls[event.tenant, event.recipient, event.notification_id].append(event)
            case history.Row():
                self.rows[event.tenant, event.recipient].append(event)
            case history.Unread():
                self.unread[event.tenant, event.recipient] = event
            case history.Terminal():
                self.terminals[event.tenant, event.recipient, event.notification_id] = event
            case history.Letter():
                self.letters.append(event)
            case history.Poisoned():
                self.poisoned.append(event)
            case history.Position():
                self.positions.append(event)
            case history.Registry():
                self.registries.append(event)
            case history.Settled():
                self.settled.append(event)

    def _take_wish(self, event: history.WishInvoke | history.WishOk) -> None:
        if isinstance(event, history.WishInvoke):
            wish = self._wishes[event.operation] = Wish(event)
            self.wishes[event.tenant, event.recipient].append(wish)
        elif event.operation in self._wishes:
            self._wishes[event.operation].ok = event.at
        else:
            self.unpaired += 1

    def _end_attempt(self, event: history.PublishOk | history.PublishFail | history.PublishInfo) -> None:
        attempt = self._attempts.get(event.operation)
        if attempt is None:
            self.unpaired += 1
            return
        attempt.end = event.at
        match event:
            case history.PublishOk():
                attempt.outcome, attempt.notification_id = "ok", event.notification_id
                attempt.repeated = event.repeated
            case history.PublishFail():
                attempt.outcome = "fail"
            case history.PublishInfo():
                attempt.outcome = "info"

    def _take_fault(self, event: history.FaultBegan | history.FaultEnded) -> None:
        if isinstance(event, history.FaultBegan):
            self.faults[event.operation] = Fault(event, evidence=event.evidence)
            return
        fault = self.faults.get(event.operation)
        if fault is None:
            self.unpaired += 1
            return
        fault.end = event.at
        fault.evidence = fault.evidence or event.evidence

    def _take_session(
        self,
        event: history.Connected
        | history.Received
        | history.Replayed
        | history.Reloaded
        | history.AckConfirmed
        | history.Closed,
    ) -> None:
        key = event.device, event.session
        if isinstance(event, history.Connected):
            session = self._sessions[key] = Session(event.device, event.session, event)
            self.sessions[event.device].append(session)
            return
        if key not in self._sessions:
            self.unpaired += 1
            return
        session = self._sessions[key]
        match event:
            case history.Received():
                session.received.append(event)
            case history.Replayed():
                session.replayed = event.at if session.replayed is None else session.replayed
            case history.Reloaded():
                session.reloaded = True
            case history.AckConfirmed():
                for notification_id in event.notification_ids:
                    session.confirmed.setdefault(notification_id, event.at)
            case history.Closed():
                session.closed = event.at


def overlapping(faults: Sequence[Fault], begin: float, end: float) -> int:
    """Returns how many faults were there at some moment between two times."""
    return sum(fault.begin.at <= end and fault.end >= begin for fault in faults)

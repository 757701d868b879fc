"""What actors write down during a run: one JSON line an event, in a file of each actor's own.

Operations come in pairs: an invoke, then ok (it surely happened), fail (it surely did not) or info (nobody knows).
Times are seconds of the machine's monotonic clock, which all processes of a run share. It must not judge anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TypeAlias

import msgspec


class _Event(msgspec.Struct, frozen=True, tag_field="event", gc=False, kw_only=True):
    """What all lines have: when it happened. Actor and line number come from the file."""

    at: float


# ---------------------------------------------------------------- publishers


class PublishInvoke(_Event, frozen=True, tag="publish"):
    """A publish is sent.

    Attributes:
        operation: pairs it with its end; unique in the run.
        tenant: whose.
        producer: who.
        request_id: empty when the producer gave none.
        has_time: the request id or the event carries its time, so that repeats are known for ever.
        nonce: unique for one content, inside of it; repeats of a request share it.
        digest: of the content.
        category: of the content.
        priority: of the content, a number; larger is more urgent.
        ordering_key: events of one key and priority keep their order in one session; empty: none.
        expire: when it is over, same clock; None: never during a run.
        recipients: who is to get it, by their ids.
    """

    operation: str
    tenant: str
    producer: str
    request_id: str
    has_time: bool
    nonce: str
    digest: str
    category: str
    recipients: tuple[str, ...]
    priority: int = 2
    ordering_key: str = ""
    expire: float | None = None


class PublishOk(_Event, frozen=True, tag="publish-ok"):
    """It was accepted under an id."""

    operation: str
    notification_id: str
    repeated: bool = False


class PublishFail(_Event, frozen=True, tag="publish-fail"):
    """It was surely not accepted."""

    operation: str
    reason: str


class PublishInfo(_Event, frozen=True, tag="publish-info"):
    """Nobody knows whether it was accepted."""

    operation: str
    reason: str


# ---------------------------------------------------------------- devices


class Device(msgspec.Struct, frozen=True, gc=False):
    """One app of one recipient."""

    tenant: str
    recipient: str
    name: str


class _DeviceEvent(_Event, frozen=True, kw_only=True):
    """What all lines of a device have: who, and which of its sessions."""

    device: Device
    session: int


class Connected(_DeviceEvent, frozen=True, tag="connected"):
    """A session is open: its hello was answered.

    Attributes:
        gateway: the node.
        known: ids that the device has; what the replay need not bring.
    """

    gateway: str = ""
    known: tuple[str, ...] = ()


class Received(_DeviceEvent, frozen=True, tag="received"):
    """A notification came over the wire.

    Attributes:
        notification_id: its id.
        revision: of its content.
        nonce: from its content.
        digest: of its content, computed by the device.
        canary: whether the content is meant for this very recipient, see `canary`.
        live: False: from the inbox.
    """

    notification_id: str
    nonce: str
    digest: str
    canary: bool
    revision: int = 1
    live: bool = True


class Shown(_DeviceEvent, frozen=True, tag="shown"):
    """A person saw it: after what the SDK drops because the device has it."""

    notification_id: str
    revision: int = 1


class Replayed(_DeviceEvent, frozen=True, tag="replayed"):
    """A replay is complete; the first of a session says that the device has everything from before it."""


class Reloaded(_DeviceEvent, frozen=True, tag="reloaded"):
    """The device was told to drop its copy and to take the list anew."""


class AckConfirmed(_DeviceEvent, frozen=True, tag="ack-confirmed"):
    """The server confirmed acks of these ids."""

    notification_ids: tuple[str, ...]


class Marked(_DeviceEvent, frozen=True, tag="marked"):
    """A person marked a notification as read, or took that back; every device of theirs is told, with the row."""

    notification_id: str


class Closed(_DeviceEvent, frozen=True, tag="closed"):
    """The session is over."""

    code: int = 0


class FinalList(_Event, frozen=True, tag="final-list"):
    """What a device has when all is quiet.

    Attributes:
        device: whose.
        notification_ids: its list from the top.
        unread: its own count.
    """

    device: Device
    notification_ids: tuple[str, ...]
    unread: int


# ---------------------------------------------------------------- people's wishes


class WishInvoke(_Event, frozen=True, tag="wish"):
    """A recipient mutes a category, or takes that back."""

    operation: str
    tenant: str
    recipient: str
    category: str
    muted: bool


class WishOk(_Event, frozen=True, tag="wish-ok"):
    """It is stored."""

    operation: str


# ---------------------------------------------------------------- nemesis


class FaultBegan(_Event, frozen=True, tag="fault"):
    """A fault is there.

    Attributes:
        operation: pairs it with its end.
        fault: its row of the catalogue, or a word.
        target: what it hits.
        evidence: what was observed; empty: nothing shows that it happened.
        device: it hits nothing but a device or the way to it: nothing waits for that on its way to the inbox.
        crash: a process of ours dies, and nothing else is wrong: devices soon have what that delayed.
    """

    operation: str
    fault: str
    target: str
    evidence: str = ""
    device: bool = False
    crash: bool = False


class FaultEnded(_Event, frozen=True, tag="fault-end"):
    """It is healed; evidence may also come only now."""

    operation: str
    evidence: str = ""


# ---------------------------------------------------------------- the system, when all is quiet


class Row(_Event, frozen=True, tag="row"):
    """One notification of one inbox, as the server lists it, from the top.

    Attributes:
        tenant: whose.
        recipient: whose.
        notification_id: which.
        nonce: from its content.
        read: whether it is marked as read.
        new: whether the server knows of no device that has it.
    """

    tenant: str
    recipient: str
    notification_id: str
    nonce: str
    read: bool = False
    new: bool = False


class Unread(_Event, frozen=True, tag="unread"):
    """The server's count of one inbox."""

    tenant: str
    recipient: str
    number: int


class Terminal(_Event, frozen=True, tag="terminal"):
    """What `Explain` says about one notification of one recipient.

    Attributes:
        tenant: whose.
        recipient: whose.
        notification_id: which.
        state: "acked", "inboxed", "trimmed", "expired", "suppressed", "dead", "withdrawn"; else it is under way.
        reason: why nothing was delivered, for the states that need one.
    """

    tenant: str
    recipient: str
    notification_id: str
    state: str
    reason: str = ""


class Letter(_Event, frozen=True, tag="dead-letter"):
    """A dead letter.

    Attributes:
        tenant: whose; empty where it could not be read: a record that was put aside.
        recipient: whose; empty where it could not be read.
        notification_id: which; empty where it could not be read.
        reason: why.
        size: of the original bytes.
        source: where the record was, or whose delivery it is.
        channel: a number: the step that was given up; 0: the row, or a record.
        redriven: it was sent again by hand.
        redrive: when that was first tried; None: nobody knows.
        left: it is there when all is quiet.
    """

    tenant: str
    recipient: str
    notification_id: str
    reason: str
    size: int
    source: str
    channel: int = 0
    redriven: bool = False
    redrive: float | None = None
    left: bool = True

    @property
    def delivery(self) -> tuple[str, str, str]:
        """Whose, and of what."""
        return self.tenant, self.recipient, self.notification_id


class ChannelOpened(_Event, frozen=True, tag="channel"):
    """Everybody's wishes have one more channel behind live."""


class ChannelCall(_Event, frozen=True, tag="channel-call"):
    """The channel behind live was called.

    Attributes:
        tenant: whose.
        recipient: whose.
        notification_id: which.
        attempt_id: the attempt's name; the same one has it again.
        collapse_id: what all attempts of a step share.
        outcome: "taken": the channel has it, whoever heard of that; "refused"; "later".
    """

    tenant: str
    recipient: str
    notification_id: str
    attempt_id: str
    collapse_id: str
    outcome: str


class Poisoned(_Event, frozen=True, tag="poisoned"):
    """A record that nobody can read was put into a lane."""

    lane: str


class Position(_Event, frozen=True, tag="position"):
    """A lane at one moment.

    Attributes:
        lane: its name and partition.
        committed: the reader's position.
        first_unfinished: the first record whose effects are not durable; None: there is none.
        lag: records behind the position.
        quiet: it was taken when all should be over.
    """

    lane: str
    committed: int
    first_unfinished: int | None
    lag: int
    quiet: bool = True


class Registry(_Event, frozen=True, tag="registry"):
    """Who is connected: by presence, and by the sockets of the nodes."""

    by_presence: tuple[str, ...]
    by_sockets: tuple[str, ...]


class Settled(_Event, frozen=True, tag="settled"):
    """All came to rest so many seconds after the last fault was healed; None: it did not, within the limit."""

    seconds: float | None
    limit: float


Event: TypeAlias = (
    PublishInvoke
    | PublishOk
    | PublishFail
    | PublishInfo
    | Connected
    | Received
    | Shown
    | Replayed
    | Reloaded
    | AckConfirmed
    | Marked
    | Closed
    | FinalList
    | WishInvoke
    | WishOk
    | FaultBegan
    | FaultEnded
    | Row
    | Unread
    | Terminal
    | Letter
    | ChannelOpened
    | ChannelCall
    | Poisoned
    | Position
    | Registry
    | Settled
)


class Line(msgspec.Struct, frozen=True, gc=False):
    """An event with the actor that wrote it and the number of its line."""

    actor: str
    number: int
    event: Event


class Log(msgspec.Struct, frozen=True):
    """What one actor wrote; `truncated`: it died over its last line."""

    lines: Sequence[Line]
    truncated: bool = False


class HistoryError(Exception):
    """A line that is no event: the run cannot be judged."""


class Recorder:
    """Appends an actor's events to its file; each line is written at once, so that a kill costs half a line at most."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def add(self, event: Event) -> None:
        """Writes one event."""
        self._file.write(self._encoder.encode(event) + b"\n")

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(paths: Iterable[Path]) -> list[Log]:
    """Reads the files of a run; an actor's name is its file's.

    Raises:
        HistoryError: a line other than the last of its file is no event.
    """
    decoder = msgspec.json.Decoder(Event)
    logs = []
    for path in sorted(paths):
        lines: list[Line] = []
        truncated = False
        texts = path.read_bytes().split(b"\n")
        for number, text in enumerate(texts, start=1):
            if not text:
                continue
            try:
                lines.append(Line(path.stem, number, decoder.decode(text)))
            except msgspec.DecodeError as error:
                if number != len(texts):
                    raise HistoryError(f"{path}:{number}: {error}") from None
                truncated = True
        logs.append(Log(lines, truncated))
    return logs

"""What a subscriber hands to its application: notifications, updates and counts.

Plain values. Must not decide anything.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.type.v1 import notification_pb2
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState, Priority
from heliograph_client.topics import TopicChange
from mesh.errors import Failure

PriorityText: TypeAlias = Literal["high", "normal", "bulk"]
StateText: TypeAlias = Literal["new", "received", "seen", "read", "hidden"]

_PRIORITIES: dict[int, PriorityText] = {Priority.PRIORITY_HIGH: "high", Priority.PRIORITY_BULK: "bulk"}
_STATES: dict[int, StateText] = {
    NotificationState.NOTIFICATION_STATE_RECEIVED: "received",
    NotificationState.NOTIFICATION_STATE_SEEN: "seen",
    NotificationState.NOTIFICATION_STATE_READ: "read",
    NotificationState.NOTIFICATION_STATE_HIDDEN: "hidden",
}


def state_text(state: int) -> StateText:
    """Returns a state's name; one that this version does not know is new, as nothing says otherwise."""
    return _STATES.get(state, "new")


class AckLevel(enum.IntEnum):
    """How far a notification has come on this device; each level includes those before it."""

    RECEIVED = MarkKind.MARK_KIND_RECEIVED
    FOREGROUND = MarkKind.MARK_KIND_FOREGROUND
    SEEN = MarkKind.MARK_KIND_SEEN
    READ = MarkKind.MARK_KIND_READ


class Notification(msgspec.Struct, frozen=True, gc=False):
    """One notification as it came.

    Attributes:
        message: the contract's message, complete.
        state: how far it had come when it was sent; "new" for a live one.
        replayed: it came with a replay: while this device was away, or before.
        receive_time: this machine's clock when it arrived, Unix seconds.
    """

    message: notification_pb2.Notification
    state: StateText
    replayed: bool
    receive_time: float

    @property
    def id(self) -> str:
        """UUID text; sorts by the event's time."""
        return self.message.notification_id

    @property
    def revision(self) -> int:
        """Number of the content, from 1."""
        return self.message.revision

    @property
    def category(self) -> str:
        """Kind of event."""
        return self.message.category

    @property
    def priority(self) -> PriorityText:
        """How urgent it is."""
        return _PRIORITIES.get(self.message.priority, "normal")

    @property
    def title(self) -> str:
        """One line."""
        return self.message.content.title

    @property
    def body(self) -> str:
        """Text, may be empty."""
        return self.message.content.body

    @property
    def link(self) -> str:
        """Where a tap leads, may be empty."""
        return self.message.content.link

    @property
    def data_json(self) -> str:
        """A JSON object for the app, may be empty."""
        return self.message.content.data_json

    @property
    def producer_id(self) -> str:
        """Who published it."""
        return self.message.producer_id

    @property
    def event_time(self) -> datetime:
        """When it happened, in UTC."""
        return self.message.event_time.ToDatetime(tzinfo=UTC)

    @property
    def expire_time(self) -> datetime | None:
        """When it stops being useful, in UTC; None: it does not."""
        return _time_of(self.message.expire_time) if self.message.HasField("expire_time") else None


def _time_of(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)


# ---------------------------------------------------------------- updates


class Connected(msgspec.Struct, frozen=True):
    """A session has begun. Its number counts from 1."""

    session_id: str
    number: int


class Disconnected(msgspec.Struct, frozen=True):
    """A session has ended; the next one is tried after so many seconds."""

    reason: str
    retry_delay: float


class CaughtUp(msgspec.Struct, frozen=True):
    """A replay has ended: the copy of the inbox is complete. After a reload, ids that are not listed are gone."""

    reload: bool
    ids: tuple[str, ...]


class StateChanged(msgspec.Struct, frozen=True):
    """Notifications have another state now: said by another device, or found in a replay."""

    ids: tuple[str, ...]
    state: StateText


class UnreadChanged(msgspec.Struct, frozen=True):
    """The server's number of unread notifications."""

    count: int


class MarksConfirmed(msgspec.Struct, frozen=True):
    """Acks and marks of these notifications are durable."""

    ids: tuple[str, ...]


class MarksRefused(msgspec.Struct, frozen=True):
    """Marks of these notifications were refused for good."""

    ids: tuple[str, ...]
    failure: Failure


class TopicsChanged(msgspec.Struct, frozen=True):
    """A change of topics is durable, or was refused for good."""

    change: TopicChange
    failure: Failure | None


Update: TypeAlias = (
    Connected | Disconnected | CaughtUp | StateChanged | UnreadChanged | MarksConfirmed | MarksRefused | TopicsChanged
)


class SubscriberStats(msgspec.Struct):
    """What a subscriber counted since it was made.

    Attributes:
        connections: sessions that were welcomed.
        notifications_on_wire: notification frames that arrived.
        shown: notifications handed to the application; each revision once.
        duplicates_on_wire: frames whose id and revision, or a later one, had arrived before.
        replayed: shown notifications that came with a replay.
        hidden_on_wire: notifications that had been hidden before they came; not shown.
        expired_on_wire: notifications whose time was over when they came; not shown.
        checkpoints: replays that ended.
        reloads: of them, those that brought the whole window.
        mismatches: checkpoints at which the copy differed from the server's window.
        acks_sent: ids in ack and mark frames, repetitions included.
        acks_confirmed: ids whose acks or marks became durable.
        acks_dropped: acks that found no room; such a notification may come again.
        frames_refused: frames that the server refused.
        frames_unknown: frames of a kind that this version does not know.
    """

    connections: int = 0
    notifications_on_wire: int = 0
    shown: int = 0
    duplicates_on_wire: int = 0
    replayed: int = 0
    hidden_on_wire: int = 0
    expired_on_wire: int = 0
    checkpoints: int = 0
    reloads: int = 0
    mismatches: int = 0
    acks_sent: int = 0
    acks_confirmed: int = 0
    acks_dropped: int = 0
    frames_refused: int = 0
    frames_unknown: int = 0

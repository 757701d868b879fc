"""What the session core is told and what it answers: limits, states, close codes and decisions, all plain values.

Must not decide anything. Steps 6, 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from heliograph.gateway.v1.client_frames_pb2 import ConnectResponse
from heliograph.type.v1.notification_pb2 import Mark


class CloseCode(enum.IntEnum):
    """Why a session ends: below 4500 the client connects again, from 4500 on it does not."""

    GO_AWAY = 4000
    DRAINING = 4001
    TOO_SLOW = 4002
    TOKEN_EXPIRED = 4003
    OVERLOADED = 4004
    SUPERSEDED = 4500
    TOKEN_INVALID = 4501
    ORIGIN = 4502
    PROTOCOL = 4503
    VERSION = 4504
    REVOKED = 4505


class State(enum.Enum):
    """How far a session is."""

    OPENING = "no hello yet"
    JOINING = "presence does not know it yet"
    QUEUED = "a replay was asked for and has not begun"
    READING = "a replay is being read; live frames are held back"
    LIVE = "frames are written as they come"
    BEHIND = "the socket is full; nothing is kept"
    CLOSING = "nothing is written any more"


class Offer(enum.Enum):
    """What becomes of a frame that is offered to a session."""

    SEND = "write it now"
    SKIP = "the client has it"
    # The row is durable before it is offered, so a replay that has not been read yet, or the held frames, bring it.
    HELD = "it comes with the replay"
    BEHIND = "not taken; caught up from the inbox later"
    ABSENT = "no session that takes anything"


class Limits(msgspec.Struct, frozen=True, gc=False):
    """The numbers a session lives by: seconds and counts."""

    hello_timeout: float = 5.0
    # How long a replay waits for presence; later the session is registered behind it and replayed once more.
    join_timeout: float = 2.0
    heartbeat_interval: float = 120.0
    behind_timeout: float = 30.0
    round_interval: float = 600.0
    # A checkpoint comes when there is room once as many frames have passed as a window shows of one class, but not
    # sooner than `checkpoint_pause` after the last reading; and in any case before more have passed than one replay
    # can name.
    checkpoint_frames: int = 100
    checkpoint_pause: float = 10.0
    checkpoint_frames_at_most: int = 400
    # A cursor lies W + S = 6 s before its read, so what was given so long before a checkpoint must still be named.
    overlap: float = 10.0
    go_away_grace: float = 5.0
    held_count: int = 256
    given_count: int = 500
    allowed_count: int = 1_000
    pending_count: int = 256
    # Frames about topics that are not durable yet.
    topics_count: int = 4
    refused_count: int = 20
    replay_page: int = 50
    retry_base: float = 1.0
    retry_cap: float = 30.0


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Whom a token speaks for.

    Attributes:
        recipient_key: escaped "tenant/recipient".
        expire_time: Unix seconds.
        seconds_left: until then.
    """

    recipient_key: str
    expire_time: float
    seconds_left: float


class Admission(msgspec.Struct, frozen=True, gc=False):
    """What the node gives a session that it takes.

    Attributes:
        connect_number: larger than that of every earlier session.
        session_id: for logs and support.
        wall: the node's clock, Unix seconds.
        age: seconds until the session is recycled, already dithered.
        random: in [0, 1), spreads its rounds.
    """

    connect_number: int
    session_id: str
    wall: float
    age: float
    random: float


class Desk(Protocol):
    """Where a session that says hello is let in."""

    def verify(self, token: str) -> Identity:
        """Returns whom a token speaks for; raises Unauthenticated (TOKEN_INVALID, TOKEN_EXPIRED)."""
        ...

    def admit(self) -> Admission:
        """Takes one more session; raises ResourceExhausted (OVERLOADED) with a delay when the node is full."""
        ...


class Send(msgspec.Struct, frozen=True, gc=False):
    """Write this frame."""

    response: ConnectResponse


class SendEntry(msgspec.Struct, frozen=True, gc=False):
    """Write this notification of a replay."""

    notification: bytes
    state: int


class SendHeld(msgspec.Struct, frozen=True, gc=False):
    """Write the frames that were held back, as they were offered."""

    frames: Sequence[object]


class SendPing(msgspec.Struct, frozen=True, gc=False):
    """Write a ping."""


class Register(msgspec.Struct, frozen=True, gc=False):
    """Tell presence, and then call `registered`."""


class Replay(msgspec.Struct, frozen=True, gc=False):
    """Read the inbox: call `begin_replay` when its turn comes.

    Attributes:
        for_cursor: nothing is missing, a newer cursor is all it is for: it may wait. Call `seek_checkpoint` before.
    """

    for_cursor: bool = False


class Round(msgspec.Struct, frozen=True, gc=False):
    """Assert the session in presence and compare the inbox's head."""


class Store(msgspec.Struct, frozen=True, gc=False):
    """Have marks stored; each of them is confirmed with `confirm(frame_number)`.

    Attributes:
        marks: what to store.
        frame_number: the client's frame they came in.
        source: the delivery process whose frames they answer; may be empty.
    """

    marks: Sequence[Mark]
    frame_number: int
    source: str


class ChangeTopics(msgspec.Struct, frozen=True, gc=False):
    """Have subscriptions begun or ended, in the order of these decisions, and then call `topics_changed`.

    Attributes:
        topic_ids: which.
        begin: subscribe; else unsubscribe.
        frame_number: the client's frame they came in.
    """

    topic_ids: Sequence[str]
    begin: bool
    frame_number: int


class Close(msgspec.Struct, frozen=True, gc=False):
    """End the session; nothing is written after it.

    Attributes:
        code: why.
        reason: name of an ErrorReason.
        delay: seconds that the client was told to wait before it connects again.
    """

    code: CloseCode
    reason: str
    delay: float = 0.0


Decision: TypeAlias = Send | SendEntry | SendHeld | SendPing | Register | Replay | Round | Store | ChangeTopics | Close
Decisions: TypeAlias = Sequence[Decision]
Verify: TypeAlias = Callable[[str], Identity]

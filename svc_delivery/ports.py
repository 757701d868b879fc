"""What delivery needs from outside: the inbox, the follow-ups, and a way to tell other sessions of a change.

A notification is named by its recipient's key (escaped "tenant/recipient") and its id of sixteen bytes; the id's last
bit says "high priority", so the id alone finds the row. Times and stamps are microseconds since the epoch.

Must not hold rules: what a state means and what comes next is in `core`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

import msgspec

from heliograph.gateway.v1 import gateway_service_pb2
from heliograph.type.v1 import envelope_pb2
from svc_delivery.ports_dead_letters import DeadLetterRecord

# ---------------------------------------------------------------- storage: values


class RowKey(msgspec.Struct, frozen=True, gc=False):
    """Names one notification of one recipient."""

    recipient_key: str
    notification_id: bytes


class RowWrite(msgspec.Struct, frozen=True, gc=False):
    """One notification for one inbox; many of them share one `content` object."""

    recipient_key: str
    notification_id: bytes
    revision: int
    category: str
    content: bytes
    expire_us: int | None = None


class DecisionWrite(msgspec.Struct, frozen=True, gc=False):
    """Why recipients of one event get nothing: one record a page of recipients."""

    tenant_id: str
    event_id: bytes
    suppress_reason: int
    recipient_ids: tuple[str, ...]
    decide_us: int


class FollowUpWrite(msgspec.Struct, frozen=True, gc=False):
    """A serialised `LaneRecord` that is to be read again, not before its time.

    Attributes:
        due_us: that time.
        record: the bytes.
        priority: the most urgent `Priority` in it.
        expire_us: everything in it is expired from then on; None where that never comes, or is not known.
    """

    due_us: int
    record: bytes
    priority: int = 0
    expire_us: int | None = None


class FollowUpRecord(msgspec.Struct, frozen=True, gc=False):
    """A follow-up as the store has it.

    Attributes:
        record_id: means something to the store only.
        due_us: see `FollowUpWrite`.
        record: the bytes.
        expire_us: see `FollowUpWrite`.
        origin: where it lies, for people; empty where the record id says it.
    """

    record_id: int
    due_us: int
    record: bytes
    expire_us: int | None = None
    origin: str = ""

    def is_expired(self, now_us: int) -> bool:
        """Says whether everything in it is expired: it asks nothing of anybody any more."""
        return self.expire_us is not None and self.expire_us <= now_us


class AckLevel(IntEnum):
    """How far devices have acked a row; READ implies SEEN."""

    NONE = 0
    RECEIVED = 1
    FOREGROUND = 2
    SEEN = 3


class MarkWrite(msgspec.Struct, frozen=True, gc=False):
    """What one mark does to rows of one inbox.

    Attributes:
        recipient_key: whose inbox.
        notification_ids: which rows.
        ack: rows are lifted to at least this level.
        read: True or False sets the cell; None leaves it.
        hide: takes the rows out of the window, for good.
        vouched: rows that are not there keep the mark for later.
    """

    recipient_key: str
    notification_ids: Sequence[bytes]
    ack: AckLevel = AckLevel.NONE
    read: bool | None = None
    hide: bool = False
    vouched: bool = False


class RowState(msgspec.Struct, frozen=True, gc=False):
    """The cells of a row, without its content.

    Attributes:
        notification_id: which notification.
        revision: of the content that is stored, from 1.
        stamp: of the latest write or visible mark.
        mark_stamp: of the latest visible mark, 0 without one.
        ack: highest level acked, an `AckLevel`.
        read: whether it is marked as read.
        hidden: whether it was taken out of the list.
        expire_us: it leaves the window then, at the latest when the inbox's time is over.
    """

    notification_id: bytes
    revision: int
    stamp: int
    mark_stamp: int
    ack: int
    read: bool
    hidden: bool
    expire_us: int


class MarkOutcome(msgspec.Struct, frozen=True, gc=False):
    """What became of one mark.

    Attributes:
        unknown_ids: rows that are not in the inbox, in the mark's order; a store need not look for those of a mark
            that is vouched for and only acks.
        changed: rows whose read or hidden cell has another value now, as they are now.
        refused: why a store that works does not take the marks of this recipient, one line; empty when they are
            stored. Of a refused mark some rows may have been stored.
    """

    unknown_ids: Sequence[bytes] = ()
    changed: Sequence[RowState] = ()
    refused: str = ""


class Window(msgspec.Struct, frozen=True, gc=False):
    """One inbox as one read saw it.

    Attributes:
        head: largest stamp in the inbox, 0 for one that never had a row.
        rows: the window: newest 100 visible of high priority and newest 100 visible of the rest; newest id first.
        gone: hidden and expired rows that the read passed on its way; newest id first.
    """

    head: int
    rows: Sequence[RowState]
    gone: Sequence[RowState]


class Body(msgspec.Struct, frozen=True, gc=False):
    """The stored content of a row and its revision."""

    revision: int
    content: bytes


class RowsRefused(Exception):
    """A healthy store did not take some rows of a write: they alone count as not stored, and may never be.

    Attributes:
        reasons: index of each refused row → why, in one line for people.
        unknown: those of them that may be stored all the same, or be yet, under a stamp that does not count.
    """

    def __init__(self, reasons: Mapping[int, str], unknown: Iterable[int] = ()) -> None:
        super().__init__(f"{len(reasons)} rows are refused, among them: {next(iter(reasons.values()), '')}")
        self.reasons = reasons
        self.unknown = frozenset(unknown)


# ---------------------------------------------------------------- storage: ports


class Inbox(Protocol):
    """Rows, marks and heads of every recipient.

    Writes commute: any process may write any row at any time, repeatedly, and the outcome does not depend on the order.
    Every read sees all writes that returned before it began. Rows are kept for 90 days. Everything raises
    `mesh.errors.Unavailable` when the store cannot be asked; a write that raises it may or may not have happened.
    """

    @property
    def epoch(self) -> str:
        """Region and incarnation of the store: another file or keyspace, another epoch. Known once it is open."""
        ...

    async def write(
        self,
        rows: Sequence[RowWrite],
        *,
        stamp: int,
        follow_up: FollowUpWrite | None = None,
        decisions: Sequence[DecisionWrite] = (),
    ) -> None:
        """Stores rows, then the follow-up, and the decisions; returns when all of it is durable.

        A row that is there keeps its cells; its content, category and expiry are replaced by a higher revision only,
        whichever comes first. Row stamp and inbox head become the larger of theirs and `stamp`. A row below what
        trimming removed stays away. A decision that is there is not stored twice; a follow-up is.

        A row that the store refuses, or whose partition does not answer, harms no other: the others are stored, the
        follow-up and the decisions are not, and RowsRefused names it. A store that is down as a whole is Unavailable.

        Whether the answer came early enough to count is for the caller to say (see `writes`).
        """
        ...

    async def mark(self, marks: Sequence[MarkWrite], *, stamp: int, again: bool = False) -> Sequence[MarkOutcome]:
        """Stores marks, in order, and returns an outcome for each once they are durable.

        `ack` only rises, `hide` is final, and of two values for `read` the one with the larger stamp stays (at the same
        stamp the later one). A change of `read` or `hidden` lifts row stamp, mark stamp and head to `stamp`; an ack and
        a mark that changes nothing leave them alone. A vouched mark of a row that is not there waits for it and then
        counts; others are dropped. Such a row is never shown, and stays unknown.

        `again` says that an answer to the same marks came too late to count: then stamps and head are lifted although
        the cells have these values already, and the rows are told as changed once more.
        """
        ...

    async def window(self, recipient_key: str, now_us: int) -> Window:
        """Returns the window without content; also removes rows beyond 200 of a class that no window needs.

        Shown are rows with content that are not hidden and expire after `now_us`. The head is never behind a row shown.
        """
        ...

    async def bodies(self, keys: Sequence[RowKey]) -> Mapping[RowKey, Body]:
        """Returns the stored content of these rows, hidden and expired ones included, without those not there."""
        ...

    async def heads(self, recipient_keys: Sequence[str]) -> Sequence[int]:
        """Returns the head of each inbox, in order; 0 for one that never had a row."""
        ...

    async def states(self, keys: Sequence[RowKey]) -> Sequence[RowState | None]:
        """Returns the cells of each row, in order; None for one that is not there (any more)."""
        ...

    async def decisions(self, tenant_id: str, event_id: bytes) -> Sequence[DecisionWrite]:
        """Returns the decision records of an event, oldest first."""
        ...

    async def sweep(self, now_us: int, limit: int) -> int:
        """Looks at up to `limit` of the oldest rows and as many decisions; removes those whose time is over.

        Rows have 90 days after their last change, decisions 30. Returns how many were removed; 0 means that there is
        nothing more to do for now. A store that forgets by itself always says 0; its rows have 90 days from the time in
        their id, whatever happens to them.
        """
        ...


class FollowUps(Protocol):
    """Follow-ups by due time. A record is there until it is finished; nothing else removes it."""

    async def due(self, now_us: int, limit: int) -> Sequence[FollowUpRecord]:
        """Returns records whose time has come; they stay until `finish`.

        First those that are expired as a whole, then high before normal before bulk, of each the longest due first.
        A store that takes records up one by one may return what it has taken up so far.
        """
        ...

    async def finish(
        self,
        record_ids: Sequence[int],
        again: Sequence[FollowUpWrite] = (),
        letters: Sequence[DeadLetterRecord] = (),
    ) -> None:
        """Removes records, appends what is left of them and buries what is given up: all of it or nothing.

        Records that are gone are no error; a letter that is there already stays as it is.
        """
        ...

    async def next_due(self) -> int | None:
        """Returns the earliest due time, or None when there is no record."""
        ...

    async def containing(self, part: bytes, limit: int) -> Sequence[FollowUpRecord]:
        """Returns records whose bytes contain these, the earliest due first. Slow: for operators only."""
        ...

    async def backlog(self, now_us: int) -> int:
        """Returns how many records are due."""
        ...


# ---------------------------------------------------------------- other sessions


class ChangeSink(Protocol):
    """Where changes go that the recipient's other sessions should hear of."""

    def offer(self, changes: Sequence[gateway_service_pb2.Change]) -> None:
        """Takes durable changes; never waits, and may drop them: replays carry them too."""
        ...


# ---------------------------------------------------------------- peers


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """A gateway node with a live lease."""

    node_id: str
    epoch: int
    address: str


class Presence(Protocol):
    """Where recipients are. Raises `mesh.errors.Failure` when it does not answer, which is not the same as absent."""

    async def look_up(self, recipient_keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Returns the node ids of each recipient that is connected; who is missing is nowhere. 1 to 5,000 keys."""
        ...

    async def nodes(self) -> Sequence[NodeAddress]:
        """Returns every node with a live lease."""
        ...


class Nodes(Protocol):
    """The links to gateway nodes. Nothing here waits. False means "not offered": the row stays, a follow-up decides."""

    def offer(self, node_id: str, envelope: envelope_pb2.Envelope, recipient_keys: Sequence[str]) -> bool:
        """Queues a notification for recipients on a node."""
        ...

    def change(self, node_id: str, change: gateway_service_pb2.Change) -> bool:
        """Queues a change of state for sessions on a node."""
        ...

    def missed(self) -> None:
        """Takes note that something was offered to nobody; sessions of all nodes look once presence answers again."""
        ...

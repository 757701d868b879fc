"""A server's end of one device's sessions, in memory and honest: rows with stamps, replays, confirmations.

Frames lie in two queues until they are delivered; a break loses what lies there. It must not share the client's code.
"""

from __future__ import annotations

import zlib
from collections import deque
from copy import copy

import msgspec

from heliograph.gateway.v1.client_frames_pb2 import (
    Changed,
    ClientMark,
    Confirmed,
    ConnectRequest,
    ConnectResponse,
    Hello,
    Notify,
    Replayed,
    Welcome,
)
from heliograph.type.v1.notification_pb2 import (
    Content,
    MarkKind,
    Notification,
    NotificationRef,
    NotificationState,
    Priority,
)
from tests.support.scripted_gateway import id_of

# How far a cursor lies before the newest change, in changes: rows may become visible late.
_OVERLAP = 3

_ACK_LEVELS = {
    MarkKind.MARK_KIND_RECEIVED: 1,
    MarkKind.MARK_KIND_FOREGROUND: 2,
    MarkKind.MARK_KIND_SEEN: 3,
    MarkKind.MARK_KIND_READ: 3,
}


class FarRow(msgspec.Struct):
    """One row of the inbox."""

    revision: int
    stamp: int
    mark_stamp: int = 0
    ack: int = 0
    read: bool = False
    hidden: bool = False

    @property
    def state(self) -> NotificationState.ValueType:
        """What is shown."""
        if self.hidden:
            return NotificationState.NOTIFICATION_STATE_HIDDEN
        if self.read:
            return NotificationState.NOTIFICATION_STATE_READ
        if self.ack >= 3:
            return NotificationState.NOTIFICATION_STATE_SEEN
        return NotificationState.NOTIFICATION_STATE_RECEIVED if self.ack else NotificationState.NOTIFICATION_STATE_NEW


class FarEnd:
    """The server.

    Attributes:
        rows: by id.
        to_client: frames on their way to the client.
        to_server: frames on their way here.
    """

    def __init__(self) -> None:
        self.rows: dict[str, FarRow] = {}
        self.to_client: deque[ConnectResponse] = deque()
        self.to_server: deque[ConnectRequest] = deque()
        # Above the first cursor, which must be no number that a later row gets.
        self._stamp = 1
        self._live = False
        self._given: dict[str, int] = {}
        # What a replay read, and the ids offered since.
        self._read: dict[str, FarRow] | None = None
        self._read_stamp = 0
        self._held: list[str] = []

    # ------------------------------------------------------------ what happens here

    def publish(self, number: int, revision: int) -> None:
        """Stores a row and offers it, if a session is open."""
        id_ = id_of(number)
        row = self.rows.get(id_)
        if row is not None and row.revision >= revision:
            return
        if row is None:
            self.rows[id_] = FarRow(revision, self._next_stamp())
        else:
            row.revision, row.stamp = revision, self._next_stamp()
        self._offer(id_)

    def mark_elsewhere(self, number: int, kind: MarkKind.ValueType) -> None:
        """Another device says something; this one is told, if a session is open."""
        row = self.rows.get(id_of(number))
        if row is None:
            return
        self._store(id_of(number), kind)
        if self._read is not None:
            self._held.append(id_of(number))
        elif self._live:
            self._tell(id_of(number), row)

    def begin_reading(self) -> None:
        """Reads what is new since the client's cursor, at hello or in the middle of a session."""
        if self._live and self._read is None:
            self._read = {id_: copy(row) for id_, row in self.rows.items()}
            self._read_stamp = self._stamp

    def finish_reading(self) -> None:
        """Sends what was read, and then what was held back meanwhile."""
        if self._read is not None:
            self._replay(self._read)
            self._read = None
            held, self._held = self._held, []
            for id_ in held:
                self._offer(id_)

    def lose(self) -> None:
        """The connection breaks."""
        self.to_client.clear()
        self.to_server.clear()
        self._live = False
        self._read = None
        self._held.clear()

    def take(self) -> None:
        """Takes the next frame of the client's."""
        frame = self.to_server.popleft()
        match frame.WhichOneof("frame"):
            case "hello":
                self._hello(frame.hello)
            case "mark":
                self._mark(frame.mark, frame.frame_number)
            case _:
                pass

    # ------------------------------------------------------------ sessions

    def _hello(self, hello: Hello) -> None:
        self._live = True
        self._cursor = int(hello.cursor or 0)
        self._reload = not hello.cursor
        self._given = {} if self._reload else {ref.notification_id: ref.revision for ref in hello.received_refs}
        self._allowed = {ref.notification_id for ref in hello.received_refs}
        welcome = Welcome(session_id="s")
        welcome.heartbeat_interval.seconds = 120
        self.to_client.append(ConnectResponse(welcome=welcome))
        for mark in hello.unconfirmed_marks:
            for ref in mark.refs:
                self._store(ref.notification_id, mark.kind)
        if hello.unconfirmed_marks:
            self.to_client.append(ConnectResponse(confirmed=Confirmed(frame_number=1)))
        self.begin_reading()

    def _replay(self, rows: dict[str, FarRow]) -> None:
        for id_, row in sorted(rows.items(), key=lambda item: item[1].stamp):
            if row.stamp > self._cursor and self._given.get(id_, 0) < row.revision:
                self._give(id_, row, state=row.state)
            elif row.stamp > self._cursor and row.mark_stamp > self._cursor:
                self._tell(id_, row)
        self._cursor = max(self._cursor, self._read_stamp - _OVERLAP, 1)
        window = visible(rows)
        lines = "".join([f"{id_} {rows[id_].revision} {int(rows[id_].read)}\n" for id_ in window])
        value = zlib.crc32(lines.encode())
        replayed = Replayed(
            cursor=str(self._cursor),
            reload=self._reload,
            item_count=len(window),
            checksum=value - (1 << 32) if value >= 1 << 31 else value,
        )
        self._reload = False
        self.to_client.append(ConnectResponse(replayed=replayed))

    def _offer(self, id_: str) -> None:
        row = self.rows[id_]
        if self._read is not None:
            self._held.append(id_)
        elif self._live and self._given.get(id_, 0) < row.revision:
            self._give(id_, row, state=NotificationState.NOTIFICATION_STATE_UNSPECIFIED)
        elif self._live and row.mark_stamp:
            self._tell(id_, row)

    def _give(self, id_: str, row: FarRow, *, state: NotificationState.ValueType) -> None:
        self._given[id_] = row.revision
        self._allowed.add(id_)
        message = Notification(
            notification_id=id_,
            revision=row.revision,
            priority=Priority.PRIORITY_NORMAL,
            content=Content(title=f"{id_} {row.revision}"),
        )
        self.to_client.append(ConnectResponse(notify=Notify(notification=message, state=state)))

    def _tell(self, id_: str, row: FarRow) -> None:
        changed = Changed(refs=[NotificationRef(notification_id=id_)], state=row.state)
        self.to_client.append(ConnectResponse(changed=changed))

    def _mark(self, mark: ClientMark, frame_number: int) -> None:
        ids = [ref.notification_id for ref in mark.refs]
        assert ids
        assert set(ids) <= self._allowed, "the client marks what this session does not know"
        for id_ in ids:
            self._store(id_, mark.kind)
        self.to_client.append(ConnectResponse(confirmed=Confirmed(frame_number=frame_number)))

    def _store(self, id_: str, kind: MarkKind.ValueType) -> None:
        row = self.rows[id_]
        row.ack = max(row.ack, _ACK_LEVELS.get(kind, 0))
        before = (row.read, row.hidden)
        row.read = kind == MarkKind.MARK_KIND_READ or (row.read and kind != MarkKind.MARK_KIND_UNREAD)
        row.hidden = row.hidden or kind == MarkKind.MARK_KIND_HIDDEN
        if (row.read, row.hidden) != before:
            row.stamp = row.mark_stamp = self._next_stamp()

    # ------------------------------------------------------------ what is true

    def window(self) -> list[str]:
        """What the inbox lists."""
        return visible(self.rows)

    def unread(self) -> int:
        """How many of them are not read."""
        return sum(not self.rows[id_].read for id_ in self.window())

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp


def visible(rows: dict[str, FarRow]) -> list[str]:
    """The ids that an inbox of these rows lists."""
    return sorted(id_ for id_, row in rows.items() if not row.hidden)

"""What a device keeps between connections: cursor, copy, ids it has, marks that are not confirmed.

Pure: times are arguments. Must not know frames or connections; `session.py` decides what is kept when.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

import msgspec

from heliograph.type.v1.notification_pb2 import NotificationRef
from heliograph_client.inbox_copy import InboxCopy, Row
from heliograph_client.marks import PendingMarks, Said
from mesh.errors import FailedPrecondition

if TYPE_CHECKING:
    from heliograph.type.v1.notification_pb2 import MarkKind

# A hello may name so many received ids.
LARGEST_REFS = 500
# A cursor lies a few seconds before its checkpoint: what came since a minute before must be named.
OVERLAP_S = 60.0
# Known ids, so that none is shown twice; about a megabyte.
_KNOWN_IDS = 10_000
_SAVED_IDS = 1_000
_VERSION = 1


class _Known(msgspec.Struct, frozen=True, gc=False):
    revision: int
    time: float


class _SavedRow(msgspec.Struct, frozen=True, array_like=True):
    id: str
    revision: int
    high: bool
    state: int
    expire_time: float


class _SavedMark(msgspec.Struct, frozen=True, array_like=True):
    id: str
    revision: int
    kind: int
    time: float


class _Saved(msgspec.Struct, frozen=True):
    version: int
    owner: str
    device_id: str
    cursor: str
    rows: list[_SavedRow]
    known: list[tuple[str, int]]
    marks: list[_SavedMark]


class Resume:
    """The memory of one device of one recipient."""

    def __init__(self, device_id: str) -> None:
        self.device_id = device_id
        self.forget("")

    def forget(self, owner: str) -> None:
        """Begins anew, for this owner."""
        self.owner = owner
        self.cursor = ""
        self.copy = InboxCopy()
        self.marks = PendingMarks()
        # In the order of receiving.
        self._known: dict[str, _Known] = {}
        self._checkpoint_time = float("-inf")

    # ------------------------------------------------------------ ids

    def knows(self, id_: str) -> bool:
        """Tells whether the device has, or had, a notification."""
        return id_ in self._known or id_ in self.copy.rows

    def remember(self, id_: str, revision: int, now: float) -> bool:
        """Notes that a notification came; False when this revision, or a later one, had come before."""
        known = self._known.get(id_)
        row = self.copy.rows.get(id_)
        if known is not None and known.revision >= revision:
            return False
        if known is None and row is not None and row.revision >= revision:
            return False
        self._known.pop(id_, None)
        self._known[id_] = _Known(revision, now)
        if len(self._known) > _KNOWN_IDS:
            del self._known[next(iter(self._known))]
        return True

    def checkpoint(self, cursor: str, now: float) -> None:
        """A replay has ended: the only source of cursors."""
        self.cursor = cursor
        self._checkpoint_time = now

    def received_refs(self) -> list[NotificationRef]:
        """Returns what a hello names, the newest last: what the cursor may not cover, then as much of the copy as fits.

        Only ids that are named can be marked in a session, hence the copy.
        """
        recent: dict[str, int] = {}
        for id_, known in reversed(self._known.items()):
            if known.time < self._checkpoint_time - OVERLAP_S or len(recent) == LARGEST_REFS:
                break
            recent[id_] = known.revision
        others = [id_ for id_ in sorted(self.copy.rows, reverse=True) if id_ not in recent]
        for id_ in others[: LARGEST_REFS - len(recent)]:
            recent[id_] = self.copy.rows[id_].revision
        return [NotificationRef(notification_id=id_, revision=recent[id_]) for id_ in reversed(recent)]

    # ------------------------------------------------------------ saving

    def dump(self, without: Collection[str]) -> bytes:
        """Returns all of it in a form that `load` reads.

        Args:
            without: ids that arrived and were not handed to the application yet: they must come again.
        """
        rows = [
            _SavedRow(id_, row.revision, row.high, row.state, row.expire_time)
            for id_, row in self.copy.rows.items()
            if id_ not in without
        ]
        known = [(id_, known.revision) for id_, known in self._known.items() if id_ not in without]
        marks = [_SavedMark(said.id, said.revision, said.kind, said.time) for said in self.marks.all()]
        saved = _Saved(_VERSION, self.owner, self.device_id, self.cursor, rows, known[-_SAVED_IDS:], marks)
        return msgspec.json.encode(saved)

    def load(self, state: bytes, now: float) -> None:
        """Takes what was saved; that of another device is left alone.

        Raises:
            FailedPrecondition: it cannot be read.
        """
        try:
            saved = msgspec.json.decode(state, type=_Saved)
        except msgspec.MsgspecError as error:
            text = f"what was saved to resume from cannot be read ({error}); remove it to begin anew"
            raise FailedPrecondition(text, reason="RECORD_UNDECODABLE") from None
        if saved.version != _VERSION:
            text = f"what was saved to resume from has version {saved.version}, this is {_VERSION}; remove it"
            raise FailedPrecondition(text, reason="VERSION_UNSUPPORTED")
        if saved.device_id != self.device_id:
            return
        self.forget(saved.owner)
        self.cursor = saved.cursor
        self.copy.rows = {row.id: Row(row.revision, row.high, row.state, row.expire_time) for row in saved.rows}
        self._known = {id_: _Known(revision, now) for id_, revision in saved.known}
        for mark in saved.marks:
            self.marks.say(Said(mark.id, mark.revision, cast("MarkKind.ValueType", mark.kind), mark.time))

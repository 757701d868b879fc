"""Which notifications a session's client has: what it was given and what it named itself. Pure.

Kept in full are those it has not acked and those that a replay must name because the cursor does not cover them; of
the others a hash stays, so that they can still be marked. All of it is bounded. Must not know frames or states.
Steps 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from array import array

import msgspec

from heliograph.type.v1.notification_pb2 import NotificationRef

# May be marked; nothing says that the client has it.
_UNKNOWN_REVISION = -1


class _Entry(msgspec.Struct, gc=False):
    revision: int
    time: float
    acked: bool
    source: str


class GivenIds(msgspec.Struct, gc=False, eq=False):
    """The ids of one session; made when the first one comes, so an idle session pays nothing."""

    entries: dict[str, _Entry] = msgspec.field(default_factory=dict)
    # Hashes of ids that are not in `entries` any more; they are salted per process, so nobody can aim at one.
    older: array[int] = msgspec.field(default_factory=lambda: array("q"))
    # The cursor covers what was given up to this time.
    covered: float = float("-inf")

    def add(self, id_: str, revision: int, source: str, now: float, *, acked: bool) -> None:
        """Remembers that the client has, or is just given, this revision."""
        # Taken out first: the dictionary's order is the order of giving.
        self.entries.pop(id_, None)
        self.entries[id_] = _Entry(revision, now, acked, source)

    def allow(self, id_: str, now: float) -> None:
        """Lets the client mark an id that it may not have."""
        self.entries[id_] = _Entry(_UNKNOWN_REVISION, now, True, "")

    def has(self, id_: str, revision: int) -> bool:
        """Tells whether the client has this revision or a later one."""
        entry = self.entries.get(id_)
        return entry is not None and entry.revision >= revision

    def allows(self, id_: str) -> bool:
        """Tells whether the client may mark this id."""
        return id_ in self.entries or hash(id_) in self.older

    def ack(self, id_: str) -> str:
        """Notes an ack; returns the delivery process that sent the frame, or ""."""
        entry = self.entries.get(id_)
        if entry is None:
            return ""
        entry.acked = True
        if entry.time <= self.covered:
            self._age([id_])
        return entry.source

    def unacked(self) -> list[str]:
        """Returns the ids that were given and not acked, oldest first."""
        return [id_ for id_, entry in self.entries.items() if not entry.acked]

    def newest(self, count: int) -> list[NotificationRef]:
        """Returns the newest ids with their revisions: what a replay need not bring again."""
        return [
            NotificationRef(notification_id=id_, revision=entry.revision)
            for id_, entry in self.entries.items()
            if entry.revision != _UNKNOWN_REVISION
        ][-count:]

    def forget_revisions(self) -> None:
        """The client starts anew: it may mark what it had, and is given all of it again."""
        for entry in self.entries.values():
            entry.revision = _UNKNOWN_REVISION

    def cover(self, time: float) -> None:
        """The cursor covers what was given up to a time; once acked, a hash of it is enough."""
        self.covered = time
        self._age([id_ for id_, entry in self.entries.items() if entry.acked and entry.time <= time])

    def trim(self, count: int, older_count: int) -> None:
        """Keeps at most so many ids in full and the hashes of so many more; the oldest go first."""
        if len(self.entries) > count:
            self._age(list(self.entries)[: len(self.entries) - count])
        del self.older[: max(0, len(self.older) - older_count)]

    def _age(self, ids: list[str]) -> None:
        for id_ in ids:
            del self.entries[id_]
            self.older.append(hash(id_))
        if not self.entries:
            # A dictionary that has been large stays large.
            self.entries = {}

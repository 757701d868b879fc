"""Acks and marks that are not confirmed yet: none is lost, however often the connection breaks.

A mark waits, then flies in a numbered frame, then is confirmed; when the connection breaks, what flew waits again.
For each notification the furthest ack and the last mark count, so the list is as long as there are notifications. Pure.
Must not know frames or connections.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TypeAlias

import msgspec

from heliograph.gateway.v1.client_frames_pb2 import ClientMark
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationRef
from mesh.errors import ResourceExhausted

LARGEST_REFS = 500
# Behind so many unconfirmed frames the rest waits and leaves together: a server keeps a few hundred of them at most.
FRAMES_IN_FLIGHT = 32
# What a hello may carry next to the received ids without growing past a frame's 64 KiB, in JSON.
HELLO_REFS = 200

_ACKS = frozenset({MarkKind.MARK_KIND_RECEIVED, MarkKind.MARK_KIND_FOREGROUND, MarkKind.MARK_KIND_SEEN})


class Said(msgspec.Struct, frozen=True, gc=False):
    """One ack or mark of one notification.

    Attributes:
        id: the notification.
        revision: 0: whichever is stored.
        kind: a `MarkKind`.
        time: when it was said, Unix seconds.
    """

    id: str
    revision: int
    kind: MarkKind.ValueType
    time: float

    @property
    def is_ack(self) -> bool:
        """It says how far the notification came, and changes nothing that is shown."""
        return self.kind in _ACKS


# Acks and marks of one notification do not replace each other.
_Key: TypeAlias = tuple[str, bool]


class PendingMarks:
    """The unconfirmed acks and marks of one device.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._waiting: dict[_Key, Said] = {}
        self._flying: dict[int, dict[_Key, Said]] = {}
        # Refused in this session for a reason that the next hello cures.
        self._held: dict[_Key, Said] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._held) + sum(len(frame) for frame in self._flying.values())

    @property
    def waiting(self) -> bool:
        """Something wants to be sent."""
        return bool(self._waiting)

    @property
    def may_leave(self) -> bool:
        """Something wants to be sent, and not too many frames are unconfirmed."""
        return bool(self._waiting) and len(self._flying) < FRAMES_IN_FLIGHT

    def say(self, said: Said, *, hold: bool = False) -> None:
        """Adds an ack or mark.

        Args:
            said: what is said.
            hold: it can be sent with the next hello only.

        Raises:
            ResourceExhausted: too many are unconfirmed.
        """
        if len(self) >= self._limit:
            text = f"{self._limit} acks and marks are unconfirmed"
            raise ResourceExhausted(text, reason="OVERLOADED", metadata={"limit": str(self._limit)})
        key = (said.id, said.is_ack)
        if said.is_ack:
            before = [kept for kept in self._all(key) if kept.kind >= said.kind and kept.revision >= said.revision]
            if before:
                return
        # Last in the order of sending, also when it replaces one that waited.
        self._held.pop(key, None)
        self._waiting.pop(key, None)
        (self._held if hold else self._waiting)[key] = said

    def mark_of(self, id_: str) -> MarkKind.ValueType | None:
        """Returns the kind of the last unconfirmed mark of a notification that changes what is shown."""
        marks = self._all((id_, False))
        return marks[-1].kind if marks else None

    def all(self) -> list[Said]:
        """Returns what is not confirmed, the oldest first."""
        flying = [said for _, frame in sorted(self._flying.items()) for said in frame.values()]
        return [*flying, *self._held.values(), *self._waiting.values()]

    # ------------------------------------------------------------ on the way

    def take(self, frame_number: int) -> ClientMark:
        """Returns the next mark to send, in this frame: all that waits and has the kind of the first; one must wait."""
        kind = next(iter(self._waiting.values())).kind
        # Marks of one notification that contradict each other are never in one list, so the kinds may be sorted out.
        batch = [said for said in self._waiting.values() if said.kind == kind][:LARGEST_REFS]
        self._fly(batch, frame_number)
        return _client_mark(kind, batch)

    def take_for_hello(self, frame_number: int) -> list[ClientMark]:
        """Returns what the hello names: marks before acks, and no more than fits; the rest follows in frames."""
        self._waiting.update(self._held)
        self._held.clear()
        chosen = sorted(self._waiting.values(), key=lambda said: said.is_ack)[:HELLO_REFS]
        self._fly(chosen, frame_number)
        kinds = dict.fromkeys(said.kind for said in chosen)
        return [_client_mark(kind, [said for said in chosen if said.kind == kind]) for kind in kinds]

    def _fly(self, batch: Sequence[Said], frame_number: int) -> None:
        for said in batch:
            key = (said.id, said.is_ack)
            del self._waiting[key]
            self._flying.setdefault(frame_number, {})[key] = said

    # ------------------------------------------------------------ the ends of the way

    def confirm(self, frame_number: int) -> list[Said]:
        """Every frame up to this one is durable; returns what was in them."""
        numbers = sorted(number for number in self._flying if number <= frame_number)
        return [said for number in numbers for said in self._flying.pop(number).values()]

    def refuse(self, frame_number: int) -> list[Said]:
        """The frame was not taken; returns what was in it and is no longer kept: `say_again` or `hold` it."""
        return list(self._flying.pop(frame_number, {}).values())

    def say_again(self, batch: Iterable[Said]) -> None:
        """Lets it be sent again, unless something later was said meanwhile."""
        for said in batch:
            key = (said.id, said.is_ack)
            if not self._all(key):
                self._waiting[key] = said

    def hold(self, batch: Iterable[Said]) -> None:
        """Keeps it for the next hello, unless something later was said meanwhile."""
        for said in batch:
            key = (said.id, said.is_ack)
            if not self._all(key):
                self._held[key] = said

    def hold_all_but(self, allowed: Container[str]) -> None:
        """Keeps for the next hello what waits and may not be sent in this session."""
        for key in [key for key in self._waiting if key[0] not in allowed]:
            self._held[key] = self._waiting.pop(key)

    def lost(self) -> None:
        """The connection broke: whether the flying ones arrived is unknown, so they are sent again."""
        waiting, self._waiting = self._waiting, {}
        for _, frame in sorted(self._flying.items()):
            for key, said in frame.items():
                self._waiting.pop(key, None)
                self._waiting[key] = said
        self._flying.clear()
        for key, said in waiting.items():
            self._waiting.pop(key, None)
            self._waiting[key] = said

    def _all(self, key: _Key) -> list[Said]:
        found = [frame[key] for _, frame in sorted(self._flying.items()) if key in frame]
        found += [kept[key] for kept in (self._held, self._waiting) if key in kept]
        return found


def _client_mark(kind: MarkKind.ValueType, batch: Sequence[Said]) -> ClientMark:
    mark = ClientMark(
        kind=kind,
        refs=[NotificationRef(notification_id=said.id, revision=said.revision) for said in batch],
    )
    mark.mark_time.FromMilliseconds(int(max(said.time for said in batch) * 1000))
    return mark

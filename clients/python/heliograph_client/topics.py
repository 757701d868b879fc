"""Changes of a recipient's topics that are not confirmed yet: in their order, none lost when the connection breaks.

One is on the way at a time: the next may take back what the last one said. Pure. Must not know frames or connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec


class TopicChange(msgspec.Struct, frozen=True):
    """What was said about topics.

    Attributes:
        number: counts from 1, for whoever waits for it.
        topic_ids: which.
        begin: subscribe; else unsubscribe.
    """

    number: int
    topic_ids: tuple[str, ...]
    begin: bool


class PendingTopics:
    """The unconfirmed changes of one device."""

    def __init__(self) -> None:
        self._waiting: deque[TopicChange] = deque()
        self._flying: TopicChange | None = None
        self._flying_number = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting) + (self._flying is not None)

    @property
    def waiting(self) -> bool:
        """Something can be sent now."""
        return self._flying is None and bool(self._waiting)

    def say(self, topic_ids: Sequence[str], *, begin: bool) -> TopicChange:
        """Adds a change."""
        self._count += 1
        change = TopicChange(self._count, tuple(topic_ids), begin)
        self._waiting.append(change)
        return change

    def take(self, frame_number: int) -> TopicChange:
        """Returns the next change to send, in this frame; one must wait."""
        self._flying, self._flying_number = self._waiting.popleft(), frame_number
        return self._flying

    def confirm(self, frame_number: int) -> TopicChange | None:
        """Every frame up to this one is durable; returns the change that was in one of them."""
        return self._land() if self._flying_number <= frame_number else None

    def refuse(self, frame_number: int) -> TopicChange | None:
        """The frame was not taken; returns the change that was in it and is no longer kept, or None."""
        return self._land() if self._flying_number == frame_number else None

    def say_again(self, change: TopicChange) -> None:
        """Puts a change that was refused before all that came later."""
        self._waiting.appendleft(change)

    def forget(self, number: int) -> None:
        """Nobody waits for a change any more: it is not sent, unless it is on its way."""
        self._waiting = deque(change for change in self._waiting if change.number != number)

    def lost(self) -> None:
        """The connection broke: what was on its way is sent again, which is harmless."""
        change = self._land()
        if change is not None:
            self._waiting.appendleft(change)

    def _land(self) -> TopicChange | None:
        change, self._flying = self._flying, None
        return change

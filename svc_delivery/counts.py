"""The numbers of windows, remembered per inbox and head: a window read costs ten times what a row costs.

A remembered count holds while the head is the same and nothing of the window expires. Must not be asked once per
notification: those who write rows do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mesh.clock import Clock
from svc_delivery.ports import Inbox, Window
from svc_delivery.replay import Count, count

_MICROS: Final = 1_000_000


class Counts:
    """A bounded memory in front of the inbox."""

    def __init__(self, *, inbox: Inbox, clock: Clock, limit: int = 50_000) -> None:
        self._inbox = inbox
        self._clock = clock
        self._limit = limit
        self._known: dict[str, Count] = {}

    def now_us(self) -> int:
        """The wall clock, by which rows expire."""
        return round(self._clock.wall() * _MICROS)

    async def read(self, recipient_key: str) -> tuple[Window, Count]:
        """Reads a window, and counts it."""
        now_us = self.now_us()
        window = await self._inbox.window(recipient_key, now_us)
        counted = count(window, now_us)
        self._known.pop(recipient_key, None)
        if len(self._known) >= self._limit:
            del self._known[next(iter(self._known))]  # the longest not read
        self._known[recipient_key] = counted
        return window, counted

    async def known(self, recipient_key: str) -> Count | None:
        """Returns the remembered count when it still holds; asks the inbox for its head only."""
        counted = self._known.get(recipient_key)
        if counted is None or self.now_us() >= counted.end_us:
            return None
        (head,) = await self._inbox.heads([recipient_key])
        return counted if head == counted.head else None

    async def get(self, recipient_key: str) -> Count:
        """Returns the count of a window as it is now."""
        counted = await self.known(recipient_key)
        return counted if counted is not None else (await self.read(recipient_key))[1]

    async def get_all(self, recipient_keys: Sequence[str]) -> dict[str, Count]:
        """Returns the counts of several windows."""
        return {key: await self.get(key) for key in recipient_keys}

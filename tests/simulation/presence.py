"""A presence store that may lose its last reports and not know it, as a part of Redis does that failed over.

Leases live on and the incarnation is the same, so nobody is told: what is lost comes back with the slow rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from svc_presence.ports import Report, Session
from svc_presence.store.memory import MemoryStore

_REMEMBERED = 20


# A recipient's key and a device.
Place = tuple[str, str]


class Lost(msgspec.Struct, frozen=True):
    """What a store lost.

    Attributes:
        count: devices whose entries are others than before.
        stale: what stands instead of those that were there.
    """

    count: int
    stale: Mapping[Place, object]


class ForgetfulPresence(MemoryStore):
    """Implements `ports.PresenceStore` as the embedded store does."""

    def __init__(self, *, repeat_for: float) -> None:
        super().__init__(repeat_for=repeat_for)
        # What was there before each of the last reports that changed something; the entries themselves never change.
        self._before: deque[dict[str, dict[str, Any]]] = deque(maxlen=_REMEMBERED)

    async def report(
        self,
        node_id: str,
        epoch: int,
        *,
        joined: Sequence[Session],
        left: Sequence[Session],
        asserted: Sequence[Session],
        now: float,
    ) -> Report:
        """See the port."""
        before = {key: dict(devices) for key, devices in self._entries.items()}
        answer = await super().report(node_id, epoch, joined=joined, left=left, asserted=asserted, now=now)
        if before != self._entries:
            self._before.append(before)
        return answer

    def forget(self, count: int) -> Lost:
        """Loses the last reports, so many at most; returns what that changed."""
        now = _by_device(self._entries)
        for _ in range(min(count, len(self._before))):
            self._entries = self._before.pop()
        then = _by_device(self._entries)
        return Lost(
            sum(now.get(place) != then.get(place) for place in {*now, *then}),
            {place: then.get(place) for place, entry in now.items() if then.get(place) != entry},
        )

    def has_back(self, lost: Lost) -> bool:
        """Whether every device whose session was lost has one again."""
        now = _by_device(self._entries)
        return all(now.get(place) != entry for place, entry in lost.stale.items())


def _by_device(entries: dict[str, dict[str, Any]]) -> dict[Place, object]:
    return {(key, device): entry for key, devices in entries.items() for device, entry in devices.items()}

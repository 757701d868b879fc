"""What this process remembers of the last minutes: deliveries that need no further look.

A follow-up that is due asks here first, so in the usual case it costs no read of the store. Forgetting is always
safe: the row knows. Must not hold anything that is not in the store or in presence.
"""

from __future__ import annotations

Delivery = tuple[str, bytes]


class Settled:
    """A bounded memory of settled deliveries, in two generations.

    An entry is remembered for at least `keep` seconds and at most about twice as long, unless `limit` others came.
    """

    def __init__(self, *, keep: float, limit: int = 500_000) -> None:
        self._keep = keep
        self._limit = limit
        self._young: set[Delivery] = set()
        self._old: set[Delivery] = set()
        self._turned = 0.0

    def add(self, delivery: Delivery) -> None:
        """Remembers (recipient key, notification id) as acked, or as nobody there to offer it to."""
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, set()
        self._young.add(delivery)

    def __contains__(self, delivery: Delivery) -> bool:
        return delivery in self._young or delivery in self._old

    def turn(self, now: float) -> None:
        """Lets time pass; `now` is monotonic seconds. To be called about every second."""
        if now - self._turned >= self._keep:
            self._old, self._young = self._young, set()
            self._turned = now

"""Offers of a stream's batches in the order of the batches, though these become durable in any order. Pure.

A store may finish the second batch before the first; whoever is connected still gets events of one key in their order.
It must not wait: what is held goes with the batch that it was held for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from svc_delivery.intake import Offer


class Slot(msgspec.Struct):
    """The place of one batch; its offers once they may go."""

    offers: Sequence[Offer] | None = None


class InOrder:
    """The batches of one stream.

    Args:
        add: takes offers that may go live.
        most: so many finished batches are held at most; then order is given up for what is late.
    """

    def __init__(self, add: Callable[[Sequence[Offer]], None], *, most: int) -> None:
        self._add = add
        self._most = most
        self._slots: deque[Slot] = deque()

    def begin(self) -> Slot:
        """Takes a place behind all batches before it."""
        slot = Slot()
        self._slots.append(slot)
        return slot

    def finish(self, slot: Slot, offers: Sequence[Offer] = ()) -> None:
        """Lets a batch's offers go once those before it have; a batch that came to nothing has none."""
        slot.offers = offers
        while self._slots and self._slots[0].offers is not None:
            self._add(self._slots.popleft().offers or ())
        if sum(one.offers is not None for one in self._slots) > self._most:
            self.let_go()

    def let_go(self) -> None:
        """Lets everything go that is held, in order: the stream is over, or a batch does not end."""
        held = [one for one in self._slots if one.offers is not None]
        self._slots = deque(one for one in self._slots if one.offers is None)
        for one in held:
            self._add(one.offers or ())

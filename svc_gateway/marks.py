"""Marks on their way to be stored: kept until a delivery process confirms them, moved when its link is gone.

Each goes over the link its notification came by, else over any other. Pure: links are named, batches are values. Must
not know sessions. Step 7 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from heliograph.type.v1.notification_pb2 import Mark

Owner = TypeVar("Owner")

LARGEST_BATCH = 500
LARGEST_REFS = 5_000


class Waiting(msgspec.Struct, Generic[Owner], frozen=True, gc=False):
    """One mark that is not known to be durable.

    Attributes:
        mark: what is to be stored.
        owner: whose it is.
        frame_number: the client's frame.
    """

    mark: Mark
    owner: Owner
    frame_number: int


class _Lane(Generic[Owner]):
    """What goes over one link."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.queue: deque[Waiting[Owner]] = deque()
        self.sent: deque[tuple[int, Sequence[Waiting[Owner]]]] = deque()
        self.sequence = 0


class MarkLedger(Generic[Owner]):
    """All marks of this node that are not known to be durable; bounded.

    Attributes:
        count: how many there are.
        idle_since: since when there is no link; None while there is one.
    """

    def __init__(self, *, limit: int, now: float) -> None:
        self.count = 0
        self.idle_since: float | None = now
        self._limit = limit
        self._lanes: dict[str, _Lane[Owner]] = {}
        # What belongs to no link that is open.
        self._common: deque[Waiting[Owner]] = deque()

    def add(self, marks: Iterable[Mark], owner: Owner, frame_number: int, source: str) -> bool:
        """Takes a frame's marks, all or none; False when there is no room."""
        items = [Waiting(mark, owner, frame_number) for mark in marks]
        if self.count + len(items) > self._limit:
            return False
        self.count += len(items)
        lane = self._lanes.get(source)
        if lane is not None:
            lane.queue.extend(items)
            lane.wake()
        else:
            self._common.extend(items)
            self._wake_one()
        return True

    def attach(self, link: str, wake: Callable[[], None]) -> None:
        """A link is open; `wake` is called whenever something waits for it. An older one of that name is gone."""
        self._release(link)
        self._lanes[link] = _Lane(wake)
        self.idle_since = None
        if self._common:
            wake()

    def detach(self, link: str, wake: Callable[[], None], now: float) -> None:
        """The link that was attached with this `wake` is gone; what it had not confirmed goes elsewhere, first."""
        lane = self._lanes.get(link)
        if lane is None or lane.wake is not wake:
            return
        self._release(link)
        if not self._lanes:
            self.idle_since = now
        self._wake_one()

    def waiting(self, link: str) -> int:
        """Returns how many marks could be sent over a link now."""
        lane = self._lanes.get(link)
        return 0 if lane is None else len(lane.queue) + len(self._common)

    def outstanding(self, link: str) -> int:
        """Returns how many batches of a link are not confirmed."""
        lane = self._lanes.get(link)
        return 0 if lane is None else len(lane.sent)

    def next_batch(self, link: str) -> tuple[int, Sequence[Waiting[Owner]]] | None:
        """Returns number and marks of the next batch for a link; None when nothing waits."""
        lane = self._lanes.get(link)
        if lane is None:
            return None
        items = _take(lane.queue, self._common)
        if not items:
            return None
        lane.sequence += 1
        lane.sent.append((lane.sequence, items))
        return lane.sequence, items

    def stored(self, link: str, sequence: int) -> list[Waiting[Owner]]:
        """Every batch of a link up to a number is durable; returns their marks."""
        lane = self._lanes.get(link)
        done: list[Waiting[Owner]] = []
        while lane is not None and lane.sent and lane.sent[0][0] <= sequence:
            done.extend(lane.sent.popleft()[1])
        self.count -= len(done)
        return done

    def take(self) -> Sequence[Waiting[Owner]]:
        """Returns a batch to be stored without a link; end with `done` or `give_back`."""
        return _take(self._common, deque())

    def done(self, items: Sequence[Waiting[Owner]]) -> None:
        """What `take` returned is durable."""
        self.count -= len(items)

    def give_back(self, items: Sequence[Waiting[Owner]]) -> None:
        """What `take` returned could not be stored."""
        self._common.extendleft(reversed(items))
        self._wake_one()

    def _release(self, link: str) -> None:
        lane = self._lanes.pop(link, None)
        if lane is None:
            return
        left = [item for _, items in lane.sent for item in items]
        left.extend(lane.queue)
        self._common.extendleft(reversed(left))

    def _wake_one(self) -> None:
        lane = min(self._lanes.values(), key=lambda one: len(one.queue) + len(one.sent), default=None)
        if lane is not None and self._common:
            lane.wake()


def _take(first: deque[Waiting[Owner]], second: deque[Waiting[Owner]]) -> list[Waiting[Owner]]:
    items: list[Waiting[Owner]] = []
    refs = 0
    for queue in (first, second):
        while queue and len(items) < LARGEST_BATCH:
            refs += len(queue[0].mark.refs)
            if items and refs > LARGEST_REFS:
                return items
            items.append(queue.popleft())
    return items

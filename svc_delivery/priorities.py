"""A queue in which what is urgent overtakes what is not: high before normal before bulk, in order inside a priority.

Pure. Must not know what waits in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar

from heliograph.type.v1 import notification_pb2

T = TypeVar("T")

PLACES: Final = (0, 1, 2)

_PLACES: Final[Mapping[int, int]] = {notification_pb2.PRIORITY_HIGH: 0, notification_pb2.PRIORITY_BULK: 2}
# A priority of a later version, or none at all, waits with the usual case.
_USUAL: Final = 1


def place_of(priority: int) -> int:
    """Returns the place of a priority among `PLACES`, the most urgent first."""
    return _PLACES.get(priority, _USUAL)


class ByPriority(Generic[T]):
    """The queue."""

    def __init__(self) -> None:
        self._queues: tuple[deque[T], deque[T], deque[T]] = (deque(), deque(), deque())

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues)

    def __iter__(self) -> Iterator[T]:
        for queue in self._queues:
            yield from queue

    def append(self, priority: int, item: T) -> None:
        """Adds an item behind those of its priority."""
        self._queues[place_of(priority)].append(item)

    def first(self) -> T:
        """Returns what is next; IndexError when nothing is."""
        return self._next_queue()[0]

    def pop(self) -> T:
        """Takes what is next; IndexError when nothing is."""
        return self._next_queue().popleft()

    def clear(self) -> None:
        """Drops everything."""
        for queue in self._queues:
            queue.clear()

    def _next_queue(self) -> deque[T]:
        return self._queues[0] or self._queues[1] or self._queues[2]

"""Positions of lanes, and up to which of them a reader may commit. Pure."""

from __future__ import annotations

from collections import deque

_OFFSET_BITS = 48


def position_of(partition: int, offset: int) -> int:
    """Returns the position of a record: order, and what a commit covers, are matters of one partition."""
    return partition << _OFFSET_BITS | offset


def partition_of(position: int) -> int:
    """Returns the partition of a position; 0 in a lane that has no partitions."""
    return position >> _OFFSET_BITS


def offset_of(position: int) -> int:
    """Returns the place of a position within its partition."""
    return position & ((1 << _OFFSET_BITS) - 1)


class _Mark:
    """The low-water mark of one partition."""

    __slots__ = ("done", "last", "open", "point")

    def __init__(self, position: int) -> None:
        self.last = position
        self.open = deque([position])
        self.done: set[int] = set()
        self.point: int | None = None


class LowWater:
    """Up to where each partition may be committed when records finish in any order.

    That is the last position with none unfinished below it in its partition.
    """

    def __init__(self) -> None:
        self._marks: dict[int, _Mark] = {}
        self._kept = 0

    def add(self, position: int) -> None:
        """Notes a record that was read.

        One that is not above those before it in its partition says that the partition was away and came back: it begins
        anew, and what was open in it is open no more.
        """
        partition = partition_of(position)
        mark = self._marks.get(partition)
        if mark is not None and position > mark.last:
            mark.last = position
            mark.open.append(position)
        else:
            if mark is not None:
                self._kept -= len(mark.open)
            self._marks[partition] = _Mark(position)
        self._kept += 1

    def done(self, position: int) -> None:
        """Notes that a record is finished; saying it again, or of one that is not open, changes nothing."""
        mark = self._marks.get(partition_of(position))
        if mark is None or not mark.open or not mark.open[0] <= position <= mark.last:
            return
        mark.done.add(position)
        while mark.open and mark.open[0] in mark.done:
            mark.point = mark.open.popleft()
            mark.done.discard(mark.point)
            self._kept -= 1

    def commit_points(self) -> list[int]:
        """Returns one position for each partition up to which everything added is done; none where the first is not."""
        return [mark.point for mark in self._marks.values() if mark.point is not None]

    @property
    def kept(self) -> int:
        """How many records are at or above the first unfinished one of their partition, done or not."""
        return self._kept

    @property
    def unfinished(self) -> int:
        """How many records were added and are not done."""
        return self._kept - sum(len(mark.done) for mark in self._marks.values())

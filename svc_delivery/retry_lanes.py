"""Which retry lane a follow-up waits in, and what of the lanes is held in memory until its time has come.

Path steps 8 and 9. There is a lane for each delay, so due times rise with the position: what lies behind a record that
is far from due need not be read. What is due later than its lane's delay away is appended again, so that no record
keeps the positions behind it from being committed for long. Pure: time is an argument, no I/O.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from mesh.lanes import LowWater, Stored, offset_of, partition_of
from svc_delivery.ports import FollowUpRecord, FollowUpWrite
from svc_delivery.priorities import PLACES, place_of

_SECOND_US: Final = 1_000_000
# A record's due time, expiry and priority are its key, its value is the `LaneRecord` as it was given.
_KEY: Final = struct.Struct(">BBqq")
_VERSION: Final = 1
_NEVER: Final = -1
_ABOVE_ALL: Final = 1 << 80
_ID_BITS: Final = 2
# Read on when the head is due so soon: clocks differ, and what is read is held for no longer than that.
_AHEAD_US: Final = 2 * _SECOND_US
# What a record costs beside its bytes.
_OVERHEAD: Final = 500


class Delay(msgspec.Struct, frozen=True):
    """A retry lane: its name, and how long what is in it waits."""

    name: str
    delay_us: int


LANES: Final = (
    Delay("retry-10s", 10 * _SECOND_US),
    Delay("retry-1m", 60 * _SECOND_US),
    Delay("retry-10m", 600 * _SECOND_US),
)


def lane_for(left_us: int) -> int:
    """Returns the lane of what is due in so long: the largest delay not above it, else the first."""
    return max((index for index, lane in enumerate(LANES) if lane.delay_us <= left_us), default=0)


def record_id_of(lane: int, position: int) -> int:
    """Returns the record id of a place."""
    return position << _ID_BITS | lane


def place_of_record(record_id: int) -> tuple[int, int]:
    """Returns lane and position of a record id."""
    return record_id & ((1 << _ID_BITS) - 1), record_id >> _ID_BITS


def key_of(follow_up: FollowUpWrite) -> bytes:
    """Returns the key with which a follow-up is appended."""
    expire_us = _NEVER if follow_up.expire_us is None else follow_up.expire_us
    priority = follow_up.priority if 0 <= follow_up.priority <= 255 else 0
    return _KEY.pack(_VERSION, priority, follow_up.due_us, expire_us)


def read_stored(lane: int, stored: Stored) -> tuple[FollowUpRecord, int]:
    """Returns a record as it was read, and its priority; due at once when its key is none of ours."""
    due_us, expire_us, priority = micros(stored.append_time), _NEVER, 0
    if len(stored.key) == _KEY.size and stored.key[0] == _VERSION:
        _, priority, due_us, expire_us = _KEY.unpack(stored.key)
    position = stored.position
    record = FollowUpRecord(
        record_id=record_id_of(lane, position),
        due_us=due_us,
        record=stored.value,
        expire_us=None if expire_us == _NEVER else expire_us,
        origin=f"{LANES[lane].name}/{partition_of(position)}/{offset_of(position)}",
    )
    return record, priority


def micros(seconds: float) -> int:
    """Returns a time in microseconds."""
    return round(seconds * 1_000_000)


class Held(msgspec.Struct, frozen=True, gc=False):
    """A record in memory, the priority it was appended with, and when that was."""

    record: FollowUpRecord
    priority: int
    append_us: int

    @property
    def size(self) -> int:
        """What it costs."""
        return len(self.record.record) + _OVERHEAD

    def again(self) -> FollowUpWrite:
        """What is appended when it must wait on."""
        record = self.record
        return FollowUpWrite(record.due_us, record.record, self.priority, record.expire_us)


class _Lane:
    """What is held of one lane."""

    __slots__ = ("delay_us", "heads", "held_bytes", "held_count", "last", "marks", "order", "partitions")

    def __init__(self, delay_us: int) -> None:
        self.delay_us = delay_us
        self.held_count = 0
        self.held_bytes = 0
        self.partitions: frozenset[int] = frozenset()
        # partition -> the last position read, and when that record was appended
        self.last: dict[int, int] = {}
        self.heads: dict[int, int] = {}
        self.marks: dict[int, LowWater] = {}
        # Records by the time of their append; those that have gone are left out when their turn comes.
        self.order: deque[int] = deque()


class Waiting:
    """What was read of the retry lanes and is not finished, in the order in which it is looked at."""

    def __init__(self, *, most_records: int = 10_000, most_bytes: int = 32 * 1024 * 1024) -> None:
        """Makes an empty one.

        Args:
            most_records: held of one lane; then it is not read on.
            most_bytes: the same for what they cost; the last read may go a little beyond.
        """
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._lanes = [_Lane(lane.delay_us) for lane in LANES]
        self._held: dict[int, Held] = {}
        # By place of priority, (due, record id) in order; and (expiry, record id) of what expires.
        self._by_due: tuple[list[tuple[int, int]], ...] = tuple([] for _ in PLACES)
        self._by_expiry: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._held)

    # ------------------------------------------------------------ reading

    def wants(self, lane: int, now_us: int) -> int:
        """Returns how many records of a lane to read now: none when there is no room, or its head is far from due.

        What is due in less than ten seconds lies in the first lane behind what is due in ten: it has no such head.
        """
        state = self._lanes[lane]
        room = min(self._most_records - state.held_count, (self._most_bytes - state.held_bytes) >> 17)
        if room <= 0 and not self.is_full(lane):
            room = 1
        if lane > 0 and state.heads and state.heads.keys() >= state.partitions:
            oldest = min(state.heads.values())
            if oldest + state.delay_us > now_us + _AHEAD_US:
                return 0
        return max(0, room)

    def is_full(self, lane: int) -> bool:
        """Says whether there is no room for more of a lane."""
        state = self._lanes[lane]
        return state.held_count >= self._most_records or state.held_bytes >= self._most_bytes

    def add(self, lane: int, stored: Stored) -> None:
        """Takes up a record that was read.

        One that is not above those before it in its partition says that the partition was away: what is held of it is
        forgotten, it is all read again.
        """
        state = self._lanes[lane]
        partition = partition_of(stored.position)
        if stored.position <= state.last.get(partition, -1):
            self._forget(lane, {partition})
        record, priority = read_stored(lane, stored)
        held = Held(record, priority, micros(stored.append_time))
        state.last[partition] = stored.position
        state.heads[partition] = held.append_us
        state.marks.setdefault(partition, LowWater()).add(stored.position)
        state.held_count += 1
        state.held_bytes += held.size
        state.order.append(record.record_id)
        self._held[record.record_id] = held
        insort(self._by_due[place_of(priority)], (record.due_us, record.record_id))
        if record.expire_us is not None:
            insort(self._by_expiry, (record.expire_us, record.record_id))

    def keep_only(self, lane: int, partitions: frozenset[int]) -> None:
        """Forgets what is held of partitions that are another process's by now."""
        state = self._lanes[lane]
        if partitions != state.partitions:
            state.partitions = partitions
            self._forget(lane, state.last.keys() - partitions)

    def _forget(self, lane: int, partitions: set[int]) -> None:
        state = self._lanes[lane]
        for partition in partitions:
            for of_partition in (state.last, state.heads, state.marks):
                of_partition.pop(partition, None)
        left: deque[int] = deque()
        for record_id in state.order:
            if partition_of(place_of_record(record_id)[1]) in partitions:
                self._take_out(record_id)
            else:
                left.append(record_id)
        state.order = left

    # ------------------------------------------------------------ what is due

    def due(self, now_us: int, limit: int) -> list[FollowUpRecord]:
        """Returns what is due; the order is that of `FollowUps.due`."""
        found: list[FollowUpRecord] = []
        for expire_us, record_id in self._by_expiry:
            if expire_us > now_us or len(found) >= limit:
                break
            if (record := self._held[record_id].record).due_us <= now_us:
                found.append(record)
        for by_due in self._by_due:
            for due_us, record_id in by_due:
                if due_us > now_us or len(found) >= limit:
                    break
                if not (record := self._held[record_id].record).is_expired(now_us):
                    found.append(record)
        return found

    def due_count(self, now_us: int) -> int:
        """Returns how many records are due."""
        return sum(bisect_right(by_due, (now_us, _ABOVE_ALL)) for by_due in self._by_due)

    def next_due(self) -> int | None:
        """Returns the earliest due time; None when nothing is held."""
        return min((by_due[0][0] for by_due in self._by_due if by_due), default=None)

    def outstayed(self, now_us: int, limit: int) -> list[Held]:
        """Returns records whose lane's delay is over and that have as long or longer to go: they are appended again."""
        found: list[Held] = []
        for state in self._lanes:
            staying: list[int] = []
            while state.order and len(found) < limit:
                held = self._held.get(state.order[0])
                if held is not None and held.append_us + state.delay_us > now_us:
                    break
                record_id = state.order.popleft()
                if held is not None and held.record.due_us - now_us >= state.delay_us:
                    found.append(held)
                    staying.append(record_id)
            # Until they are finished they stay where they are: appending them may fail.
            state.order.extendleft(reversed(staying))
        return found

    def surplus(self, now_us: int, limit: int) -> list[Held]:
        """Returns what makes room in a backlog: less urgent records, due, which are appended again behind all others.

        So what is urgent is reached in a lane that is longer than memory. Each is set back once: it is appended then
        after it was due. While something urgent is at hand none is.
        """
        found: list[Held] = []
        urgent = self._by_due[0]
        if 2 * self.due_count(now_us) < self._most_records or (urgent and urgent[0][0] <= now_us):
            return found
        for by_due in self._by_due[:0:-1]:
            for due_us, record_id in by_due:
                if due_us > now_us or len(found) >= limit:
                    break
                held = self._held[record_id]
                if self.is_full(place_of_record(record_id)[0]) and held.append_us < due_us:
                    found.append(held)
        return found

    # ------------------------------------------------------------ finishing

    def finish(self, record_id: int) -> None:
        """Notes that a record is finished; harmless when it is not held."""
        if not self._take_out(record_id):
            return
        lane, position = place_of_record(record_id)
        if (mark := self._lanes[lane].marks.get(partition_of(position))) is not None:
            mark.done(position)

    def is_finished(self, record_id: int) -> bool:
        """Says whether a record was read here and is finished."""
        lane, position = place_of_record(record_id)
        last = self._lanes[lane].last.get(partition_of(position), -1)
        return position <= last and record_id not in self._held

    def commit_points(self, lane: int) -> list[int]:
        """Returns up to where each partition of a lane may be committed."""
        return [point for mark in self._lanes[lane].marks.values() for point in mark.commit_points()]

    def kept(self, lane: int) -> int:
        """Returns how many records of a lane were read and cannot be committed yet, finished or not."""
        return sum(mark.kept for mark in self._lanes[lane].marks.values())

    def _take_out(self, record_id: int) -> bool:
        held = self._held.pop(record_id, None)
        if held is None:
            return False
        record = held.record
        state = self._lanes[place_of_record(record_id)[0]]
        state.held_count -= 1
        state.held_bytes -= held.size
        _remove(self._by_due[place_of(held.priority)], (record.due_us, record_id))
        if record.expire_us is not None:
            _remove(self._by_expiry, (record.expire_us, record_id))
        return True


def _remove(ordered: list[tuple[int, int]], entry: tuple[int, int]) -> None:
    del ordered[bisect_left(ordered, entry)]


def by_lane(follow_ups: Sequence[FollowUpWrite], now_us: int) -> dict[int, list[FollowUpWrite]]:
    """Returns follow-ups by the lane that they are appended to."""
    found: dict[int, list[FollowUpWrite]] = {}
    for follow_up in follow_ups:
        found.setdefault(lane_for(follow_up.due_us - now_us), []).append(follow_up)
    return found

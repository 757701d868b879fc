"""Where follow-ups wait, and what of the lanes is held: examples, and a comparison with a plain list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.type.v1.notification_pb2 import PRIORITY_BULK, PRIORITY_HIGH, PRIORITY_NORMAL
from mesh.lanes import Stored, position_of
from svc_delivery.ports import FollowUpWrite
from svc_delivery.priorities import place_of
from svc_delivery.retry_lanes import (
    LANES,
    Held,
    Waiting,
    by_lane,
    key_of,
    lane_for,
    place_of_record,
    read_stored,
    record_id_of,
)

NOW_US = 1_700_000_000_000_000
S = 1_000_000
FIRST, MINUTE, TEN_MINUTES = range(3)


def stored(
    offset: int,
    due_s: float,
    *,
    partition: int = 0,
    append_s: float = 0.0,
    priority: int = PRIORITY_NORMAL,
    expire_s: float | None = None,
    record: bytes = b"record",
) -> Stored:
    """A record as a lane returns it; times are seconds from now."""
    expire_us = None if expire_s is None else NOW_US + round(expire_s * S)
    follow_up = FollowUpWrite(NOW_US + round(due_s * S), record, priority, expire_us)
    return Stored(position_of(partition, offset), key_of(follow_up), record, NOW_US / S + append_s)


def ids(waiting: Waiting, after_s: float, limit: int = 100) -> list[tuple[int, int]]:
    """Lane and position of what is due then."""
    return [place_of_record(record.record_id) for record in waiting.due(NOW_US + round(after_s * S), limit)]


def places(held: Sequence[Held]) -> list[tuple[int, int]]:
    """Lane and position of records."""
    return [place_of_record(one.record.record_id) for one in held]


def us(after_s: float) -> int:
    """A time in seconds from now."""
    return NOW_US + round(after_s * S)


@pytest.mark.parametrize(
    ("left_s", "name"),
    [
        (-500, "retry-10s"),
        (0, "retry-10s"),
        (9.9, "retry-10s"),
        (59.9, "retry-10s"),
        (60, "retry-1m"),
        (599, "retry-1m"),
        (600, "retry-10m"),
        (864_000, "retry-10m"),
    ],
)
def test_a_follow_up_waits_in_the_longest_lane_that_is_not_too_long(left_s: float, name: str) -> None:
    """What is due, or due at once, goes to the first; what is due in days begins with ten minutes."""
    assert LANES[lane_for(round(left_s * S))].name == name
    follow_up = FollowUpWrite(us(left_s), b"x")
    assert by_lane([follow_up], NOW_US) == {lane_for(round(left_s * S)): [follow_up]}


@given(
    st.integers(0, 2),
    st.integers(0, 4_000),
    st.integers(0, (1 << 48) - 1),
    st.integers(-(1 << 60), 1 << 60),
    st.none() | st.integers(0, 1 << 60),
    st.integers(0, 255),
    st.binary(),
)
def test_a_record_comes_back_as_it_was_appended(
    lane: int, partition: int, offset: int, due_us: int, expire_us: int | None, priority: int, record: bytes
) -> None:
    """Wherever it lies, and its record id names the place."""
    position = position_of(partition, offset)
    follow_up = FollowUpWrite(due_us, record, priority, expire_us)
    found, of_priority = read_stored(lane, Stored(position, key_of(follow_up), record, 1.0))
    assert (found.due_us, found.record, of_priority, found.expire_us) == (due_us, record, priority, expire_us)
    assert found.record_id == record_id_of(lane, position)
    assert place_of_record(found.record_id) == (lane, position)
    assert found.origin == f"{LANES[lane].name}/{partition}/{offset}"


def test_a_record_of_somebody_else_is_due_at_once() -> None:
    """Then the worker finds out what it is, or buries it."""
    for key in (b"", b"somebody's key", b"\x02" + key_of(FollowUpWrite(9, b""))[1:]):
        found, _ = read_stored(FIRST, Stored(7, key, b"bytes", 12.5))
        assert (found.due_us, found.expire_us, found.record) == (12_500_000, None, b"bytes")


@given(
    st.lists(
        st.tuples(
            st.sampled_from([PRIORITY_HIGH, PRIORITY_NORMAL, PRIORITY_BULK, 0]),
            st.integers(-20, 20),
            st.none() | st.integers(-20, 20),
            st.integers(0, 2),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.integers(-25, 25),
    st.integers(0, 12),
)
def test_what_is_due_comes_in_order(
    records: list[tuple[int, int, int | None, int, bool]], now_s: int, limit: int
) -> None:
    """Compared with sorting all of it: expired as a whole, then by urgency, of each the longest due first."""
    waiting = Waiting()
    left = []
    for offset, (priority, due_s, expire_s, lane, is_done) in enumerate(records):
        one = stored(offset, due_s, priority=priority, expire_s=expire_s)
        waiting.add(lane, one)
        record_id = record_id_of(lane, one.position)
        if is_done:
            waiting.finish(record_id)
            waiting.finish(record_id)
        else:
            left.append((priority, due_s, expire_s, record_id))
        assert waiting.is_finished(record_id) == is_done
    due = [one for one in left if one[1] <= now_s]
    over = sorted((one for one in due if one[2] is not None and one[2] <= now_s), key=lambda one: (one[2], one[3]))
    rest = sorted((one for one in due if one not in over), key=lambda one: (place_of(one[0]), one[1], one[3]))
    found = [record.record_id for record in waiting.due(us(now_s), limit)]
    assert found == [one[3] for one in (over + rest)[:limit]]
    assert waiting.due_count(us(now_s)) == len(due)
    assert waiting.next_due() == (us(min(one[1] for one in left)) if left else None)
    assert len(waiting) == len(left)


def test_a_lane_is_read_while_there_is_room() -> None:
    """For so many records and so many bytes; what is finished makes room."""
    waiting = Waiting(most_records=3, most_bytes=1 << 30)
    for offset in range(3):
        assert waiting.wants(FIRST, NOW_US) == 3 - offset
        waiting.add(FIRST, stored(offset, 10))
    assert (waiting.wants(FIRST, NOW_US), waiting.is_full(FIRST)) == (0, True)
    assert waiting.wants(MINUTE, NOW_US) == 3
    waiting.finish(record_id_of(FIRST, 1))
    assert waiting.wants(FIRST, NOW_US) == 1
    heavy = Waiting(most_records=1_000, most_bytes=1 << 20)
    assert 0 < heavy.wants(FIRST, NOW_US) < 1_000
    heavy.add(FIRST, stored(0, 10, record=bytes(1_000_000)))
    assert heavy.wants(FIRST, NOW_US) == 1
    heavy.add(FIRST, stored(1, 10, record=bytes(100_000)))
    assert (heavy.wants(FIRST, NOW_US), heavy.is_full(FIRST)) == (0, True)


def test_behind_a_head_that_is_far_from_due_nothing_is_read() -> None:
    """Not in the first lane, which takes what is due at once; and not before every partition's head is known."""
    waiting = Waiting()
    waiting.keep_only(MINUTE, frozenset({0, 1}))
    waiting.keep_only(FIRST, frozenset({0}))
    waiting.add(FIRST, stored(0, 10))
    waiting.add(MINUTE, stored(0, 60, partition=0))
    assert waiting.wants(FIRST, NOW_US) > 0
    assert waiting.wants(MINUTE, NOW_US) > 0
    waiting.add(MINUTE, stored(0, 80, partition=1, append_s=5.0))
    assert waiting.wants(MINUTE, NOW_US) == 0
    assert waiting.wants(MINUTE, us(57)) == 0
    assert waiting.wants(MINUTE, us(58)) > 0


def test_what_has_longer_to_wait_than_its_lane_moves_on() -> None:
    """Once the lane's delay is over and as much is left; until it is finished it is named again."""
    waiting = Waiting()
    for offset, due_s in enumerate([45, 19, 86_400, 20]):
        waiting.add(FIRST, stored(offset, due_s))
    waiting.add(TEN_MINUTES, stored(0, 86_400))
    assert waiting.outstayed(us(9.9), 100) == []
    assert places(waiting.outstayed(us(10), 100)) == [(FIRST, 0), (FIRST, 2), (FIRST, 3)]
    assert places(waiting.outstayed(us(10), 2)) == [(FIRST, 0), (FIRST, 2)]
    for held in waiting.outstayed(us(10), 100):
        assert held.again().due_us == held.record.due_us
        waiting.finish(held.record.record_id)
    assert waiting.outstayed(us(599), 100) == []
    assert places(waiting.outstayed(us(600), 100)) == [(TEN_MINUTES, 0)]
    assert ids(waiting, 19) == [(FIRST, 1)]


def test_a_partition_is_committed_up_to_its_first_unfinished_record() -> None:
    """Each by itself, in any order of finishing."""
    waiting = Waiting()
    for partition in (0, 1):
        for offset in range(5, 8):
            waiting.add(FIRST, stored(offset, 0, partition=partition))
    assert (waiting.commit_points(FIRST), waiting.kept(FIRST)) == ([], 6)
    for partition, offset in ((0, 6), (1, 5), (1, 6)):
        waiting.finish(record_id_of(FIRST, position_of(partition, offset)))
    assert waiting.commit_points(FIRST) == [position_of(1, 6)]
    waiting.finish(record_id_of(FIRST, position_of(0, 5)))
    assert sorted(waiting.commit_points(FIRST)) == [position_of(0, 6), position_of(1, 6)]
    assert (waiting.commit_points(MINUTE), waiting.kept(FIRST)) == ([], 2)


def test_a_partition_that_comes_back_begins_anew() -> None:
    """What is held of it is read again, nothing of it is held twice, and no old mark lets it be committed too far."""
    waiting = Waiting()
    for offset in range(3):
        waiting.add(FIRST, stored(offset, 50, partition=1))
        waiting.add(FIRST, stored(offset, 50, partition=0))
    waiting.finish(record_id_of(FIRST, position_of(1, 0)))
    waiting.add(FIRST, stored(1, 50, partition=1))
    assert len(waiting) == 4
    assert waiting.commit_points(FIRST) == []
    waiting.add(FIRST, stored(2, 50, partition=1))
    assert len(places(waiting.outstayed(us(10), 100))) == 5
    waiting.finish(record_id_of(FIRST, position_of(1, 1)))
    assert waiting.commit_points(FIRST) == [position_of(1, 1)]


def test_what_another_process_has_is_forgotten() -> None:
    """It is neither due here nor finished, and finishing it says nothing; when it comes back it is read again."""
    waiting = Waiting()
    waiting.keep_only(FIRST, frozenset({0, 1}))
    for partition in (0, 1):
        waiting.add(FIRST, stored(3, 0, partition=partition))
    waiting.add(MINUTE, stored(3, 0, partition=0))
    waiting.keep_only(FIRST, frozenset({1}))
    assert sorted(ids(waiting, 0)) == [(FIRST, position_of(1, 3)), (MINUTE, position_of(0, 3))]
    gone = record_id_of(FIRST, position_of(0, 3))
    waiting.finish(gone)
    assert (waiting.commit_points(FIRST), waiting.is_finished(gone)) == ([], False)
    waiting.keep_only(FIRST, frozenset({0, 1}))
    waiting.add(FIRST, stored(9, 0, partition=0))
    waiting.finish(record_id_of(FIRST, position_of(0, 9)))
    assert waiting.commit_points(FIRST) == [position_of(0, 9)]


def test_in_a_backlog_what_is_not_urgent_makes_room_once() -> None:
    """Bulk first; nothing that was set back before, nothing while there is room or something urgent is at hand."""
    waiting = Waiting(most_records=6)
    for offset, (priority, append_s) in enumerate(
        [
            (PRIORITY_HIGH, -99),
            (PRIORITY_NORMAL, -99),
            (PRIORITY_BULK, -99),
            (PRIORITY_BULK, -1),
            (PRIORITY_BULK, -98),
        ]
    ):
        waiting.add(FIRST, stored(offset, -9, append_s=append_s, priority=priority))
    assert waiting.surplus(NOW_US, 100) == []
    waiting.add(FIRST, stored(5, 5, append_s=-99, priority=PRIORITY_BULK))
    assert waiting.surplus(NOW_US, 100) == []
    waiting.finish(record_id_of(FIRST, 0))
    waiting.add(FIRST, stored(6, 5, append_s=-99, priority=PRIORITY_HIGH))
    assert places(waiting.surplus(NOW_US, 100)) == [(FIRST, 2), (FIRST, 4), (FIRST, 1)]
    assert places(waiting.surplus(NOW_US, 2)) == [(FIRST, 2), (FIRST, 4)]
    idle = Waiting(most_records=2)
    for offset in range(2):
        idle.add(FIRST, stored(offset, 9, append_s=-1, priority=PRIORITY_BULK))
    assert idle.surplus(NOW_US, 100) == []

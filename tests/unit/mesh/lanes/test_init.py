"""The low-water mark and the choice of a lane's adapter."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.clock import ManualClock
from mesh.lanes import (
    LowWater,
    offset_of,
    open_reader,
    open_writer,
    partition_of,
    position_migrations,
    position_of,
)
from mesh.sqlite import StoreUrlError, Writer

gaps = st.lists(st.integers(1, 5), min_size=1, max_size=60)


@given(gaps, st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_commit_point_has_nothing_unfinished_below(steps: list[int], partition: int, source: random.Random) -> None:
    """In any order of adding and finishing it is the largest position below which everything added is done."""
    mark = LowWater()
    coming = [position_of(partition, sum(steps[: index + 1])) for index in range(len(steps))]
    added: list[int] = []
    done: set[int] = set()
    while coming or len(done) < len(added):
        pending = [position for position in added if position not in done]
        if coming and (not pending or source.random() < 0.5):
            added.append(coming.pop(0))
            mark.add(added[-1])
        else:
            finishing = source.choice(pending)
            done.add(finishing)
            mark.done(finishing)
            mark.done(source.choice(sorted(done)))  # again, or an earlier one again
        finished = [p for p in added if all(q in done for q in added if q <= p)]
        assert mark.commit_points() == finished[-1:]
        assert mark.unfinished == len(added) - len(done)
        assert mark.kept == len(added) - len(finished)
    assert mark.commit_points() == [added[-1]]


@given(st.permutations([position_of(number % 3, number) for number in range(1, 31)]))
def test_each_partition_has_a_point_that_only_grows(order: list[int]) -> None:
    """However records finish, what was once committable stays so, and no partition waits for another."""
    mark = LowWater()
    for position in sorted(order):
        mark.add(position)
    before: dict[int, int] = {}
    done: set[int] = set()
    for position in order:
        mark.done(position)
        done.add(position)
        points = {partition_of(point): point for point in mark.commit_points()}
        for partition in range(3):
            own = sorted(one for one in order if partition_of(one) == partition)
            expected = [one for one in own if all(other in done for other in own if other <= one)]
            assert points.get(partition) == (expected[-1] if expected else None)
            assert points.get(partition, 0) >= before.get(partition, 0)
        before = points
    assert sorted(before.values()) == [position_of(0, 30), position_of(1, 28), position_of(2, 29)]


def test_a_partition_that_comes_back_begins_anew() -> None:
    """A position that is not above the last one forgets what was open in its partition, and nothing else."""
    mark = LowWater()
    for offset in (5, 6, 7):
        mark.add(position_of(1, offset))
        mark.add(position_of(2, offset))
    mark.done(position_of(1, 5))
    assert mark.commit_points() == [position_of(1, 5)]
    mark.add(position_of(1, 6))
    assert (mark.kept, mark.unfinished) == (4, 4)
    assert mark.commit_points() == []
    # The work that began before the partition went away ends here, too.
    mark.done(position_of(1, 6))
    assert mark.commit_points() == [position_of(1, 6)]
    mark.done(position_of(2, 5))
    assert sorted(mark.commit_points()) == [position_of(1, 6), position_of(2, 5)]


def test_finishing_what_is_not_open_changes_nothing() -> None:
    """Neither a position never added, nor one that was finished, nor one of a partition that nobody knows."""
    mark = LowWater()
    mark.done(1)
    mark.add(5)
    for position in (4, 6, position_of(3, 5)):
        mark.done(position)
    assert (mark.commit_points(), mark.unfinished) == ([], 1)
    mark.done(5)
    mark.done(5)
    assert (mark.commit_points(), mark.unfinished, mark.kept) == ([5], 0, 0)


def test_a_position_is_its_partition_and_its_offset() -> None:
    """Both come back out of it, and positions of one partition sort by their offset."""
    for partition in (0, 1, 32_767):
        for offset in (0, 1, 2**48 - 1):
            position = position_of(partition, offset)
            assert (partition_of(position), offset_of(position)) == (partition, offset)
            assert 0 <= position < 2**63
    assert position_of(0, 9) == 9


async def test_an_unknown_scheme_lists_the_known(tmp_path: Path) -> None:
    """A URL that names no kind of lane is refused with the kinds there are."""
    positions = Writer(tmp_path / "positions.db", migrations=position_migrations())
    for url in ("carrier-pigeon://x", "lanes", ""):
        with pytest.raises(StoreUrlError, match="known: sqlite:///folder"):
            open_writer(url, "high", data_dir=tmp_path, run_dir=tmp_path, clock=ManualClock())
        with pytest.raises(StoreUrlError, match="known: sqlite:///folder"):
            open_reader(url, "high", data_dir=tmp_path, run_dir=tmp_path, clock=ManualClock(), positions=positions)

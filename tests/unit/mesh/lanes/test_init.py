"""The low-water mark and the choice of a lane's adapter."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.clock import ManualClock
from mesh.lanes import LowWater, open_reader, open_writer, position_migrations
from mesh.sqlite import StoreUrlError, Writer

gaps = st.lists(st.integers(1, 5), min_size=1, max_size=60)


@given(gaps, st.randoms(use_true_random=False))
def test_the_commit_point_has_nothing_unfinished_below(steps: list[int], source: random.Random) -> None:
    """In any order of adding and finishing it is the largest position below which everything added is done."""
    mark = LowWater()
    coming = [sum(steps[: index + 1]) for index in range(len(steps))]
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
        assert mark.commit_point() == (finished[-1] if finished else None)
        assert mark.unfinished == len(added) - len(done)
    assert mark.commit_point() == added[-1]


@given(st.permutations(range(1, 30)))
def test_the_commit_point_only_grows(order: list[int]) -> None:
    """However records finish, what was once committable stays so."""
    mark = LowWater()
    for position in range(1, 30):
        mark.add(position)
    before = 0
    for position in order:
        mark.done(position)
        point = mark.commit_point() or 0
        assert point >= before
        before = point
    assert before == 29


def test_a_mark_refuses_what_cannot_be() -> None:
    """Positions come in growing order, and only added ones finish."""
    mark = LowWater()
    with pytest.raises(ValueError, match="never added"):
        mark.done(1)
    mark.add(5)
    with pytest.raises(ValueError, match="came after"):
        mark.add(5)
    with pytest.raises(ValueError, match="never added"):
        mark.done(6)
    mark.done(5)
    mark.done(5)
    mark.done(4)
    assert mark.commit_point() == 5


async def test_an_unknown_scheme_lists_the_known(tmp_path: Path) -> None:
    """A URL that names no kind of lane is refused with the kinds there are."""
    positions = Writer(tmp_path / "positions.db", migrations=position_migrations())
    for url in ("carrier-pigeon://x", "lanes", ""):
        with pytest.raises(StoreUrlError, match="known: sqlite:///folder"):
            open_writer(url, "high", data_dir=tmp_path, run_dir=tmp_path, clock=ManualClock())
        with pytest.raises(StoreUrlError, match="known: sqlite:///folder"):
            open_reader(url, "high", data_dir=tmp_path, run_dir=tmp_path, clock=ManualClock(), positions=positions)

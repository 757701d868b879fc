"""Batches on their way: in pieces where they must be, and who hears of their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.errors import Unavailable
from tests.support.dispatching import everything, refusal
from tests.support.fanning import Fanout, fanning
from tests.support.far_ends import running
from tests.support.wait import until


@pytest.fixture
async def fanout(tmp_path: Path, run_dir: Path) -> AsyncIterator[Fanout]:
    """An empty lane and a process that is not running yet."""
    async with fanning(tmp_path, run_dir) as made:
        yield made


def sizes(fanout: Fanout) -> list[int]:
    """How many recipients each batch that was sent has."""
    return [
        sum(len(group.recipient_ids) for dispatch in batch.dispatches for group in dispatch.groups)
        for batch in fanout.delivery.batches
    ]


async def test_a_large_batch_goes_in_pieces_and_needs_all_of_them(fanout: Fanout) -> None:
    """The position moves when the last piece is answered, in whatever order that happens."""
    await fanout.start_anew(largest_piece=500)
    await fanout.append(1, recipient_ids=[f"r{number}" for number in range(1_200)])
    async with running(fanout.run):
        await fanout.dispatched(3)
        assert sizes(fanout) == [500, 500, 200]
        fanout.delivery.answer(2)
        fanout.delivery.answer(0)
        await until(lambda: fanout.count("deliveries_total", lane="normal") == 700)
        assert (await fanout.lane.lag()).record_count == 1
        fanout.delivery.answer(1)
        await fanout.committed(0)
    assert fanout.count("events_total", lane="normal") == 1


async def test_a_large_audience_goes_in_pieces_too(fanout: Fanout) -> None:
    """Slices were cut when they were planned; what is beside them now decides how they go."""
    await fanout.start_anew(largest_piece=300, large_audience=1_000)
    fanout.delivery.reply = everything
    await fanout.append(1, recipient_ids=[f"r{number:04d}" for number in range(2_500)])
    async with running(fanout.run):
        await until(lambda: sum(sizes(fanout)) == 2_500)
        await fanout.committed(0)
    assert max(sizes(fanout)) == 300


async def test_the_time_of_the_append_is_told_with_the_answer(fanout: Fanout) -> None:
    """Once for each batch that was answered, and not for one whose stream broke."""
    first = fanout.clock.wall()
    await fanout.append(1, recipient_ids=["alice"])
    fanout.clock.advance(5.0)
    async with running(fanout.run):
        await fanout.dispatched(1)
        assert fanout.append_times == []
        fanout.delivery.answer(0, refusal(0, Unavailable("not now", reason="STORE_UNAVAILABLE", retry_delay=0.001)))
        await fanout.dispatched(2)
        fanout.delivery.answer(1)
        await fanout.committed(0)
    assert fanout.append_times == [first, first]

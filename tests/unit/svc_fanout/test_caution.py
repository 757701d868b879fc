"""A record that kills the process is found and parked, with real deaths; everybody else's are dispatched."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_fanout import slices
from svc_fanout.caution import DEATHS, unnamed
from svc_fanout.slices import Mark
from tests.support.dispatching import InProcessDelivery, everything, id_of, make_envelope, make_record
from tests.support.dying_fanout import DIED, POISON, SENT
from tests.support.fanning import Fanout, fanning
from tests.support.far_ends import running
from tests.support.wait import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def fanout(tmp_path: Path, run_dir: Path) -> AsyncIterator[Fanout]:
    """An empty lane and a process that is not running yet."""
    async with fanning(tmp_path, run_dir) as made:
        yield made


async def crash(fanout: Fanout) -> None:
    """A process reads what there is and dies before anything was answered."""
    await fanout.start_anew()
    async with running(fanout.run):
        await until(lambda: bool(fanout.delivery.batches), what="something is dispatched")
    fanout.delivery = InProcessDelivery()


async def lived(folder: Path, run_dir: Path) -> tuple[bool, list[str]]:
    """Lets a process work the lane; whether it lived, and the events that it dispatched."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.dying_fanout", str(folder), str(run_dir)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode in (0, DIED)
    sent = [line.removeprefix(SENT) for line in output.decode().splitlines() if line.startswith(SENT)]
    return process.returncode == 0, sent


async def test_a_record_that_kills_the_process_is_parked(tmp_path: Path, run_dir: Path) -> None:
    """One death without suspicion and three by name; then it is parked with its bytes, and the others have gone out."""
    async with fanning(tmp_path, run_dir) as first:
        await first.append(1, 2, 3)
        await first.append(4, recipient_ids=["bob", POISON])
        await first.append(5, 6, 7, recipient_ids=["bob"])
    deaths, dispatched = 0, list[str]()
    while True:
        alive, events = await lived(tmp_path, run_dir)
        dispatched += events
        if alive:
            break
        deaths += 1
        assert deaths < 10
    assert deaths == 1 + DEATHS
    # Those before it are finished by the first careful process, and none of them twice.
    assert dispatched == [id_of(number) for number in (1, 2, 3, 5, 6, 7)]
    async with fanning(tmp_path, run_dir) as heir:
        (parked,) = await heir.lane.parked(10)
        assert (parked.position, parked.reason) == (4, "the process died 3 times while it worked on it")
        assert parked.value == make_record(make_envelope(4), ["bob", POISON]).value
        assert await heir.lane.notes() == {}
        assert await heir.lane.begin_life() == 0


async def test_an_end_in_order_costs_the_next_process_nothing(fanout: Fanout) -> None:
    """Even with records unanswered: nothing is named, and everything that is there is read at once."""
    await fanout.append(1, 2, 3)
    working = asyncio.create_task(fanout.run())
    await fanout.dispatched(1)
    draining = asyncio.create_task(fanout.drain())
    fanout.delivery.answer(0)
    await asyncio.gather(working, draining)
    await fanout.append(4, 5)
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.dispatched(2)
        assert fanout.delivery.event_ids(1) == [id_of(4), id_of(5)]
        assert await fanout.lane.notes() == {}


async def test_after_a_crash_records_go_out_one_by_one_until_nothing_is_left(fanout: Fanout) -> None:
    """Each is a batch of its own; once the lane was empty, whatever comes is read together again."""
    await fanout.append(1, 2, 3)
    await crash(fanout)
    fanout.delivery.reply = everything
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.committed(0)
        assert [fanout.delivery.event_ids(index) for index in range(3)] == [[id_of(1)], [id_of(2)], [id_of(3)]]
        await until(lambda: not fanout.worker.careful, what="nothing is suspected")
        await fanout.append(4, 5)
        await fanout.dispatched(4)
        assert fanout.delivery.event_ids(3) == [id_of(4), id_of(5)]


async def test_a_record_that_waits_for_delivery_is_not_blamed(fanout: Fanout) -> None:
    """Processes that are killed while delivery is away do not get the innocent parked."""
    await fanout.append(1)
    await crash(fanout)
    for _ in range(DEATHS + 2):
        await fanout.start_anew()
        async with running(fanout.run):
            await fanout.dispatched(1)
            await until(lambda: fanout.worker.careful is False, what="it did no harm, and nothing is left")
            assert {unnamed(note) for note in (await fanout.lane.notes()).values()} == {b""}
        fanout.delivery = InProcessDelivery()
    fanout.delivery.reply = everything
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.committed(0)
    assert await fanout.lane.parked(10) == []
    assert fanout.sent() == [id_of(1)]


async def test_an_event_that_is_planned_in_slices_keeps_its_mark(fanout: Fanout) -> None:
    """A name beside a mark does not make the planning begin again."""
    fanout.prefs.topics["team"] = [f"r{number}" for number in range(10)]
    await fanout.append_topic(1, "team")
    (record,) = await fanout.lane.read(1, 1.0)
    mark = slices.note_of(Mark(id_of(1), 2, "r3"))
    await fanout.lane.note(record.position, bytes([0xC1, 1]) + mark)
    await fanout.lane.begin_life()
    fanout.delivery.reply = everything
    await fanout.start_anew(large_audience=4, slice_size=2)
    async with running(fanout.run):
        await fanout.committed(0)
    assert {recipient for recipient, _ in fanout.outcomes(id_of(1))} == {f"r{number}" for number in range(4, 10)}

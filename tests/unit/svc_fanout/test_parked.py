"""Records that were put aside: shown to operators page by page, and tried again without harm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.fanout.v1 import fanout_service_pb2 as pb
from heliograph.type.v1 import plan_pb2
from mesh.errors import DataLoss, InvalidArgument, NotFound, Unavailable
from mesh.lanes import Record
from mesh.times import micros_of
from svc_fanout.parked import RECORDS_A_CALL
from tests.support.dispatching import NOTHING, everything, id_of, make_envelope, make_record, refusal
from tests.support.fanning import LANE, Fanout, fanning
from tests.support.far_ends import running
from tests.support.wait import until

_NEVER = DataLoss("plan is missing", reason="RECORD_UNDECODABLE")
_DELIVERED = 0


@pytest.fixture
async def fanout(tmp_path: Path, run_dir: Path) -> AsyncIterator[Fanout]:
    """An empty lane and a process that is not running yet."""
    async with fanning(tmp_path, run_dir) as made:
        yield made


async def park_broken(fanout: Fanout, count: int) -> None:
    """Lets the process put records aside that are no events."""
    await fanout.append_records([Record(b"key", b"\xff" * (number + 1)) for number in range(count)])
    async with running(fanout.run):
        await fanout.committed(0)


async def park_refused(fanout: Fanout, *, recipients: int = 3) -> None:
    """Lets delivery refuse an event for good, or the slices of a large one."""
    fanout.delivery.reply = lambda batch: [refusal(index, _NEVER) for index in range(len(batch.dispatches))]
    await fanout.append(1, recipient_ids=[f"r{number:02d}" for number in range(recipients)])
    async with running(fanout.run):
        await fanout.committed(0)
    fanout.delivery.reply = everything
    fanout.delivery.batches.clear()


async def listed(fanout: Fanout, size: int = 500) -> list[pb.ParkedRecord]:
    """Everything that is parked, read in pages of this size."""
    found: list[pb.ParkedRecord] = []
    token = ""
    while True:
        records, token = await fanout.parked.page(size, token)
        assert len(records) <= size
        found += records
        if not token:
            return found


async def test_records_are_listed_with_their_place_reason_time_and_size(fanout: Fanout) -> None:
    """Without bytes; these come with the record alone."""
    now_us = round(fanout.clock.wall() * 1_000_000)
    await park_broken(fanout, 2)
    first, second = await listed(fanout)
    assert (first.lane, first.partition, first.offset, first.size) == (LANE, 0, 1, 1)
    assert (second.offset, second.size) == (2, 2)
    assert first.reason.startswith("event record cannot be read")
    assert micros_of(first.park_time) == now_us
    assert (first.key, first.value) == (b"", b"")
    whole = await fanout.parked.get(second.parked_id)
    assert (whole.key, whole.value) == (b"key", b"\xff\xff")


async def test_pages_have_everything_once(fanout: Fanout) -> None:
    """Whatever their size, over the border of two lanes."""
    await fanout.start_anew(large_audience=2, slice_size=2)
    await park_refused(fanout, recipients=5)
    await park_broken(fanout, 4)
    whole = await listed(fanout)
    assert [one.lane for one in whole] == [LANE] * 4 + ["slices-" + LANE] * 3
    for size in (1, 2, 3, 4, 7):
        assert await listed(fanout, size) == whole


async def test_a_refused_event_goes_out_again_under_todays_wishes(fanout: Fanout) -> None:
    """Decided anew, durable before it leaves the list, and gone from it."""
    await park_refused(fanout)
    (record,) = await listed(fanout)
    fanout.prefs.change("r01", NOTHING)
    await fanout.start_anew()
    assert await fanout.parked.redrive([record.parked_id], validate_only=True) == []
    assert await listed(fanout) == [record]
    async with running(fanout.run):
        assert await fanout.parked.redrive([record.parked_id], validate_only=False) == []
        assert await listed(fanout) == []
        await until(lambda: bool(fanout.delivery.batches))
        await fanout.committed(0)
    opted_out = plan_pb2.SUPPRESS_REASON_OPTED_OUT
    assert fanout.outcomes(id_of(1)) == {("r00", _DELIVERED): 1, ("r01", opted_out): 1, ("r02", _DELIVERED): 1}
    assert await fanout.parked.redrive([record.parked_id], validate_only=False) == [record.parked_id]


async def test_a_refused_slice_goes_out_again_in_the_same_process(fanout: Fanout) -> None:
    """It was sent before, with other bytes: it is not taken for one that was written twice."""
    await fanout.start_anew(large_audience=2, slice_size=2)
    fanout.delivery.reply = lambda batch: [refusal(index, _NEVER) for index in range(len(batch.dispatches))]
    await fanout.append(1, recipient_ids=["r00", "r01", "r02"])
    async with running(fanout.run):
        await fanout.committed(0)
        records = await listed(fanout)
        assert [one.lane for one in records] == ["slices-" + LANE] * 2
        fanout.delivery.reply = everything
        fanout.delivery.batches.clear()
        assert await fanout.parked.redrive([one.parked_id for one in records], validate_only=False) == []
        await until(lambda: len(fanout.delivery.batches) == 2)
        await fanout.committed(0)
    assert fanout.outcomes(id_of(1)) == {(f"r0{number}", _DELIVERED): 1 for number in range(3)}
    assert await listed(fanout) == []


async def test_what_cannot_be_read_stays(fanout: Fanout) -> None:
    """This version reads it no better than before; the others go."""
    await park_broken(fanout, 1)
    await park_refused(fanout)
    broken, refused = await listed(fanout)
    ids = [broken.parked_id, refused.parked_id, refused.parked_id, "normal/77/1", "nowhere/1/1", "x"]
    assert await fanout.parked.redrive(ids, validate_only=False) == [ids[0], *ids[3:]]
    assert await listed(fanout) == [broken]


async def test_while_prefs_does_not_answer_nothing_leaves_the_list(fanout: Fanout) -> None:
    """The call fails and may be repeated."""
    await park_refused(fanout)
    (record,) = await listed(fanout)
    fanout.prefs.failure = Unavailable("no prefs", reason="PEER_UNAVAILABLE")
    await fanout.start_anew()
    with pytest.raises(Unavailable):
        await fanout.parked.redrive([record.parked_id], validate_only=False)
    assert await listed(fanout) == [record]


async def test_a_crash_before_it_leaves_the_list_does_no_harm(fanout: Fanout) -> None:
    """It is tried twice; delivery takes the second one for what it is, a repetition."""
    await park_refused(fanout)
    (record,) = await listed(fanout)
    fanout.lane.refuses.add("unpark")
    with pytest.raises(Unavailable):
        await fanout.parked.redrive([record.parked_id], validate_only=False)
    await fanout.start_anew()
    assert await fanout.parked.redrive([record.parked_id], validate_only=False) == []
    async with running(fanout.run):
        await until(lambda: bool(fanout.delivery.batches))
        await fanout.committed(0)
    assert {recipient_id for recipient_id, _ in fanout.outcomes(id_of(1))} == {"r00", "r01", "r02"}


async def test_what_makes_no_sense_is_refused(fanout: Fanout) -> None:
    """Sizes, tokens and counts that no caller of ours sends."""
    for size, token in ((-1, ""), (1, "x"), (1, "7:0"), (1, "0:-1"), (1, "0:" + "9" * 30)):
        with pytest.raises(InvalidArgument):
            await fanout.parked.page(size, token)
    for count in (0, RECORDS_A_CALL + 1):
        with pytest.raises(InvalidArgument):
            await fanout.parked.redrive([f"normal/{number}/1" for number in range(count)], validate_only=True)
    with pytest.raises(NotFound) as caught:
        await fanout.parked.get("normal/1/1")
    assert caught.value.reason == "DEAD_LETTER_UNKNOWN"


async def test_an_event_of_topics_is_read_from_prefs_again(fanout: Fanout) -> None:
    """Whoever is subscribed today gets it."""
    envelope = make_envelope(1)
    fanout.delivery.reply = lambda batch: [refusal(index, _NEVER) for index in range(len(batch.dispatches))]
    fanout.prefs.topics["builds"] = ["alice"]
    await fanout.append_records([make_record(envelope, [], topic_ids=["builds"])])
    async with running(fanout.run):
        await fanout.committed(0)
    fanout.delivery.reply = everything
    fanout.delivery.batches.clear()
    fanout.prefs.topics["builds"] = ["alice", "bob"]
    (record,) = await listed(fanout)
    async with running(fanout.run):
        assert await fanout.parked.redrive([record.parked_id], validate_only=False) == []
        await until(lambda: bool(fanout.delivery.batches))
        await fanout.committed(0)
    assert fanout.outcomes(id_of(1)) == {("alice", _DELIVERED): 1, ("bob", _DELIVERED): 1}

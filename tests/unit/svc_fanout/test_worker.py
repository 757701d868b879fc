"""A worker on a real lane, with in-process prefs and delivery: what moves the position, and what holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.prefs.v1 import prefs_service_pb2
from heliograph.type.v1 import plan_pb2
from mesh.errors import DataLoss, ResourceExhausted, Unavailable
from mesh.lanes import PositionLost, Record
from tests.support.dispatching import (
    NOTHING,
    InProcessDelivery,
    everything,
    id_of,
    make_envelope,
    make_record,
    refusal,
)
from tests.support.fanning import Fanout, fanning
from tests.support.far_ends import running
from tests.support.wait import until


@pytest.fixture
async def fanout(tmp_path: Path, run_dir: Path) -> AsyncIterator[Fanout]:
    """An empty lane and a process that is not running yet."""
    async with fanning(tmp_path, run_dir) as made:
        yield made


async def test_an_event_is_planned_dispatched_and_committed(fanout: Fanout) -> None:
    """The whole step: read, asked, sent with its plan, answered, position moved, every step traced in order."""
    await fanout.append(1, recipient_ids=["alice", "bob"])
    fanout.prefs.others["bob"] = NOTHING
    async with running(fanout.run):
        await fanout.dispatched(1)
        (dispatch,) = fanout.delivery.batches[0].dispatches
        plans = fanout.delivery.batches[0].plans
        assert dispatch.envelope == make_envelope(1)
        assert {group.recipient_ids[0]: plans[group.plan_index].suppress_reason for group in dispatch.groups} == {
            "alice": 0,
            "bob": plan_pb2.SUPPRESS_REASON_OPTED_OUT,
        }
        assert (await fanout.lane.lag()).record_count == 1
        fanout.delivery.answer(0)
        await fanout.committed(0)
        await until(lambda: len(fanout.steps) == 4)
    assert fanout.steps == [(step, id_of(1)) for step in ("read", "planned", "dispatched", "advanced")]
    assert fanout.count("events_total", lane="normal") == 1
    assert fanout.count("deliveries_total", lane="normal") == 2


async def test_the_position_waits_for_the_first_unfinished_event(fanout: Fanout) -> None:
    """Answers come in any order; the position stays below the first batch that is not answered."""
    await fanout.start_anew(read_limit=1)
    await fanout.append(*range(4))
    async with running(fanout.run):
        await fanout.dispatched(4)
        fanout.delivery.answer(3)
        fanout.delivery.answer(1)
        await until(lambda: fanout.count("events_total", lane="normal") == 2)
        assert (await fanout.lane.lag()).record_count == 4
        fanout.delivery.answer(0)
        await fanout.committed(2)
        fanout.delivery.answer(2)
        await fanout.committed(0)
        await until(lambda: [step for step, _ in fanout.steps].count("advanced") == 4)


async def test_an_event_over_several_batches_needs_all_of_them(fanout: Fanout) -> None:
    """It is finished when its last batch is."""
    await fanout.append(1, recipient_ids=[f"r{number}" for number in range(4_500)])
    async with running(fanout.run):
        await fanout.dispatched(3)
        fanout.delivery.answer(2)
        fanout.delivery.answer(0)
        await until(lambda: fanout.count("deliveries_total", lane="normal") == 2_500)
        assert fanout.count("events_total", lane="normal") == 0
        fanout.delivery.answer(1)
        await fanout.committed(0)


async def test_what_delivery_cannot_take_yet_is_sent_again(fanout: Fanout) -> None:
    """Only the refused events go again, in a batch of their own, and the position waits for them."""
    await fanout.append(0, 1, 2)
    async with running(fanout.run):
        await fanout.dispatched(1)
        later = Unavailable("not now", reason="STORE_UNAVAILABLE", retry_delay=0.001)
        fanout.delivery.answer(0, refusal(1, later))
        await fanout.dispatched(2)
        assert fanout.delivery.event_ids(1) == [id_of(1)]
        await fanout.committed(2)
        fanout.delivery.answer(1, refusal(0, ResourceExhausted("full", reason="OVERLOADED", retry_delay=0.0)))
        await fanout.dispatched(3)
        assert (await fanout.lane.lag()).record_count == 2
        fanout.delivery.answer(2)
        await fanout.committed(0)
    assert fanout.count("deliveries_total", lane="normal") == 3
    assert fanout.count("retries_total", why="refused") == 2
    assert await fanout.lane.parked(10) == []


async def test_what_delivery_never_takes_is_parked_with_its_bytes(fanout: Fanout) -> None:
    """A refusal for good puts the record aside, durably, and the lane goes on."""
    await fanout.append(0, 1, 2)
    async with running(fanout.run):
        await fanout.dispatched(1)
        fanout.delivery.answer(0, refusal(1, DataLoss("plan is missing", reason="RECORD_UNDECODABLE")))
        await fanout.committed(0)
    (parked,) = await fanout.lane.parked(10)
    assert parked.value == make_record(make_envelope(1), ["alice"]).value
    assert parked.reason == "plan is missing"
    assert fanout.count("deliveries_total", lane="normal") == 2
    assert fanout.count("parked_total", lane="normal") == 1


async def test_an_answer_that_names_no_event_of_its_batch_is_not_believed(fanout: Fanout) -> None:
    """Then nothing counts as durable: the whole batch goes again."""
    await fanout.append(0, 1)
    async with running(fanout.run):
        await fanout.dispatched(1)
        fanout.delivery.answer(0, refusal(2, DataLoss("what?", reason="RECORD_UNDECODABLE")))
        await fanout.dispatched(2)
        assert fanout.delivery.event_ids(1) == [id_of(0), id_of(1)]
        fanout.delivery.answer(1)
        await fanout.committed(0)


async def test_undecodable_records_are_parked_and_the_lane_goes_on(fanout: Fanout) -> None:
    """Between good events, and alone at the end: the position passes them once they are kept."""
    fanout.delivery.reply = everything
    broken = [Record(b"k", b"\xff\xff"), Record(b"k", b""), Record(b"k", make_record(make_envelope(5), []).value)]
    await fanout.append(0)
    await fanout.append_records(broken)
    await fanout.append(1)
    await fanout.append_records(broken[:1])
    async with running(fanout.run):
        await fanout.committed(0)
    assert fanout.sent() == [id_of(0), id_of(1)]
    parked = await fanout.lane.parked(10)
    assert [(one.position, one.value) for one in parked] == [
        (2, broken[0].value),
        (3, broken[1].value),
        (4, broken[2].value),
        (6, broken[0].value),
    ]


async def test_without_prefs_the_lane_waits_and_then_goes_on(fanout: Fanout) -> None:
    """Nothing is guessed about wishes: the same events are asked about until prefs answers."""
    fanout.delivery.reply = everything
    fanout.prefs.failure = Unavailable("no prefs", reason="PEER_UNAVAILABLE")
    await fanout.append(0, 1)
    async with running(fanout.run):
        await until(lambda: len(fanout.prefs.polls) >= 3)
        assert fanout.delivery.batches == []
        assert len(fanout.prefs.requests) == 1
        fanout.prefs.failure = None
        await fanout.committed(0)
    assert fanout.sent() == [id_of(0), id_of(1)]
    assert fanout.count("retries_total", why="prefs") == 1


async def test_a_senseless_answer_of_prefs_is_asked_for_again(fanout: Fanout) -> None:
    """An answer that does not fit its question ends neither the worker nor the event."""
    fanout.delivery.reply = everything
    decide = fanout.prefs.decide
    empty = prefs_service_pb2.BatchResolveResponse()

    def seldom(request: prefs_service_pb2.BatchResolveRequest) -> prefs_service_pb2.BatchResolveResponse:
        return decide(request) if len(fanout.prefs.requests) == 3 else empty

    fanout.prefs.decide = seldom  # type: ignore[method-assign]  # a broken peer, for three answers
    await fanout.append(0)
    async with running(fanout.run):
        await fanout.committed(0)
    assert fanout.sent() == [id_of(0)]
    assert len(fanout.prefs.requests) == 3


async def test_a_batch_of_a_broken_stream_is_sent_again(fanout: Fanout) -> None:
    """Whether delivery had it is not known; it goes whole, as often as it takes."""
    await fanout.append(0, 1)
    broken = Unavailable("broke", reason="PEER_UNAVAILABLE")
    async with running(fanout.run):
        for index in range(3):
            await fanout.dispatched(index + 1)
            fanout.delivery.fail(index, broken)
        await fanout.dispatched(4)
        assert (await fanout.lane.lag()).record_count == 2
        fanout.delivery.answer(3)
        await fanout.committed(0)
    assert all(fanout.delivery.event_ids(index) == [id_of(0), id_of(1)] for index in range(4))
    assert fanout.count("retries_total", why="stream") == 3


async def test_unanswered_batches_are_bounded(fanout: Fanout) -> None:
    """Delivery that does not answer stops the reading; each answer lets one more batch go."""
    await fanout.start_anew(read_limit=1, batches_in_flight=3)
    await fanout.append(*range(10))
    async with running(fanout.run):
        await fanout.dispatched(3)
        fanout.delivery.answer(1)
        await fanout.dispatched(4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(fanout.delivery.batches) == 4


async def test_one_event_that_does_not_end_stops_the_lane_in_the_end(fanout: Fanout) -> None:
    """What is finished above it is remembered; so the lane reads on only so far, and goes on when it ends."""
    stuck = Unavailable("its store is down", reason="STORE_UNAVAILABLE", retry_delay=0.0)
    is_stuck = True

    def reply(
        batch: delivery_service_pb2.DispatchBatch,
    ) -> Sequence[delivery_service_pb2.DispatchRefusal]:
        ids = [dispatch.envelope.event_id for dispatch in batch.dispatches]
        return [refusal(ids.index(id_of(0)), stuck)] if is_stuck and id_of(0) in ids else []

    fanout.delivery.reply = reply
    await fanout.start_anew(read_limit=5, largest_span=20)
    await fanout.append(*range(100))
    async with running(fanout.run):
        await until(lambda: fanout.sent().count(id_of(0)) >= 8)
        assert fanout.count("events_total", lane="normal") <= 25
        assert (await fanout.lane.lag()).record_count == 100
        is_stuck = False
        await fanout.committed(0)
    assert set(fanout.sent()) == {id_of(number) for number in range(100)}


async def test_a_drain_finishes_what_is_in_flight(fanout: Fanout) -> None:
    """No new events are begun; the drain ends when the last answer is there, with the position committed."""
    await fanout.start_anew(read_limit=2)
    await fanout.append(0, 1)
    async with running(fanout.run) as worker:
        await fanout.dispatched(1)
        draining = asyncio.ensure_future(fanout.drain())
        await asyncio.sleep(0)
        await fanout.append(2, 3)
        fanout.delivery.answer(0)
        await draining
        assert (await fanout.lane.lag()).record_count == 2
        await asyncio.wait([worker])
        assert worker.exception() is None
    assert fanout.sent() == [id_of(0), id_of(1)]


async def test_a_drain_sees_refused_events_to_their_end(fanout: Fanout) -> None:
    """What has to go again goes again before the drain is over."""
    await fanout.append(0, 1)
    async with running(fanout.run):
        await fanout.dispatched(1)
        draining = asyncio.ensure_future(fanout.drain())
        fanout.delivery.answer(0, refusal(0, Unavailable("busy", reason="STORE_UNAVAILABLE", retry_delay=0.0)))
        await fanout.dispatched(2)
        assert not draining.done()
        fanout.delivery.answer(1)
        await draining
        assert (await fanout.lane.lag()).record_count == 0


async def test_after_a_crash_only_unfinished_events_come_again(fanout: Fanout) -> None:
    """A new process starts behind the committed position: nothing before it, everything after it."""
    await fanout.start_anew(read_limit=1)
    await fanout.append(*range(5))
    async with running(fanout.run):
        await fanout.dispatched(5)
        for index in (0, 1, 3):
            fanout.delivery.answer(index)
        await fanout.committed(3)
    fanout.delivery = InProcessDelivery()
    fanout.delivery.reply = everything
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.committed(0)
    assert fanout.sent() == [id_of(2), id_of(3), id_of(4)]


async def test_a_lost_position_stops_the_worker(fanout: Fanout) -> None:
    """It never jumps: the failure ends the loop, and the process with it; nothing is sent."""
    await fanout.append(0)
    fanout.delivery.reply = everything
    async with running(fanout.run):
        await fanout.committed(0)
    await fanout.remake_lane()
    await fanout.append(1, 2)
    with pytest.raises(ExceptionGroup) as caught:
        await fanout.run()
    assert caught.group_contains(PositionLost)
    assert fanout.sent() == [id_of(0)]


async def test_an_operator_may_let_a_lane_begin_anew(fanout: Fanout) -> None:
    """Told so, a process that begins with a lost position goes on with what is left, and commits it."""
    fanout.delivery.reply = everything
    await fanout.append(0)
    async with running(fanout.run):
        await fanout.committed(0)
    await fanout.remake_lane()
    await fanout.append(1, 2)
    await fanout.start_anew(restart_lost=True)
    fanout.lane.refuses = {"restart"}
    async with running(fanout.run):
        await until(lambda: fanout.lane.refused >= 2)
        fanout.lane.refuses.clear()
        await fanout.committed(0)
    assert fanout.sent() == [id_of(0), id_of(1), id_of(2)]


async def test_a_record_that_cannot_be_parked_holds_the_lane(fanout: Fanout) -> None:
    """While its bytes cannot be kept, nothing passes a broken record; afterwards the lane goes on."""
    fanout.delivery.reply = everything
    fanout.lane.refuses = {"park"}
    await fanout.append_records([Record(b"k", b"\xff")])
    await fanout.append(1)
    async with running(fanout.run):
        await until(lambda: fanout.lane.refused >= 3)
        assert fanout.delivery.batches == []
        assert (await fanout.lane.lag()).record_count == 2
        fanout.lane.refuses.clear()
        await fanout.committed(0)
    assert [parked.position for parked in await fanout.lane.parked(10)] == [1]


@pytest.mark.parametrize("method", ["read", "commit"])
async def test_a_lane_that_does_not_answer_is_tried_again(fanout: Fanout, method: str) -> None:
    """Neither a read nor a commit that fails ends the worker; nothing is sent twice for it."""
    fanout.delivery.reply = everything
    fanout.lane.refuses = {method}
    await fanout.append(0, 1)
    async with running(fanout.run):
        await until(lambda: fanout.lane.refused >= 3)
        assert (await fanout.lane.lag()).record_count == 2
        fanout.lane.refuses.clear()
        await fanout.committed(0)
    assert fanout.sent() == [id_of(0), id_of(1)]


async def test_a_cancelled_worker_ends(fanout: Fanout) -> None:
    """Whatever it waits for, nothing of it lives on: not the commits, not the batches in flight."""
    await fanout.append(0)
    before = len(asyncio.all_tasks())
    async with running(fanout.run):
        await fanout.dispatched(1)
        fanout.delivery.fail(0, Unavailable("broke", reason="PEER_UNAVAILABLE"))
    assert len(asyncio.all_tasks()) == before


# ---------------------------------------------------------------- topics


async def test_an_event_reaches_the_subscribers_of_its_topics(fanout: Fanout) -> None:
    """Recipients and subscribers without the excluded, everybody once; the excluded have their reason."""
    fanout.delivery.reply = everything
    fanout.prefs.topics = {"t": ["bob", "carol", "dave"], "u": ["bob", "erin", "mallory"]}
    fanout.prefs.muted = {("t", "bob"), ("t", "carol")}
    fanout.prefs.others["erin"] = NOTHING
    await fanout.append_topic(1, "t", "u", recipient_ids=["alice", "dave"], excluded=["mallory", "nobody"])
    async with running(fanout.run):
        await fanout.committed()
    assert fanout.outcomes(id_of(1)) == {
        ("alice", 0): 1,
        ("bob", 0): 1,
        ("carol", plan_pb2.SUPPRESS_REASON_MUTED): 1,
        ("dave", 0): 1,
        ("erin", plan_pb2.SUPPRESS_REASON_OPTED_OUT): 1,
        ("mallory", plan_pb2.SUPPRESS_REASON_EXCLUDED): 1,
    }


async def test_a_topic_without_subscribers_is_finished_at_once(fanout: Fanout) -> None:
    """Nobody gets it, nothing is sent, and the position passes it."""
    await fanout.append_topic(1, "empty")
    async with running(fanout.run):
        await fanout.committed()
    assert fanout.delivery.batches == []
    assert fanout.count("events_total", lane="normal") == 1


async def test_events_of_one_topic_share_its_page(fanout: Fanout) -> None:
    """What is read together asks for the subscribers once, and for wishes once."""
    fanout.delivery.reply = everything
    fanout.prefs.topics = {"t": ["a", "b"]}
    for number in range(10):
        await fanout.append_topic(number, "t")
    async with running(fanout.run):
        await fanout.committed()
    assert fanout.sent() == [id_of(number) for number in range(10)]
    assert (len(fanout.prefs.pages), len(fanout.prefs.requests)) == (1, 1)


async def test_a_subscription_is_found_by_every_later_event(fanout: Fanout) -> None:
    """Subscribers are read anew for what is read from the lane later, whatever is remembered."""
    fanout.delivery.reply = everything
    fanout.prefs.topics = {"t": ["a"]}
    async with running(fanout.run):
        await fanout.append_topic(1, "t")
        await fanout.committed()
        fanout.prefs.topics["t"].append("b")
        await fanout.append_topic(2, "t")
        await fanout.committed()
    assert fanout.outcomes(id_of(1)) == {("a", 0): 1}
    assert fanout.outcomes(id_of(2)) == {("a", 0): 1, ("b", 0): 1}


async def test_in_steady_state_prefs_is_asked_nothing_about_wishes(fanout: Fanout) -> None:
    """When everybody is known, pages of events make no call; whoever changes his wishes is obeyed after a poll."""
    fanout.delivery.reply = everything
    names = [f"r{number}" for number in range(300)]
    async with running(fanout.run):
        await fanout.append(0, recipient_ids=names)
        await fanout.committed()
        assert len(fanout.prefs.requests) == 1
        for number in range(1, 21):
            await fanout.append(number, recipient_ids=names)
            await fanout.committed()
        assert len(fanout.prefs.requests) == 1
        fanout.prefs.change("r7", NOTHING)
        await until(lambda: fanout.count("wishes_dropped_total") == 1)
        await fanout.append(21, recipient_ids=names)
        await fanout.committed()
    assert fanout.outcomes(id_of(21))["r7", plan_pb2.SUPPRESS_REASON_OPTED_OUT] == 1
    assert [list(item.recipient_ids) for request in fanout.prefs.requests[1:] for item in request.items] == [["r7"]]

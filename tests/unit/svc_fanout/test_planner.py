"""Large audiences: planned once, into slices that go out beside everything else, resumed after a crash."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.prefs.v1 import topic_service_pb2
from heliograph.type.v1 import plan_pb2
from mesh.errors import Unavailable
from mesh.lanes import Record
from tests.support.dispatching import NOTHING, InProcessDelivery, InProcessPrefs, everything, id_of
from tests.support.fanning import LANE, PRIORITIES, Fanout, fanning
from tests.support.far_ends import running
from tests.support.wait import until

_AWAY = Unavailable("no prefs", reason="PEER_UNAVAILABLE")


@pytest.fixture
async def fanout(request: pytest.FixtureRequest, tmp_path: Path, run_dir: Path) -> AsyncIterator[Fanout]:
    """An empty lane, of normal priority or a given one, and a process that is not running; what is large is small."""
    async with fanning(tmp_path, run_dir, getattr(request, "param", LANE)) as made:
        made.delivery.reply = everything
        await made.start_anew(large_audience=100, slice_size=20)
        yield made


def subscribers(count: int) -> list[str]:
    """So many of them, in order."""
    return [f"r{number:06}" for number in range(count)]


def recipients_of(batch: delivery_service_pb2.DispatchBatch) -> int:
    """How many recipients a batch names."""
    return sum(len(group.recipient_ids) for dispatch in batch.dispatches for group in dispatch.groups)


class StoppingPrefs(InProcessPrefs):
    """Prefs that waits before a page of subscribers, until a test lets it go on.

    Attributes:
        stop_after: the last recipient of the page behind which it waits.
    """

    def __init__(self, stop_after: str) -> None:
        super().__init__()
        self.stop_after = stop_after
        self.stopped = asyncio.Event()
        self.go_on = asyncio.Event()

    async def list_subscribers(
        self, request: topic_service_pb2.ListSubscribersRequest
    ) -> topic_service_pb2.ListSubscribersResponse:
        """See the port."""
        if request.after_recipient_id == self.stop_after:
            self.stopped.set()
            await self.go_on.wait()
        return await super().list_subscribers(request)


@pytest.mark.parametrize(("fanout", "lane"), [(lane, lane) for lane in PRIORITIES], indirect=["fanout"])
async def test_a_large_audience_goes_in_slices(fanout: Fanout, lane: str) -> None:
    """Everybody once with his reason, in slices of set size and of its priority; the event's position waits for all."""
    names = subscribers(250)
    fanout.prefs.topics = {"t": names}
    fanout.prefs.others = dict.fromkeys(names[::10], NOTHING)
    await fanout.append_topic(1, "t", recipient_ids=["zoe"], excluded=names[:3])
    async with running(fanout.run):
        await fanout.committed()
    expected = {(name, 0) for name in ["zoe", *names[3:]] if name not in names[::10]}
    expected |= {(name, plan_pb2.SUPPRESS_REASON_OPTED_OUT) for name in names[10::10]}
    expected |= {(name, plan_pb2.SUPPRESS_REASON_EXCLUDED) for name in names[:3]}
    assert fanout.outcomes(id_of(1)) == Counter(dict.fromkeys(expected, 1))
    assert [record.slice_index for record in await fanout.slices()] == list(range(13))
    assert max(map(recipients_of, fanout.delivery.batches)) == 20
    assert fanout.count("slices_total", lane=lane) == 13
    sent = [dispatch.envelope.priority for batch in fanout.delivery.batches for dispatch in batch.dispatches]
    assert set(sent) == {PRIORITIES[lane]}
    assert [step for step, _ in fanout.steps] == ["read", "planned", "advanced"]


@pytest.mark.parametrize(("count", "slices"), [(100, 0), (101, 6)])
async def test_only_more_than_the_limit_is_large(fanout: Fanout, count: int, slices: int) -> None:
    """An audience at the limit goes as events do."""
    fanout.prefs.topics = {"t": subscribers(count)}
    await fanout.append_topic(1, "t")
    async with running(fanout.run):
        await fanout.committed()
    assert len(fanout.outcomes(id_of(1))) == count
    assert len(await fanout.slices()) == slices


async def test_a_hundred_thousand_subscribers_starve_nobody(fanout: Fanout) -> None:
    """Few slices are unanswered at once, and single events of the same lane go on between them."""
    await fanout.start_anew(large_audience=10_000, slice_size=2_000, batches_in_flight=8, slices_in_flight=2)
    fanout.delivery.reply = None
    fanout.prefs.topics = {"t": subscribers(100_000)}
    most = 0
    answered: set[int] = set()

    def open_slices() -> list[int]:
        return [
            index
            for index, batch in enumerate(fanout.delivery.batches)
            if index not in answered and batch.dispatches[0].envelope.event_id == id_of(0)
        ]

    def answer(index: int) -> None:
        answered.add(index)
        fanout.delivery.answer(index)

    def answer_all() -> bool:
        for index in open_slices():
            answer(index)
        return len(answered) == 50 + 59

    await fanout.append_topic(0, "t")
    async with running(fanout.run):
        for number in range(1, 60):
            await until(lambda: len(open_slices()) == 2 or len(answered) >= 98)
            most = max(most, len(open_slices()))
            # The slices stay unanswered: a single event still goes out at once, and alone.
            before = len(fanout.delivery.batches)
            await fanout.append(number)
            await fanout.dispatched(before + 1)
            assert fanout.delivery.event_ids(before) == [id_of(number)]
            answer(before)
            for index in open_slices()[:1]:
                answer(index)
        await until(answer_all)
        await fanout.committed()
    assert most == 2
    outcomes = fanout.outcomes(id_of(0))
    assert len(outcomes) == 100_000
    assert set(outcomes.values()) == {1}
    # Wishes of so large an audience are asked for a slice at a time, and never for everybody at once.
    assert max(len(item.recipient_ids) for one in fanout.prefs.requests for item in one.items) <= 2_000


async def test_a_crash_goes_on_at_the_slice(fanout: Fanout) -> None:
    """What was written before is neither read nor decided nor written again; everybody is there once."""
    names = subscribers(400)
    stopping = StoppingPrefs(stop_after=names[199])
    stopping.topics = {"t": names}
    fanout.ask = stopping
    await fanout.start_anew()
    await fanout.append_topic(1, "t")
    await fanout.append(2)
    async with running(fanout.run):
        await stopping.stopped.wait()
        await until(lambda: fanout.count("slices_total", lane="normal") == 10)
        await until(lambda: fanout.count("events_total", lane="slices-normal") == 10)
        await until(lambda: id_of(2) in fanout.sent())
        # The event is not finished, whatever came behind it.
        assert (await fanout.lane.lag()).record_count == 2
    fanout.ask = None
    fanout.prefs.topics = {"t": names}
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.committed()
    # The first page is one ahead of the note, so nothing before it is asked for.
    assert min(page.after_recipient_id for page in fanout.prefs.pages) == names[199]
    assert [record.slice_index for record in await fanout.slices()] == list(range(20))
    outcomes = fanout.outcomes(id_of(1))
    assert sorted(name for name, _ in outcomes) == names


async def test_a_crash_before_the_note_writes_slices_twice(fanout: Fanout) -> None:
    """That is harmless: nobody is left out, and what is the same is sent once in one life."""
    names = subscribers(200)
    fanout.prefs.topics = {"t": names}
    fanout.lane.refuses = {"note"}
    stopping = StoppingPrefs(stop_after=names[139])
    stopping.topics = {"t": names}
    fanout.ask = stopping
    await fanout.start_anew()
    fanout.lane.refuses = {"note"}
    # Slices are written, not read: as if the process ended at once.
    fanout.slice_lane.refuses = {"read"}
    await fanout.append_topic(1, "t")
    async with running(fanout.run):
        await stopping.stopped.wait()
        await until(lambda: fanout.count("slices_total", lane="normal") == 7)
        await until(lambda: fanout.lane.refused == 7)
    fanout.ask = None
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.committed()
    assert [record.slice_index for record in await fanout.slices()] == [*range(7), *range(10)]
    assert fanout.outcomes(id_of(1)) == Counter({(name, 0): 1 for name in names})


async def test_slices_of_an_unknown_outcome_are_sent_once(fanout: Fanout) -> None:
    """An append that nobody knows of is repeated; its reader sees that it has been there."""
    names = subscribers(200)
    fanout.prefs.topics = {"t": names}
    fanout.slice_lane.refuses = {"append"}
    fanout.slice_lane.unknown = True
    await fanout.append_topic(1, "t")
    async with running(fanout.run):
        await until(lambda: fanout.slice_lane.refused >= 3)
        fanout.slice_lane.refuses = set()
        fanout.slice_lane.unknown = False
        await fanout.committed()
    assert len(await fanout.slices()) >= 13
    assert fanout.outcomes(id_of(1)) == Counter({(name, 0): 1 for name in names})


async def test_an_event_is_open_until_its_slices_are_durable(fanout: Fanout) -> None:
    """While the slice lane takes nothing the position stays; events behind it go on."""
    fanout.prefs.topics = {"t": subscribers(200)}
    fanout.slice_lane.refuses = {"append"}
    await fanout.append_topic(1, "t")
    await fanout.append(2)
    async with running(fanout.run):
        await until(lambda: fanout.slice_lane.refused >= 2)
        await until(lambda: fanout.count("events_total", lane="normal") == 1)
        assert (await fanout.lane.lag()).record_count == 2
        fanout.slice_lane.refuses = set()
        await fanout.committed()
    assert fanout.count("retries_total", why="slices") >= 2


async def test_planning_waits_for_prefs_and_goes_on(fanout: Fanout) -> None:
    """In the middle of an audience prefs goes away: the slice waits, and nobody is decided twice."""
    names = subscribers(300)
    stopping = StoppingPrefs(stop_after=names[159])
    stopping.topics = {"t": names}
    fanout.ask = stopping
    await fanout.start_anew()
    await fanout.append_topic(1, "t")
    async with running(fanout.run):
        await stopping.stopped.wait()
        stopping.failure = _AWAY
        stopping.go_on.set()
        await until(lambda: not fanout.wishes.answering)
        polls = len(stopping.polls)
        await until(lambda: len(stopping.polls) > polls + 3)
        stopping.failure = None
        await fanout.committed()
    assert fanout.outcomes(id_of(1)) == Counter({(name, 0): 1 for name in names})


async def test_large_audiences_are_planned_one_after_the_other(fanout: Fanout) -> None:
    """Slices of two events of one lane do not mix, and both get done."""
    fanout.prefs.topics = {"t": subscribers(200), "u": subscribers(300)}
    await fanout.append_topic(1, "t")
    await fanout.append_topic(2, "u")
    async with running(fanout.run):
        await fanout.committed()
    order = [record.envelope.event_id for record in await fanout.slices()]
    assert order == [id_of(1)] * 10 + [id_of(2)] * 15
    assert (len(fanout.outcomes(id_of(1))), len(fanout.outcomes(id_of(2)))) == (200, 300)


async def test_a_drain_stops_planning_at_a_slice(fanout: Fanout) -> None:
    """The process does not stay for a million subscribers: the next one goes on."""
    names = subscribers(400)
    stopping = StoppingPrefs(stop_after=names[199])
    stopping.topics = {"t": names}
    fanout.ask = stopping
    await fanout.start_anew()
    await fanout.append_topic(1, "t")
    async with running(fanout.run) as process:
        await stopping.stopped.wait()
        await until(lambda: fanout.count("slices_total", lane="normal") == 10)
        draining = asyncio.ensure_future(fanout.drain())
        await asyncio.sleep(0)
        stopping.go_on.set()
        await draining
        await until(process.done)
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.committed()
    assert sorted(fanout.outcomes(id_of(1))) == [(name, 0) for name in names]


async def test_slices_that_delivery_refuses_go_again(fanout: Fanout) -> None:
    """A broken stream repeats the slice, and its position waits."""
    fanout.delivery.reply = None
    await fanout.start_anew(slice_size=60)
    fanout.prefs.topics = {"t": subscribers(120)}
    await fanout.append_topic(1, "t")
    async with running(fanout.run):
        await fanout.dispatched(2)
        fanout.delivery.fail(0, _AWAY)
        await fanout.dispatched(3)
        assert fanout.delivery.batches[2].dispatches == fanout.delivery.batches[0].dispatches
        fanout.delivery.answer(1)
        await until(lambda: fanout.count("events_total", lane="slices-normal") == 1)
        assert (await fanout.slice_lane.lag()).record_count == 2
        fanout.delivery.answer(2)
        await fanout.committed()


async def test_a_slice_that_cannot_be_read_is_parked(fanout: Fanout) -> None:
    """The others go on."""
    fanout.prefs.topics = {"t": subscribers(120)}
    await fanout.slice_lane.append([Record(b"k", b"\xff\xff")])
    await fanout.append_topic(1, "t")
    async with running(fanout.run):
        await fanout.committed()
    assert [one.value for one in await fanout.slice_lane.parked(10)] == [b"\xff\xff"]
    assert len(fanout.outcomes(id_of(1))) == 120


async def test_finished_slices_are_trimmed_and_others_never(fanout: Fanout) -> None:
    """What was done long ago goes; what waits stays however old it is."""
    fanout.prefs.topics = {"t": subscribers(120)}
    await fanout.append_topic(1, "t")
    async with running(fanout.run):
        await fanout.committed()
    fanout.clock.advance(7_200.0)
    # Only written: nobody reads them.
    fanout.slice_lane.refuses = {"read"}
    await fanout.start_anew()
    fanout.slice_lane.refuses = {"read"}
    await fanout.append_topic(2, "t")
    async with running(fanout.run):
        await fanout.committed(slices_left=6)
    fanout.clock.advance(100 * 86_400.0)
    await fanout.slice_worker.trim()
    assert [record.envelope.event_id for record in await fanout.slices()] == [id_of(2)] * 6
    fanout.delivery = InProcessDelivery()
    fanout.delivery.reply = everything
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.committed()
    assert len(fanout.outcomes(id_of(2))) == 120

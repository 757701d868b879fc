"""The Dispatch link against a real server: opening, window, drain, breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.type.v1 import notification_pb2
from mesh.channel import Channels
from mesh.clock import ManualClock
from mesh.errors import DataLoss, FailedPrecondition, Unavailable
from mesh.links import Pace
from mesh.streams import live_calls
from mesh.telemetry import Telemetry
from svc_fanout.links import DispatchLink
from svc_fanout.metrics import Metrics
from svc_fanout.pacing import Pacing
from tests.support.dispatching import make_envelope, refusal
from tests.support.far_ends import DeliveryEnd, DispatchFar, calling, delivery_end, running
from tests.support.wait import until

PACE = Pace(ping=0.005, silence=3.0, first_retry=0.002, last_retry=0.01)


class Near:
    """A link and what it needs."""

    def __init__(self, channels: Channels, pace: Pace = PACE, pacing: Pacing | None = None) -> None:
        self.clock = ManualClock()
        self.telemetry = Telemetry("fanout")
        self.link = DispatchLink(
            priority=notification_pb2.PRIORITY_HIGH,
            process="fanout",
            channels=channels,
            clock=self.clock,
            metrics=Metrics(self.telemetry),
            pace=pace,
            pacing=pacing,
        )

    def count(self, name: str) -> float:
        """A metric."""
        return self.telemetry.registry.get_sample_value(f"heliograph_fanout_{name}") or 0.0


@pytest.fixture
async def near(run_dir: Path) -> AsyncIterator[Near]:
    """A link that is not running yet."""
    async with calling(run_dir, "fanout") as channels:
        yield Near(channels)
    await until(lambda: live_calls() == 0, what="all streams closed")


def batch(number: int, size: int = 0) -> pb.DispatchBatch:
    """A batch of one event, with a content of so many bytes."""
    return pb.DispatchBatch(dispatches=[pb.Dispatch(envelope=make_envelope(number, content=b"x" * size))])


def sequences(far: DispatchFar) -> list[int]:
    """Numbers of the batches that came over one stream."""
    return [frame.batch.sequence for frame in far.frames if frame.HasField("batch")]


async def _settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def sending(near: Near, count: int) -> AsyncIterator[list[asyncio.Task[object]]]:
    """Sends batches, each by a sender of its own that waits for the answer; gives the senders in order."""

    async def send(number: int) -> object:
        answer = await near.link.send(batch(number))
        return await answer

    senders: list[asyncio.Task[object]] = [asyncio.ensure_future(send(number)) for number in range(count)]
    try:
        yield senders
    finally:
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)


async def test_the_opening_names_process_version_and_priority(near: Near, run_dir: Path) -> None:
    """The first frame opens; only then, and when it is answered, batches go."""
    async with delivery_end(run_dir, DeliveryEnd()) as end, running(near.link.run):
        answer = await near.link.send(batch(1))
        await until(lambda: len(end.batches) == 1)
        (far,) = end.streams
        assert far.frames[0].open == pb.DispatchOpen(
            protocol_version=1, fanout_id="fanout", priority=notification_pb2.PRIORITY_HIGH
        )
        assert far.metadata["x-heliograph-caller"] == "svc/fanout"
        assert near.count("streams") == 1
        end.answer(1, refusal(0, DataLoss("no", reason="RECORD_UNDECODABLE")))
        (refused,) = await answer
        assert (refused.dispatch_index, refused.refusal.reason) == (0, "RECORD_UNDECODABLE")


async def test_numbers_rise_without_gaps_and_answers_find_their_batch(near: Near, run_dir: Path) -> None:
    """Answers come in any order; each sender gets its own."""
    async with delivery_end(run_dir, DeliveryEnd()) as end, running(near.link.run):
        answers = [await near.link.send(batch(number)) for number in range(5)]
        await until(lambda: len(end.batches) == 5)
        assert [one.sequence for one in end.batches] == [1, 2, 3, 4, 5]
        for sequence in (4, 1, 5, 2, 3):
            end.answer(sequence, refusal(sequence, Unavailable("x", reason="STORE_UNAVAILABLE")))
        assert [(await answer)[0].dispatch_index for answer in answers] == [1, 2, 3, 4, 5]


async def test_the_window_bounds_unanswered_batches(near: Near, run_dir: Path) -> None:
    """At most so many are unanswered; each answer lets one more go."""
    async with (
        delivery_end(run_dir, DeliveryEnd(window_count=3)) as end,
        running(near.link.run),
        sending(near, 6) as senders,
    ):
        await until(lambda: len(end.batches) == 3)
        await _settle()
        assert len(end.batches) == 3
        end.answer(2)
        await until(lambda: len(end.batches) == 4)
        for sequence in (1, 3, 4):
            end.answer(sequence)
        await until(lambda: len(end.batches) == 6)
        for sequence in (5, 6):
            end.answer(sequence)
        assert await asyncio.gather(*senders) == [[]] * 6


async def test_the_window_bounds_unanswered_bytes(near: Near, run_dir: Path) -> None:
    """A batch that does not fit waits; one that is larger than the whole window goes alone."""
    async with delivery_end(run_dir, DeliveryEnd(window_bytes=10_000)) as end, running(near.link.run):
        first = await near.link.send(batch(1, 6_000))
        second = asyncio.ensure_future(near.link.send(batch(2, 6_000)))
        await until(lambda: len(end.batches) == 1)
        await _settle()
        assert not second.done()
        end.answer(1)
        await first
        answer = await second
        large = asyncio.ensure_future(near.link.send(batch(3, 50_000)))
        await until(lambda: len(end.batches) == 2)
        await _settle()
        assert not large.done()
        end.answer(2)
        await answer
        answer = await large
        small = asyncio.ensure_future(near.link.send(batch(4)))
        await until(lambda: len(end.batches) == 3)
        await _settle()
        assert not small.done()
        end.answer(3)
        await answer
        await small


async def test_senseless_windows_are_bounded(near: Near, run_dir: Path) -> None:
    """A window of nothing still lets one batch go, and one of thousands never overflows the stream's queue."""
    async with delivery_end(run_dir, DeliveryEnd(window_count=0, window_bytes=0)) as end, running(near.link.run):
        async with sending(near, 2):
            await until(lambda: len(end.batches) == 1)
            assert end.ready is not None
            end.ready.window_count, end.ready.window_bytes = 100_000, 1 << 30
            end.streams[0].cut()
            await until(lambda: len(end.streams) == 2)
        async with sending(near, 500) as senders:
            end.answers_batches = True
            for sequence in sequences(end.streams[1]):
                end.answer(sequence)
            await asyncio.gather(*senders[2:])
        assert len(end.streams) == 2


async def test_a_break_fails_what_was_unanswered(near: Near, run_dir: Path) -> None:
    """The next stream begins its numbers anew; batches that waited for room go over it."""
    async with delivery_end(run_dir, DeliveryEnd(window_count=2)) as end, running(near.link.run):
        answers = [await near.link.send(batch(number)) for number in range(2)]
        waiting = asyncio.ensure_future(near.link.send(batch(2)))
        await until(lambda: len(end.batches) == 2)
        end.answer(1)
        await answers[0]
        await until(lambda: len(end.batches) == 3)
        end.streams[0].cut()
        for answer in (answers[1], await waiting):
            with pytest.raises(Unavailable):
                await answer
        again = await near.link.send(batch(1))
        await until(lambda: len(end.streams) == 2 and sequences(end.streams[1]) == [1])
        end.answer(1)
        assert await again == []
        assert near.count("streams") == 1


async def test_a_late_answer_of_an_old_number_is_ignored(near: Near, run_dir: Path) -> None:
    """Only what is unanswered on this stream can be answered."""
    async with delivery_end(run_dir, DeliveryEnd()) as end, running(near.link.run):
        answer = await near.link.send(batch(1))
        await until(lambda: len(end.batches) == 1)
        end.answer(7)
        end.answer(1)
        end.answer(1)
        assert await answer == []
        answer = await near.link.send(batch(2))
        await until(lambda: len(end.batches) == 2)
        assert not answer.done()
        end.answer(2)
        await answer


async def test_a_drain_moves_to_a_new_stream_without_losing_a_batch(near: Near, run_dir: Path) -> None:
    """Unanswered batches end on the old stream, which is closed in order; what comes meanwhile goes to the new one."""
    async with delivery_end(run_dir, DeliveryEnd()) as end, running(near.link.run):
        old = [await near.link.send(batch(number)) for number in range(2)]
        await until(lambda: len(end.batches) == 2)
        end.streams[0].send(pb.DispatchResponse(drain=pb.DispatchDrain()))
        end.answer(1)
        await old[0]
        new = asyncio.ensure_future(near.link.send(batch(2)))
        await _settle()
        assert not new.done()
        assert len(end.streams) == 1
        end.answer(2)
        assert await old[1] == []
        await until(lambda: end.streams[0].ended)
        answer = await new
        await until(lambda: len(end.streams) == 2 and len(sequences(end.streams[1])) == 1)
        assert sequences(end.streams[0]) == [1, 2]
        end.answer(1)
        assert await answer == []


async def test_an_idle_stream_moves_at_once(near: Near, run_dir: Path) -> None:
    """With nothing unanswered the drain frame alone ends the stream."""
    async with delivery_end(run_dir, DeliveryEnd()) as end, running(near.link.run):
        await until(lambda: near.count("streams") == 1)
        end.streams[0].send(pb.DispatchResponse(drain=pb.DispatchDrain()))
        await until(lambda: len(end.streams) == 2)
        assert end.streams[0].ended


async def test_another_version_is_not_spoken(near: Near, run_dir: Path) -> None:
    """Nothing is sent to a delivery of another version; the link tries again and goes on with one it knows."""
    end = DeliveryEnd()
    assert end.ready is not None
    end.ready.protocol_version = 2
    async with delivery_end(run_dir, end), running(near.link.run):
        sending_one = asyncio.ensure_future(near.link.send(batch(1)))
        await until(lambda: len(end.streams) >= 3)
        assert end.batches == []
        assert not sending_one.done()
        end.ready.protocol_version = 1
        await sending_one


async def test_a_refused_stream_is_tried_again(near: Near, run_dir: Path) -> None:
    """Whatever the refusal says, the link comes back when delivery takes it."""
    end = DeliveryEnd()
    end.refused = FailedPrecondition("not yours", reason="VERSION_UNSUPPORTED")
    async with delivery_end(run_dir, end) as _, running(near.link.run):
        sending_one = asyncio.ensure_future(near.link.send(batch(1)))
        await _settle()
        end.refused = Unavailable("leaving", reason="DRAINING")
        await _settle()
        end.refused = None
        await sending_one
        await until(lambda: len(end.batches) == 1)


async def test_no_delivery_at_all_is_waited_for(near: Near, run_dir: Path) -> None:
    """The link may start first."""
    async with running(near.link.run):
        sending_one = asyncio.ensure_future(near.link.send(batch(1)))
        await _settle()
        async with delivery_end(run_dir, DeliveryEnd()) as end:
            await sending_one
            await until(lambda: len(end.batches) == 1)


async def test_silence_ends_a_stream(near: Near, run_dir: Path) -> None:
    """A peer that answers no ping for three seconds is left, and what was unanswered fails."""
    end = DeliveryEnd()
    end.answers_pings = False
    async with delivery_end(run_dir, end), running(near.link.run):
        answer = await near.link.send(batch(1))
        await until(lambda: any(frame.HasField("ping") for frame in end.streams[0].frames))
        near.clock.advance(2.9)
        await until(lambda: sum(frame.HasField("ping") for frame in end.streams[0].frames) >= 4)
        assert not answer.done()
        near.clock.advance(0.2)
        with pytest.raises(Unavailable):
            await answer
        end.answers_pings = True
        await until(lambda: len(end.streams) == 2)


async def test_pings_keep_a_stream(near: Near, run_dir: Path) -> None:
    """Their numbers rise, and an answered one is a sign of life however much time passes."""
    async with delivery_end(run_dir, DeliveryEnd()) as end, running(near.link.run):
        for seconds in range(1, 6):
            near.clock.advance(2.0)
            pings = near_pings(end)
            await until(lambda wanted=pings + 2: near_pings(end) >= wanted, what=f"ping {seconds}")  # type: ignore[misc]  # the default binds it now
        assert len(end.streams) == 1
        numbers = [frame.ping.ping_number for frame in end.streams[0].frames if frame.HasField("ping")]
        assert numbers == list(range(1, len(numbers) + 1))


def near_pings(end: DeliveryEnd) -> int:
    """How many pings came."""
    return sum(frame.HasField("ping") for far in end.streams for frame in far.frames)


async def test_a_peer_that_never_answers_the_opening_is_left(run_dir: Path) -> None:
    """A stream that is taken and then says nothing has an end."""
    end = DeliveryEnd()
    end.ready = None
    async with calling(run_dir, "fanout") as channels, delivery_end(run_dir, end):
        near = Near(channels, Pace(ping=0.005, silence=0.02, first_retry=0.002, last_retry=0.01))
        async with running(near.link.run):
            await until(lambda: len(end.streams) >= 2)
    await until(lambda: live_calls() == 0)


async def test_unknown_frames_are_counted_and_ignored(near: Near, run_dir: Path) -> None:
    """A newer delivery may say more than this version knows."""
    async with delivery_end(run_dir, DeliveryEnd()) as end, running(near.link.run):
        answer = await near.link.send(batch(1))
        await until(lambda: len(end.batches) == 1)
        end.streams[0].send(pb.DispatchResponse())
        end.answer(1)
        await answer
        assert near.count("unknown_frames_total") == 1


async def test_a_cancelled_link_leaves_nothing(near: Near, run_dir: Path) -> None:
    """In the middle of breaks and waits: the loop ends when it is told to, and no call lives on."""
    for number in range(20):
        async with delivery_end(run_dir, DeliveryEnd()) as end:
            async with running(near.link.run):
                answer = await near.link.send(batch(number))
                await until(lambda seen=end: len(seen.batches) == 1)  # type: ignore[misc]  # the default binds it now
                if number % 2:
                    end.streams[0].cut()
                    for _ in range(number):
                        await asyncio.sleep(0)
            await until(answer.done)
            assert isinstance(answer.exception(), Unavailable)
    assert near.count("streams") == 0


async def test_bulk_rests_after_an_answer_while_high_comes_through(run_dir: Path) -> None:
    """The next batch waits for the rest that the answered one earned, whoever sends it; without high it does not."""
    pacing = Pacing()
    async with calling(run_dir, "fanout") as channels:
        near = Near(channels, pacing=pacing)
        async with delivery_end(run_dir, DeliveryEnd()) as end, running(near.link.run):
            pacing.heard(near.clock.monotonic(), 0.001)
            await near.link.send(batch(1))
            await until(lambda: len(end.batches) == 1)
            near.clock.advance(0.01)
            end.answer(1)
            await until(lambda: pacing.rest(near.clock.monotonic()) > 0.0)
            async with sending(near, 1):
                await _settle()
                assert len(end.batches) == 1
                near.clock.advance(0.04)
                await until(lambda: len(end.batches) == 2)
                near.clock.advance(2.0)
                end.answer(2)
                await near.link.send(batch(3))
                await until(lambda: len(end.batches) == 3)
    await until(lambda: live_calls() == 0, what="all streams closed")

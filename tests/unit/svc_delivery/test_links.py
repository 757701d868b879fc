"""A link against a real gateway end: opening, numbers, window, marks, silence and drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.type.v1 import notification_pb2
from mesh.channel import Channels
from mesh.clock import ManualClock
from mesh.errors import FailedPrecondition, Unavailable
from mesh.links import Pace
from mesh.streams import live_calls
from mesh.telemetry import Telemetry
from svc_delivery import links
from svc_delivery.links import Link
from svc_delivery.metrics import Metrics
from svc_delivery.ports import NodeAddress
from tests.support.delivering import InProcessMarks, store_down
from tests.support.dispatching import id_of, make_envelope
from tests.support.far_ends import DeliverFar, GatewayEnd, calling, gateway_end, running
from tests.support.wait import until

PACE = Pace(ping=0.005, silence=3.0, first_retry=0.002, last_retry=0.01)
NODE = NodeAddress("gw-a-0", 17, "10.0.0.1:7401")


class Near:
    """A link and what it needs."""

    def __init__(
        self, channels: Channels, *, node: NodeAddress = NODE, queue_limit: int = 1_000, pace: Pace = PACE
    ) -> None:
        self.clock = ManualClock()
        self.telemetry = Telemetry("delivery")
        self.marks = InProcessMarks()
        self.steps: list[tuple[str, object]] = []
        self.absent: list[tuple[str, str, list[str]]] = []
        self.link = Link(
            NODE,
            process="delivery",
            epoch=99,
            channels=channels,
            marks=self.marks,
            clock=self.clock,
            metrics=Metrics(self.telemetry),
            queue_limit=queue_limit,
            trace=lambda step, **fields: self.steps.append((step, fields["event_id"])),
            absent=lambda node_id, id_, keys: self.absent.append((node_id, id_, list(keys))),
            pace=pace,
        )

    def count(self, name: str, **labels: str) -> float:
        """A metric."""
        return self.telemetry.registry.get_sample_value(f"heliograph_delivery_{name}", labels) or 0.0

    def offer(self, number: int, *, size: int = 0) -> bool:
        """Offers event `number` to one recipient."""
        return self.link.offer(make_envelope(number, content=b"x" * size), ["acme/alice"])


@pytest.fixture
async def near(run_dir: Path) -> AsyncIterator[Near]:
    """A link that is not running yet."""
    async with calling(run_dir, "delivery") as channels:
        yield Near(channels)
    await until(lambda: live_calls() == 0, what="all streams closed")


def sequences(far: DeliverFar) -> list[int]:
    """Numbers of the batches that came over one stream."""
    return [frame.batch.sequence for frame in far.frames if frame.HasField("batch")]


def marks_of(sequence: int, count: int = 1) -> pb.DeliverResponse:
    """Marks as a node sends them."""
    mark = notification_pb2.Mark(
        recipient_key="acme/alice",
        kind=notification_pb2.MARK_KIND_SEEN,
        refs=[notification_pb2.NotificationRef(notification_id=id_of(sequence), revision=1)],
    )
    return pb.DeliverResponse(marks=pb.MarkBatch(sequence=sequence, marks=[mark] * count))


async def _settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_opening_names_the_node_and_both_epochs(near: Near, run_dir: Path) -> None:
    """The node is in the headers for the sidecar and in the first frame for itself."""
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        assert end.opens == [
            pb.LinkOpen(protocol_version=1, delivery_id="delivery", delivery_epoch=99, node_id="gw-a-0", node_epoch=17)
        ]
        headers = end.streams[0].metadata
        assert headers["x-heliograph-node"] == "gw-a-0"
        assert headers["x-heliograph-node-addr"] == "10.0.0.1:7401"
        assert near.count("links") == 1


async def test_an_offer_arrives_with_its_envelope_and_recipients(near: Near, run_dir: Path) -> None:
    """Offered while there is no stream, it goes as soon as there is one; the answer ends it."""
    assert near.link.offer(make_envelope(3), ["acme/alice", "acme/bob"])
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: len(end.batches) == 1)
        (delivery,) = end.batches[0].deliveries
        assert delivery == pb.Delivery(envelope=make_envelope(3), recipient_keys=["acme/alice", "acme/bob"])
        assert near.link.unfinished == 1
        refused = pb.DeliveryRefusal(sequence=1, delivery_index=0, kind=pb.REFUSAL_KIND_ABSENT)
        refused_one = pb.DeliveryRefusal(sequence=1, kind=pb.REFUSAL_KIND_BEHIND, recipient_keys=["acme/bob"])
        end.take(1, refused, refused_one, pb.DeliveryRefusal(sequence=1, delivery_index=9))
        await until(lambda: near.link.unfinished == 0)
        assert near.count("offered_total") == 2
        assert [near.count("refused_total", kind=kind) for kind in ("absent", "behind", "unknown")] == [2, 1, 0]
    assert near.steps == [("offered", id_of(3)), ("taken", id_of(3))]
    assert near.absent == [("gw-a-0", id_of(3), ["acme/alice", "acme/bob"])]


async def test_after_a_break_untaken_batches_go_again_under_their_number(near: Near, run_dir: Path) -> None:
    """What the node says it has does not; what came meanwhile gets the numbers behind."""
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        for number in range(4):
            near.offer(number)
            await until(lambda wanted=number + 1: len(end.batches) == wanted, what="sent")  # type: ignore[misc]  # bound now
        end.take(1)
        await until(lambda: near.link.unfinished == 3)
        assert end.ready is not None
        end.ready.taken_sequence = 2
        end.streams[0].cut()
        near.offer(9)
        await until(lambda: len(end.streams) == 2 and len(sequences(end.streams[1])) == 3)
        assert sequences(end.streams[1]) == [3, 4, 5]
        again = [frame.batch for frame in end.streams[1].frames if frame.HasField("batch")]
        assert [batch.deliveries[0].envelope.event_id for batch in again] == [id_of(2), id_of(3), id_of(9)]
        end.take(5)
        await until(lambda: near.link.unfinished == 0)


async def test_the_window_is_the_nodes(near: Near, run_dir: Path) -> None:
    """At most so many unanswered batches; what arrives meanwhile becomes the next one."""
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd(window_count=2)) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        for number in range(8):
            near.offer(number)
            await _settle()
        await until(lambda: len(end.batches) == 2)
        assert len(end.batches) == 2
        end.take(1)
        await until(lambda: len(end.batches) == 3)
        assert [delivery.envelope.event_id for delivery in end.batches[2].deliveries] == [
            id_of(number) for number in range(2, 8)
        ]


async def test_a_window_of_any_size_never_overflows_the_stream(near: Near, run_dir: Path) -> None:
    """Whatever a node announces: every batch gets there, once, in order."""
    end = GatewayEnd(window_count=100_000, window_bytes=1 << 30)
    async with gateway_end(run_dir, "gw-a-0", end), running(near.link.run):
        await until(lambda: near.link.is_open)
        for number in range(200):
            assert near.offer(number)
            near.link.change(pb.Change(recipient_key="acme/alice"))
        end.takes_batches = True
        for sequence in sequences(end.streams[0]):
            end.take(sequence)
        await until(lambda: near.link.unfinished == 0 and len(end.changes) == 200)
        got = [delivery.envelope.event_id for batch in end.batches for delivery in batch.deliveries]
        assert got == [id_of(number) for number in range(200)]
        assert len(end.streams) == 1


async def test_the_queue_is_bounded(run_dir: Path) -> None:
    """A node that takes nothing gets only so much kept for it; the rest is told to be not offered."""
    async with calling(run_dir, "delivery") as channels:
        near = Near(channels, queue_limit=10)
        assert [near.offer(number) for number in range(12)] == [True] * 10 + [False] * 2
        assert [near.link.change(pb.Change()) for _ in range(12)] == [True] * 10 + [False] * 2


async def test_marks_are_confirmed_only_after_they_are_durable(near: Near, run_dir: Path) -> None:
    """What comes while one write runs is stored together next, and confirmed by the last number."""
    near.marks.gate.clear()
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        for sequence in range(1, 5):
            end.streams[0].send(marks_of(sequence))
        await until(lambda: near.marks.calls == 1)
        pings = sum(frame.HasField("ping") for frame in end.streams[0].frames)
        await until(lambda: sum(frame.HasField("ping") for frame in end.streams[0].frames) >= pings + 2)
        assert end.stored == []
        near.marks.gate.set()
        await until(lambda: end.stored[-1:] == [4])
        assert len(near.marks.kept) == 4
        assert near.marks.calls <= 2
        assert end.stored == sorted(end.stored)


async def test_marks_are_stored_at_most_500_at_once(near: Near, run_dir: Path) -> None:
    """A batch that is larger goes alone, as it came."""
    near.marks.gate.clear()
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        for sequence, count in enumerate((1, 300, 200, 1, 500), start=1):
            end.streams[0].send(marks_of(sequence, count))
        end.streams[0].send(pb.DeliverResponse(result=pb.DeliverResult()))
        await until(lambda: near.marks.calls == 1)
        near.marks.gate.set()
        await until(lambda: end.stored[-1:] == [5])
        assert len(near.marks.kept) == 1_002


async def test_a_store_that_is_down_confirms_nothing(near: Near, run_dir: Path) -> None:
    """The marks are tried again on the same link until they are durable."""
    near.marks.failure = store_down()
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        end.streams[0].send(marks_of(1))
        await until(lambda: near.marks.calls >= 3)
        assert end.stored == []
        near.marks.failure = None
        await until(lambda: end.stored == [1])
        assert len(near.marks.kept) == 1
        assert len(end.streams) == 1


async def test_marks_of_a_broken_link_are_not_confirmed_on_the_next(near: Near, run_dir: Path) -> None:
    """Numbers of marks begin anew with each stream; the node sends again what was not confirmed."""
    near.marks.failure = store_down()
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        end.streams[0].send(marks_of(1))
        end.streams[0].send(marks_of(2))
        await until(lambda: near.marks.calls >= 2)
        end.streams[0].cut()
        await until(lambda: len(end.streams) == 2 and near.link.is_open)
        near.marks.failure = None
        await _settle()
        assert end.stored == []
        end.streams[1].send(marks_of(1))
        await until(lambda: end.stored == [1])
        assert len(near.marks.kept) == 1


async def test_marks_that_pile_up_break_the_link(near: Near, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the node's until they are confirmed, so nothing is lost by dropping them here."""
    monkeypatch.setattr(links, "_MARK_BATCHES", 3)
    near.marks.gate.clear()
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        for sequence in range(1, 5):
            end.streams[0].send(marks_of(sequence))
        await until(lambda: len(end.streams) == 2 and near.link.is_open)
        near.marks.gate.set()
        end.streams[1].send(marks_of(1))
        await until(lambda: end.stored == [1])


async def test_changes_reach_the_node(near: Near, run_dir: Path) -> None:
    """In order, beside the window of deliveries."""
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        for number in range(1_000):
            assert near.link.change(pb.Change(recipient_key=f"acme/r{number}"))
        await until(lambda: len(end.changes) == 1_000)
        assert [change.recipient_key for change in end.changes] == [f"acme/r{number}" for number in range(1_000)]
        sizes = [len(frame.changes.changes) for frame in end.streams[0].frames if frame.HasField("changes")]
        assert max(sizes) <= 500


async def test_a_draining_node_gets_no_more_deliveries(near: Near, run_dir: Path) -> None:
    """What waits and what comes is left to the follow-up; a new stream takes deliveries again."""
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd(window_count=1)) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        near.offer(0)
        await until(lambda: len(end.batches) == 1)
        near.offer(1)
        near.offer(2)
        end.streams[0].send(pb.DeliverResponse(drain=pb.LinkDrain()))
        await until(lambda: not near.link.is_open)
        assert not near.offer(3)
        assert not near.link.change(pb.Change())
        assert near.count("not_offered_total") == 2
        end.take(1)
        await until(lambda: near.link.unfinished == 0)
        assert len(end.batches) == 1
        end.streams[0].cut()
        await until(lambda: near.link.is_open)
        assert near.offer(4)
        await until(lambda: len(end.batches) == 2)


async def test_another_version_is_not_spoken(near: Near, run_dir: Path) -> None:
    """The link stays closed and tries again; offers wait meanwhile."""
    end = GatewayEnd()
    assert end.ready is not None
    end.ready.protocol_version = 2
    near.offer(1)
    async with gateway_end(run_dir, "gw-a-0", end), running(near.link.run):
        await until(lambda: len(end.streams) >= 3)
        assert not near.link.is_open
        assert end.batches == []
        end.ready.protocol_version = 1
        await until(lambda: len(end.batches) == 1)


async def test_a_node_that_refuses_is_tried_again(near: Near, run_dir: Path) -> None:
    """Another process may answer at the address until the list is up to date."""
    end = GatewayEnd()
    end.refused = FailedPrecondition("another epoch", reason="NODE_MISMATCH")
    near.offer(1)
    async with gateway_end(run_dir, "gw-a-0", end), running(near.link.run):
        await _settle()
        end.refused = Unavailable("starting", reason="DRAINING")
        await _settle()
        end.refused = None
        await until(lambda: len(end.batches) == 1)


async def test_silence_ends_the_stream(near: Near, run_dir: Path) -> None:
    """A node that says nothing for three seconds is left; its batches go again when it answers."""
    end = GatewayEnd()
    end.answers_pings = False
    async with gateway_end(run_dir, "gw-a-0", end), running(near.link.run):
        near.offer(1)
        await until(lambda: len(end.batches) == 1)
        near.clock.advance(2.9)
        pings = sum(frame.HasField("ping") for frame in end.streams[0].frames)
        await until(lambda: sum(frame.HasField("ping") for frame in end.streams[0].frames) >= pings + 2)
        assert len(end.streams) == 1
        near.clock.advance(0.2)
        await until(lambda: len(end.streams) == 2 and sequences(end.streams[1]) == [1])


async def test_a_node_that_never_answers_the_opening_is_left(run_dir: Path) -> None:
    """A stream that is taken and then says nothing has an end."""
    end = GatewayEnd()
    end.ready = None
    async with calling(run_dir, "delivery") as channels, gateway_end(run_dir, "gw-a-0", end):
        impatient = Near(channels, pace=Pace(ping=0.005, silence=0.02, first_retry=0.002, last_retry=0.01))
        async with running(impatient.link.run):
            await until(lambda: len(end.streams) >= 2)


async def test_unknown_frames_are_counted_and_ignored(near: Near, run_dir: Path) -> None:
    """A newer node may say more than this version knows."""
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        end.streams[0].send(pb.DeliverResponse())
        await until(lambda: near.count("unknown_frames_total") == 1)
        assert near.link.is_open


async def test_a_bug_in_storing_marks_breaks_the_link_and_not_the_process(near: Near, run_dir: Path) -> None:
    """It is logged, and the link comes back."""
    near.marks.failure = KeyError("bug")  # type: ignore[assignment]  # anything but a failure
    async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
        await until(lambda: near.link.is_open)
        end.streams[0].send(marks_of(1))
        await until(lambda: len(end.streams) == 2 and near.link.is_open)
        near.marks.failure = None
        end.streams[1].send(marks_of(1))
        await until(lambda: end.stored == [1])


async def test_a_cancelled_link_leaves_nothing(near: Near, run_dir: Path) -> None:
    """Also when its stream breaks in the same moment, again and again."""
    for round_ in range(20):
        async with gateway_end(run_dir, "gw-a-0", GatewayEnd()) as end, running(near.link.run):
            near.offer(round_)
            await until(lambda seen=end: len(seen.batches) >= 1, what="sent")  # type: ignore[misc]  # bound now
            if round_ % 2:
                end.streams[0].cut()
                for _ in range(round_):
                    await asyncio.sleep(0)
    assert near.count("links") == 0
    assert len(near.link.hand_over()[0]) == 20

"""Dispatch over a real server with a real store: when it answers, what it refuses, and how streams end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.delivery.v1 import delivery_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.channel import Channels
from mesh.clock import ManualClock, Stamper
from mesh.errors import FailedPrecondition, Failure, InvalidArgument, PermissionDenied, Unavailable, from_description
from mesh.ids import from_text
from mesh.streams import Bidi, connect, live_calls
from mesh.telemetry import Telemetry
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.ports import RowKey
from svc_delivery.service import WINDOW_BYTES, DeliveryService
from svc_delivery.settled import Settled
from svc_delivery.store import InboxStore, open_store
from svc_delivery.writes import FreshWriter
from tests.support.delivering import InProcessNodes, InProcessPresence, UnsteadyInbox, store_down
from tests.support.dispatching import id_of, make_envelope
from tests.support.far_ends import calling, running, serving
from tests.support.wait import until

OPEN = pb.DispatchRequest(
    open=pb.DispatchOpen(protocol_version=1, fanout_id="fanout", priority=notification_pb2.PRIORITY_NORMAL)
)
INBOX = plan_pb2.PlanStep(channel=notification_pb2.CHANNEL_INBOX)
LIVE = plan_pb2.Plan(steps=[INBOX, plan_pb2.PlanStep(channel=notification_pb2.CHANNEL_LIVE)])
NOTHING = plan_pb2.Plan(suppress_reason=plan_pb2.SUPPRESS_REASON_OPTED_OUT)


class Delivery:
    """The servicer on a store, with in-process presence and nodes."""

    def __init__(self, store: InboxStore, channels: Channels, *, silence: float, window_count: int) -> None:
        self.store = store
        self.channels = channels
        self.clock = ManualClock()
        self.inbox = UnsteadyInbox(store.inbox)
        self.presence = InProcessPresence()
        self.nodes = InProcessNodes()
        self.telemetry = Telemetry("delivery")
        metrics = Metrics(self.telemetry)
        self.offers = Offers(
            presence=self.presence, nodes=self.nodes, settled=Settled(keep=60.0), metrics=metrics, limit=1_000
        )
        self.steps: list[tuple[str, object]] = []
        self.service = DeliveryService(
            writer=FreshWriter(inbox=self.inbox, stamper=Stamper(self.clock), limit=5.0, late=lambda: None),
            offers=self.offers,
            clock=self.clock,
            metrics=metrics,
            process="delivery",
            window_count=window_count,
            trace=lambda step, **fields: self.steps.append((step, fields["event_id"])),
            silence=silence,
            watch_interval=0.005,
        )

    def count(self, name: str) -> float:
        """A metric."""
        return self.telemetry.registry.get_sample_value(f"heliograph_delivery_{name}") or 0.0

    @contextlib.asynccontextmanager
    async def caller(self, *, opening: pb.DispatchRequest = OPEN) -> AsyncIterator[Caller]:
        """A stream as fanout opens it; the first answer is read."""
        stub = pb_grpc.DeliveryServiceStub(self.channels.stream("delivery"))
        async with connect(stub.Dispatch, metadata=self.channels.metadata(), limit=1_000) as stream:
            caller = Caller(stream)
            writing = asyncio.ensure_future(stream.write_loop())
            try:
                stream.send(opening)
                frame = await stream.read()
                assert frame is not None
                caller.ready = frame.ready
                yield caller
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    async def has_row(self, number: int, name: str) -> bool:
        """Whether a recipient has event `number` in the inbox."""
        (state,) = await self.store.inbox.states([RowKey(f"acme/{name}", from_text(id_of(number)))])
        return state is not None


class Caller:
    """The near end of a stream."""

    def __init__(self, stream: Bidi[pb.DispatchRequest, pb.DispatchResponse]) -> None:
        self.stream = stream
        self.ready = pb.DispatchReady()

    def send(self, sequence: int, *dispatches: pb.Dispatch) -> None:
        """Sends a batch."""
        batch = pb.DispatchBatch(sequence=sequence, plans=[LIVE, NOTHING], dispatches=dispatches)
        assert self.stream.send(pb.DispatchRequest(batch=batch))

    async def read(self) -> pb.DispatchResponse:
        """The next frame."""
        frame = await self.stream.read()
        assert frame is not None
        return frame

    async def result(self) -> pb.DispatchResult:
        """The next answer to a batch."""
        while not (frame := await self.read()).HasField("result"):
            continue
        return frame.result

    async def ended_with(self) -> Failure | None:
        """Reads to the end and returns the failure that it ends with, if any."""
        try:
            while await self.stream.read() is not None:
                continue
        except Failure as failure:
            return failure
        return None


@contextlib.asynccontextmanager
async def serving_delivery(
    tmp_path: Path, run_dir: Path, *, silence: float = 3.0, window_count: int = 8
) -> AsyncIterator[Delivery]:
    """A delivery that serves."""
    store = open_store("sqlite:///inbox.db", tmp_path)
    await store.open()
    try:
        async with calling(run_dir, "fanout") as channels:
            made = Delivery(store, channels, silence=silence, window_count=window_count)
            service = pb.DESCRIPTOR.services_by_name["DeliveryService"]
            add = pb_grpc.add_DeliveryServiceServicer_to_server
            async with running(made.offers.run), serving(run_dir, "delivery", service, add, made.service):
                yield made
    finally:
        await store.close()
    await until(lambda: live_calls() == 0, what="all streams closed")


@pytest.fixture
async def delivery(tmp_path: Path, run_dir: Path) -> AsyncIterator[Delivery]:
    """A delivery that serves."""
    async with serving_delivery(tmp_path, run_dir) as made:
        yield made


def dispatch(number: int, recipient_ids: Sequence[str] = ("alice",), *, plan_index: int = 0) -> pb.Dispatch:
    """Event `number` for recipients."""
    groups = [plan_pb2.RecipientGroup(recipient_ids=recipient_ids, plan_index=plan_index)]
    return pb.Dispatch(envelope=make_envelope(number), groups=groups)


async def test_the_answer_to_the_opening_announces_the_window(delivery: Delivery) -> None:
    """Version, batches, bytes, and only features that both know."""
    opening = pb.DispatchRequest()
    opening.CopyFrom(OPEN)
    opening.open.features.append("something new")
    async with delivery.caller(opening=opening) as caller:
        assert caller.ready == pb.DispatchReady(protocol_version=1, window_count=8, window_bytes=WINDOW_BYTES)


async def test_what_is_answered_is_durable(delivery: Delivery) -> None:
    """Row, follow-up and decision are there when the answer comes, and not before; then the offer follows."""
    delivery.presence.where = {"acme/alice": ("n1",)}
    delivery.inbox.gate.clear()
    async with delivery.caller() as caller:
        caller.send(1, dispatch(1), dispatch(2, ["bob"], plan_index=1))
        await until(lambda: delivery.inbox.calls["write"] == 1)
        caller.stream.send(pb.DispatchRequest(ping=pb.DispatchPing(ping_number=5)))
        assert (await caller.read()).ping.ping_number == 5
        assert not await delivery.has_row(1, "alice")
        delivery.inbox.gate.set()
        assert await caller.result() == pb.DispatchResult(sequence=1)
        assert await delivery.has_row(1, "alice")
        assert not await delivery.has_row(2, "bob")
        (decision,) = await delivery.store.inbox.decisions("acme", from_text(id_of(2)))
        assert decision.recipient_ids == ("bob",)
        assert await delivery.store.follow_ups.next_due() == round(delivery.clock.wall() * 1_000_000) + 10_000_000
        await until(lambda: len(delivery.nodes.offered) == 1)
    assert [envelope.event_id for _, envelope, _ in delivery.nodes.offered] == [id_of(1)]
    assert delivery.steps == [(step, id_of(number)) for step in ("inboxed", "handed_on") for number in (1, 2)]
    assert (delivery.count("inboxed_total"), delivery.count("suppressed_total")) == (1, 1)


async def test_a_store_that_fails_refuses_every_event_with_a_delay(delivery: Delivery) -> None:
    """Nothing is offered; the same batch again is taken when the store is back."""
    delivery.presence.where = {"acme/alice": ("n1",)}
    delivery.inbox.failure = store_down()
    async with delivery.caller() as caller:
        caller.send(1, dispatch(1), dispatch(2))
        result = await caller.result()
        assert [refusal.dispatch_index for refusal in result.refusals] == [0, 1]
        for refusal in result.refusals:
            failure = from_description(refusal.refusal)
            assert (failure.reason, failure.retriable, failure.retry_delay) == ("STORE_UNAVAILABLE", True, 1.0)
        assert delivery.nodes.offered == []
        delivery.inbox.failure = None
        caller.send(2, dispatch(1), dispatch(2))
        assert await caller.result() == pb.DispatchResult(sequence=2)
        await until(lambda: len(delivery.nodes.offered) == 2)


async def test_a_batch_that_was_not_answered_may_come_again(tmp_path: Path, run_dir: Path) -> None:
    """After a crash between write and answer the same rows are there once, with a second follow-up."""
    async with serving_delivery(tmp_path, run_dir) as first, first.caller() as caller:
        caller.send(1, dispatch(1, ["alice", "bob"]))
        await caller.result()
    async with serving_delivery(tmp_path, run_dir) as second, second.caller() as caller:
        caller.send(1, dispatch(1, ["alice", "bob"]))
        await caller.result()
        window = await second.store.inbox.window("acme/alice", round(second.clock.wall() * 1_000_000))
        assert [row.notification_id for row in window.rows] == [from_text(id_of(1))]
        later = round(second.clock.wall() * 1_000_000) + 60_000_000
        assert len(await second.store.follow_ups.due(later, 10)) == 2


async def test_an_event_that_cannot_be_read_is_refused_alone(delivery: Delivery) -> None:
    """For good, by its index; its neighbours are durable."""
    bad = dispatch(2)
    bad.envelope.notification_id = "nonsense"
    async with delivery.caller() as caller:
        caller.send(1, dispatch(1), bad, dispatch(3))
        (refusal,) = (await caller.result()).refusals
        assert (refusal.dispatch_index, refusal.refusal.reason) == (1, "RECORD_UNDECODABLE")
        assert not refusal.refusal.HasField("retry_delay")
        assert [await delivery.has_row(number, "alice") for number in (1, 3)] == [True, True]


async def test_an_event_that_breaks_the_store_is_refused_alone(delivery: Delivery) -> None:
    """It would break every stream it comes over: it is refused for good, and the rest of its batch is taken."""
    delivery.presence.where = {"acme/alice": ("n1",)}
    delivery.inbox.poison = make_envelope(2).notification
    async with delivery.caller() as caller:
        caller.send(1, *[dispatch(number) for number in range(4)])
        (refusal,) = (await caller.result()).refusals
        assert (refusal.dispatch_index, refusal.refusal.reason) == (2, "INTERNAL")
        assert not from_description(refusal.refusal).retriable
        await until(lambda: len(delivery.nodes.offered) == 3)
        assert [await delivery.has_row(number, "alice") for number in range(4)] == [True, True, False, True]
        caller.send(2, dispatch(2))
        (refusal,) = (await caller.result()).refusals
        assert refusal.refusal.reason == "INTERNAL"
        caller.send(3, dispatch(5))
        assert await caller.result() == pb.DispatchResult(sequence=3)
    assert delivery.count("inboxed_total") == 4


async def test_rows_of_one_recipient_keep_the_order_of_batches(delivery: Delivery) -> None:
    """Many batches in flight: stamps and offers rise with the batches."""
    delivery.presence.where = {"acme/alice": ("n1",)}
    async with delivery.caller() as caller:
        for start in range(0, 80, 8):
            for number in range(start, start + 8):
                caller.send(number + 1, dispatch(number))
            results = [(await caller.result()).sequence for _ in range(8)]
            assert sorted(results) == list(range(start + 1, start + 9))
        await until(lambda: len(delivery.nodes.offered) == 80)
    assert [envelope.event_id for _, envelope, _ in delivery.nodes.offered] == [id_of(number) for number in range(80)]
    keys = [RowKey("acme/alice", from_text(id_of(number))) for number in range(80)]
    stamps = [state.stamp for state in await delivery.store.inbox.states(keys) if state is not None]
    assert len(stamps) == 80
    assert stamps == sorted(stamps)


async def test_more_than_the_window_is_refused(tmp_path: Path, run_dir: Path) -> None:
    """A caller that ignores the window loses its stream, so that it cannot fill memory."""
    async with serving_delivery(tmp_path, run_dir, window_count=2) as delivery:
        delivery.inbox.gate.clear()
        async with delivery.caller() as caller:
            for sequence in range(1, 6):
                caller.send(sequence, dispatch(sequence))
            failure = await caller.ended_with()
        assert isinstance(failure, InvalidArgument)
        assert failure.reason == "FRAME_INVALID"
        delivery.inbox.gate.set()


@pytest.mark.parametrize(
    ("opening", "category", "reason"),
    [
        (pb.DispatchRequest(ping=pb.DispatchPing()), InvalidArgument, "FRAME_INVALID"),
        (pb.DispatchRequest(batch=pb.DispatchBatch(sequence=1)), InvalidArgument, "FRAME_INVALID"),
        (pb.DispatchRequest(open=pb.DispatchOpen(protocol_version=2)), FailedPrecondition, "VERSION_UNSUPPORTED"),
        (pb.DispatchRequest(open=pb.DispatchOpen()), FailedPrecondition, "VERSION_UNSUPPORTED"),
    ],
    ids=["ping", "batch", "newer", "no version"],
)
async def test_a_wrong_opening_is_refused(
    delivery: Delivery, opening: pb.DispatchRequest, category: type[Failure], reason: str
) -> None:
    """With its reason, and without disturbing another stream."""
    async with delivery.caller() as good:
        with pytest.raises(category) as caught:
            async with delivery.caller(opening=opening):
                pass
        assert caught.value.reason == reason
        good.send(1, dispatch(1))
        await good.result()


async def test_only_fanout_may_dispatch(delivery: Delivery) -> None:
    """The contract's list of callers stands before the servicer."""
    stub = pb_grpc.DeliveryServiceStub(delivery.channels.stream("delivery"))
    with pytest.raises(PermissionDenied):
        async with connect(stub.Dispatch, metadata=(("x-heliograph-caller", "svc/gateway"),), limit=4):
            pass


async def test_a_stream_that_is_never_opened_ends(tmp_path: Path, run_dir: Path) -> None:
    """A caller that connects and says nothing holds nothing for long."""
    async with serving_delivery(tmp_path, run_dir, silence=0.02) as delivery:
        stub = pb_grpc.DeliveryServiceStub(delivery.channels.stream("delivery"))
        async with connect(stub.Dispatch, metadata=delivery.channels.metadata(), limit=4) as stream:
            with pytest.raises(Failure):
                await stream.read()


async def test_silence_ends_a_stream(delivery: Delivery) -> None:
    """Pings keep it; three seconds without any frame end it."""
    async with delivery.caller() as caller:
        for number in range(3):
            delivery.clock.advance(2.9)
            caller.stream.send(pb.DispatchRequest(ping=pb.DispatchPing(ping_number=number)))
            assert (await caller.read()).ping.ping_number == number
        delivery.clock.advance(3.1)
        failure = await caller.ended_with()
        assert isinstance(failure, Unavailable)


async def test_unknown_frames_are_counted_and_ignored(delivery: Delivery) -> None:
    """A newer fanout may say more than this version knows."""
    async with delivery.caller() as caller:
        caller.stream.send(pb.DispatchRequest())
        caller.send(1, dispatch(1))
        await caller.result()
    assert delivery.count("unknown_frames_total") == 1


async def test_a_caller_that_ends_gets_its_answers_first(delivery: Delivery) -> None:
    """Closing its side means "no more batches", not "no more answers"."""
    delivery.inbox.gate.clear()
    async with delivery.caller() as caller:
        for sequence in range(1, 4):
            caller.send(sequence, dispatch(sequence))
        caller.stream.close()
        await until(lambda: delivery.inbox.calls["write"] == 3)
        delivery.inbox.gate.set()
        assert sorted([(await caller.result()).sequence for _ in range(3)]) == [1, 2, 3]
        assert await caller.stream.read() is None


async def test_a_drain_waits_for_answers_and_takes_no_new_stream(delivery: Delivery) -> None:
    """Every caller is asked to move; what is in flight is answered; a new stream is refused with that reason."""
    delivery.inbox.gate.clear()
    async with delivery.caller() as busy, delivery.caller() as idle:
        busy.send(1, dispatch(1))
        await until(lambda: delivery.inbox.calls["write"] == 1)
        draining = asyncio.ensure_future(delivery.service.drain())
        assert (await busy.read()).HasField("drain")
        assert (await idle.read()).HasField("drain")
        with pytest.raises(Unavailable) as caught:
            async with delivery.caller():
                pass
        assert caught.value.reason == "DRAINING"
        idle.stream.close()
        assert await idle.stream.read() is None
        assert not draining.done()
        delivery.inbox.gate.set()
        assert (await busy.result()).sequence == 1
        busy.stream.close()
        assert await busy.stream.read() is None
        await draining
    await delivery.service.drain()


async def test_a_caller_that_vanishes_leaves_nothing(delivery: Delivery) -> None:
    """Cut in the middle of a write, the stream is forgotten, and a drain does not wait for it."""
    delivery.inbox.gate.clear()
    async with delivery.caller() as caller:
        caller.send(1, dispatch(1))
        await until(lambda: delivery.inbox.calls["write"] == 1)
    delivery.inbox.gate.set()
    await until(lambda: live_calls() == 0)
    await delivery.service.drain()

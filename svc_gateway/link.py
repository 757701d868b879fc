"""GatewayService: the links over which delivery processes hand notifications to this node and take its marks.

One link a delivery process. Each batch is answered when it has been looked at; batches that are known are skipped.
Nothing waits here: what a session does not take is refused, and comes from the inbox. Must not decide for a session.
Steps 6, 7 and 11 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc.aio
import msgspec

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.gateway.v1 import gateway_service_pb2_grpc as pb_grpc
from mesh.clock import Clock
from mesh.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from mesh.streams import Bidi, accept
from mesh.telemetry import logger
from mesh.times import micros_of
from svc_gateway import frames
from svc_gateway.decisions import Offer
from svc_gateway.lease import NodeLease
from svc_gateway.service import Gateway

PROTOCOL_VERSION = 1
FEATURES: frozenset[str] = frozenset()

_PING_INTERVAL = 1.0
_SILENCE_LIMIT = 3.0
_QUEUED_FRAMES = 256
_FLUSH_DELAY = 0.005
# Mark batches that may be unconfirmed on one link; more wait and travel together.
_MARK_WINDOW = 8
# Offers made before other work of the event loop gets its turn.
_OFFERS_IN_A_ROW = 500
# S, the largest difference of two clocks in seconds: nothing is over before everybody agrees.
_CLOCK_ALLOWANCE = 1.0
# Seconds over which sessions compare their inboxes after a link has begun: a crash costs a device 30 s at most.
_LOOK_WITHIN = 10.0
# Delivery processes whose batch numbers are remembered after their link is gone.
_REMEMBERED = 64

_Stream = Bidi[pb.DeliverResponse, pb.DeliverRequest]
_Context = grpc.aio.ServicerContext[pb.DeliverRequest, pb.DeliverResponse]


class Window(msgspec.Struct, frozen=True):
    """What a link may have unanswered."""

    count: int
    bytes: int


class GatewayLinks(pb_grpc.GatewayServiceServicer):
    """Serves the links."""

    def __init__(
        self,
        *,
        gateway: Gateway,
        lease: NodeLease,
        window: Window,
        clock: Clock,
        trace: Callable[..., None] | None,
    ) -> None:
        self._gateway = gateway
        self._lease = lease
        self._window = window
        self._clock = clock
        self._trace = trace
        self._links: dict[str, _Link] = {}
        # Delivery process → its epoch and the last batch that was looked at.
        self._taken: dict[str, tuple[int, int]] = {}

    async def Deliver(  # type: ignore[override]  # coroutine style
        self, request_iterator: object, context: _Context
    ) -> None:
        """Serves one link until it ends."""
        stream: _Stream = await accept(context, limit=_QUEUED_FRAMES, marker=self._lease.node_id)
        link = _Link(self, stream, self._gateway, self._clock)
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(stream.write_loop())
                watching = group.create_task(link.watch())
                await self._serve(link, stream)
                watching.cancel()
                stream.close()
                await writing
        finally:
            self._drop(link)

    async def _serve(self, link: _Link, stream: _Stream) -> None:
        frame = await stream.read()
        if frame is None:
            return
        if frame.WhichOneof("frame") != "open":
            raise InvalidArgument("a link begins with an open frame", reason="FRAME_INVALID")
        self._open(link, frame.open)
        while (frame := await stream.read()) is not None:
            link.check()
            match frame.WhichOneof("frame"):
                case "batch":
                    await self._take_batch(link, frame.batch)
                case "stored":
                    link.stored(frame.stored.sequence)
                case "changes":
                    for change in frame.changes.changes:
                        self._gateway.change(change)
                case "look":
                    self._gateway.look_soon(_LOOK_WITHIN)
                case "ping":
                    pass
                case "open":
                    raise InvalidArgument("a link has one open frame", reason="FRAME_INVALID")
                case _:
                    self._gateway.metrics.frames_unknown.inc()

    def _open(self, link: _Link, opened: pb.LinkOpen) -> None:
        lease = self._lease
        if opened.node_id != lease.node_id or opened.node_epoch not in (0, lease.epoch):
            raise FailedPrecondition(
                f"this is node {lease.node_id} with epoch {lease.epoch}",
                reason="NODE_MISMATCH",
                metadata={"node_id": lease.node_id, "node_epoch": str(lease.epoch)},
            )
        if opened.protocol_version != PROTOCOL_VERSION:
            raise FailedPrecondition(
                f"this node speaks protocol version {PROTOCOL_VERSION}", reason="VERSION_UNSUPPORTED"
            )
        name = opened.delivery_id
        if not name:
            raise InvalidArgument("open.delivery_id: must not be empty", reason="FIELD_INVALID")
        epoch, taken = self._taken.pop(name, (opened.delivery_epoch, 0))
        if epoch != opened.delivery_epoch:
            taken = 0
        self._remember(name, opened.delivery_epoch, taken)
        link.send(
            pb.DeliverResponse(
                ready=pb.LinkReady(
                    protocol_version=PROTOCOL_VERSION,
                    node_id=lease.node_id,
                    node_epoch=lease.epoch,
                    taken_sequence=taken,
                    window_count=self._window.count,
                    window_bytes=self._window.bytes,
                    features=sorted(FEATURES.intersection(opened.features)),
                )
            )
        )
        older = self._links.get(name)
        if older is not None:
            older.replaced = True
        self._links[name] = link
        link.begin(name, opened.delivery_epoch)
        self._gateway.metrics.links.set(len(self._links))
        # While there was no link nothing was offered here, and an ack of the recipient's other device ended the matter.
        self._gateway.look_soon(_LOOK_WITHIN)
        if lease.left:
            link.drain()

    def _remember(self, name: str, epoch: int, taken: int) -> None:
        self._taken[name] = (epoch, taken)
        if len(self._taken) > _REMEMBERED:
            for stale in [one for one in self._taken if one not in self._links][: len(self._taken) - _REMEMBERED]:
                del self._taken[stale]

    def _drop(self, link: _Link) -> None:
        if self._links.get(link.name) is link:
            del self._links[link.name]
            self._gateway.metrics.links.set(len(self._links))
        link.end()

    def drain(self) -> None:
        """Tells every delivery process that this node takes no more; what is taken already stays taken."""
        for link in self._links.values():
            link.drain()

    # ------------------------------------------------------------ batches

    async def _take_batch(self, link: _Link, batch: pb.DeliverBatch) -> None:
        _, taken = self._taken[link.name]
        refusals: list[pb.DeliveryRefusal] = []
        if batch.sequence > taken:
            # Noted first: should the link break now, the batch is not offered twice.
            self._taken[link.name] = (link.epoch, batch.sequence)
            await self._offer_all(link, batch, refusals)
        _, taken = self._taken[link.name]
        link.send(pb.DeliverResponse(result=pb.DeliverResult(taken_sequence=taken, refusals=refusals)))

    async def _offer_all(self, link: _Link, batch: pb.DeliverBatch, refusals: list[pb.DeliveryRefusal]) -> None:
        in_a_row = count = 0
        for index, delivery in enumerate(batch.deliveries):
            keys = delivery.recipient_keys
            count += len(keys)
            if self._trace is not None:
                self._trace("received", event_id=delivery.envelope.event_id, delivery_id=link.name)
            if link.draining:
                self._gateway.metrics.refused_draining.inc(len(keys))
                refusals.append(_refusal(batch, index, pb.REFUSAL_KIND_DRAINING, []))
                continue
            seconds_left = self._seconds_left(delivery)
            if seconds_left < 0.0:
                # It waited out its time in a queue: a late offer helps nobody, and its row says the same.
                self._gateway.metrics.expired.inc(len(keys))
                continue
            absent, behind = self._offer(link, delivery, seconds_left)
            if absent:
                self._gateway.metrics.refused_absent.inc(len(absent))
                named = absent if len(absent) < len(keys) else []
                refusals.append(_refusal(batch, index, pb.REFUSAL_KIND_ABSENT, named))
            if behind:
                self._gateway.metrics.refused_behind.inc(len(behind))
                named = behind if len(behind) < len(keys) else []
                refusals.append(_refusal(batch, index, pb.REFUSAL_KIND_BEHIND, named))
            in_a_row += len(keys)
            if in_a_row >= _OFFERS_IN_A_ROW:
                in_a_row = 0
                await asyncio.sleep(0)
        self._gateway.metrics.accepted.inc(count)

    def _seconds_left(self, delivery: pb.Delivery) -> float:
        envelope = delivery.envelope
        if not envelope.HasField("expire_time"):
            return float("inf")
        return micros_of(envelope.expire_time) / 1e6 + _CLOCK_ALLOWANCE - self._clock.wall()

    def _offer(self, link: _Link, delivery: pb.Delivery, seconds_left: float) -> tuple[list[str], list[str]]:
        envelope = delivery.envelope
        frame = frames.notify(envelope.notification)
        id_, revision, source, offer = envelope.notification_id, envelope.revision, link.name, self._gateway.offer
        absent: list[str] = []
        behind: list[str] = []
        for key in delivery.recipient_keys:
            outcome = offer(key, id_, revision, source, frame, seconds_left)
            if outcome is Offer.ABSENT:
                absent.append(key)
            elif outcome is Offer.BEHIND:
                behind.append(key)
        return absent, behind


def _refusal(batch: pb.DeliverBatch, index: int, kind: pb.RefusalKind.ValueType, keys: list[str]) -> pb.DeliveryRefusal:
    return pb.DeliveryRefusal(sequence=batch.sequence, delivery_index=index, kind=kind, recipient_keys=keys)


class _Link:
    """One open link: its frames out, its marks, its signs of life."""

    def __init__(self, owner: GatewayLinks, stream: _Stream, gateway: Gateway, clock: Clock) -> None:
        self.name = ""
        self.epoch = 0
        self.draining = False
        # The same delivery process has opened another link.
        self.replaced = False
        self._heard = clock.monotonic()
        self._stream = stream
        self._gateway = gateway
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._log = logger()
        # One object for both: the ledger knows a link by it.
        self._wake_me = self._wake

    def send(self, frame: pb.DeliverResponse) -> None:
        """Queues a frame; a peer that reads none of them loses the link."""
        if not self._stream.send(frame):
            raise ResourceExhausted("the link's frames are not read", reason="OVERLOADED")

    def begin(self, name: str, epoch: int) -> None:
        """The link is open: marks may go."""
        self.name, self.epoch = name, epoch
        self._log.info("link_opened", delivery_id=name, delivery_epoch=epoch)
        self._gateway.marks.attach(name, self._wake_me)

    def end(self) -> None:
        """The link is gone: its marks go elsewhere."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.name:
            self._gateway.marks.detach(self.name, self._wake_me, self._clock.monotonic())
            self._log.info("link_closed", delivery_id=self.name)

    def drain(self) -> None:
        """Takes no more deliveries."""
        if not self.draining:
            self.draining = True
            self._stream.send(pb.DeliverResponse(drain=pb.LinkDrain()))

    def check(self) -> None:
        """Notes a sign of life; raises Unavailable when another link has taken this one's place."""
        self._heard = self._clock.monotonic()
        if self.replaced:
            raise Unavailable("another link took this one's place", reason="PEER_UNAVAILABLE")

    async def watch(self) -> None:
        """Shows that this node lives, and ends the link when the peer does not."""
        number = 0
        while True:
            await asyncio.sleep(_PING_INTERVAL)
            if self.replaced or self._clock.monotonic() - self._heard > _SILENCE_LIMIT:
                raise Unavailable(f"the link was silent for {_SILENCE_LIMIT:g} s", reason="PEER_UNAVAILABLE")
            number += 1
            self._stream.send(pb.DeliverResponse(ping=pb.LinkPing(ping_number=number)))

    # ------------------------------------------------------------ marks

    def stored(self, sequence: int) -> None:
        """The peer has stored mark batches."""
        self._gateway.stored(self._gateway.marks.stored(self.name, sequence))
        self._wake()

    def _wake(self) -> None:
        """Something waits: it goes in 5 ms with what comes meanwhile, a full batch at once."""
        if self._timer is None and self._gateway.marks.waiting(self.name):
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_DELAY, self._flush)

    def _flush(self) -> None:
        self._timer = None
        ledger = self._gateway.marks
        if self.replaced:
            return
        while ledger.outstanding(self.name) < _MARK_WINDOW and self._stream.pending < _QUEUED_FRAMES // 2:
            batch = ledger.next_batch(self.name)
            if batch is None:
                break
            sequence, items = batch
            marks = pb.MarkBatch(sequence=sequence, marks=[item.mark for item in items])
            self._stream.send(pb.DeliverResponse(marks=marks))

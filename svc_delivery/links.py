"""One stream to every gateway node: deliveries out, results and marks back.

Path steps 6 and 7. Batches are numbered per process; what a node has not taken when a link breaks is offered again
under its number. The window is the node's: at most so many unanswered batches and bytes; what arrives meanwhile
becomes the next batch. A slow node costs only its own notifications latency: its queue is bounded.

Must not decide what a refusal leads to: the row is durable, the follow-up decides.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.gateway.v1 import gateway_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import envelope_pb2, notification_pb2
from mesh.backoff import full_jitter
from mesh.channel import Channels
from mesh.clock import Clock
from mesh.errors import FailedPrecondition, Failure, Unavailable
from mesh.streams import Bidi, connect
from mesh.telemetry import logger
from svc_delivery.metrics import Metrics
from svc_delivery.ports import NodeAddress

PROTOCOL_VERSION = 1
FEATURES: tuple[str, ...] = ()

_LARGEST_BATCH = 500
_PING_INTERVAL = 1.0
_SILENCE_LIMIT = 3.0
_FRAMES = 64
# Envelope fields beside the content, roughly; only a bound is computed with it.
_ENVELOPE_BYTES = 250

_REFUSAL_KINDS: Mapping[int, str] = {
    pb.REFUSAL_KIND_ABSENT: "absent",
    pb.REFUSAL_KIND_BEHIND: "behind",
    pb.REFUSAL_KIND_DRAINING: "draining",
}

_Stream = Bidi[pb.DeliverRequest, pb.DeliverResponse]


class MarkKeeper(Protocol):
    """Stores what sessions said; see `svc_delivery.marks.Marks`."""

    async def keep(self, marks: Sequence[notification_pb2.Mark]) -> None:
        """Stores marks durably; raises `mesh.errors.Unavailable` when the store does not answer."""
        ...


class Link:
    """The link to one gateway node, over any number of streams."""

    def __init__(
        self,
        node: NodeAddress,
        *,
        process: str,
        epoch: int,
        channels: Channels,
        marks: MarkKeeper,
        clock: Clock,
        metrics: Metrics,
        queue_limit: int,
        trace: Callable[..., None] | None,
    ) -> None:
        self.node = node
        self._process = process
        self._epoch = epoch
        self._channels = channels
        self._marks = marks
        self._clock = clock
        self._metrics = metrics
        self._queue_limit = queue_limit
        self._trace = trace
        self._log = logger().bind(node_id=node.node_id)
        self._queue: deque[pb.Delivery] = deque()
        self._queued_keys = 0
        self._changes: deque[pb.Change] = deque()
        # sequence -> (batch, bytes): sent, not yet looked at by the node
        self._unanswered: dict[int, tuple[pb.DeliverBatch, int]] = {}
        self._unanswered_bytes = 0
        self._sequence = 0
        self._window_count = 0
        self._window_bytes = 0
        self._stream: _Stream | None = None
        self._heard = 0.0
        self._mark_batches: deque[pb.MarkBatch] = deque()
        self._marks_came = asyncio.Event()
        # Of the marks: the last batch that is durable, and the last one that the node was told of.
        self._stored_sequence = 0
        self._told_sequence = 0
        self._draining = False

    @property
    def is_open(self) -> bool:
        """Whether a stream is open and takes deliveries."""
        return self._stream is not None and not self._draining

    @property
    def unfinished(self) -> int:
        """Batches that the node has not looked at, and deliveries that wait."""
        return len(self._unanswered) + len(self._queue)

    def offer(self, envelope: envelope_pb2.Envelope, recipient_keys: Sequence[str]) -> bool:
        """Queues a delivery; False when the queue is full or the node leaves."""
        if self._draining or self._queued_keys + len(recipient_keys) > self._queue_limit:
            return False
        self._queue.append(pb.Delivery(envelope=envelope, recipient_keys=recipient_keys))
        self._queued_keys += len(recipient_keys)
        self._pump()
        return True

    def change(self, change: pb.Change) -> bool:
        """Queues a change; False when the queue is full or the node leaves."""
        if self._draining or len(self._changes) >= self._queue_limit:
            return False
        self._changes.append(change)
        self._pump()
        return True

    async def run(self) -> None:
        """Keeps a stream open, with full-jitter back-off between tries, until cancelled."""
        attempt = 0
        while True:
            began = self._clock.monotonic()
            try:
                await self._serve_stream()
            except* Failure as group:
                failure = _first(group)
                level = self._log.info if self._draining else self._log.warning
                level("link_lost", reason=failure.reason, error=failure.message)
            lived = self._clock.monotonic() - began
            attempt = 0 if lived > 5.0 else attempt + 1
            await asyncio.sleep(full_jitter(attempt, base=0.1, cap=2.0, random=random.random()))

    async def _serve_stream(self) -> None:
        stub = pb_grpc.GatewayServiceStub(self._channels.node(self.node.node_id))
        metadata = self._channels.node_metadata(self.node.node_id, self.node.address)
        try:
            async with (
                connect(stub.Deliver, metadata=metadata, limit=_FRAMES) as stream,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(stream.write_loop())
                self._open(stream, await self._shake_hands(stream))
                group.create_task(self._keep_alive(stream))
                group.create_task(self._keep_marks(stream))
                await self._read(stream)
                raise Unavailable(
                    "the node ended the link", reason="DRAINING" if self._draining else "PEER_UNAVAILABLE"
                )
        finally:
            if self._stream is not None:
                self._metrics.links.dec()
            self._stream = None
            # The node sends marks that were not confirmed again over its next stream.
            self._mark_batches.clear()

    async def _shake_hands(self, stream: _Stream) -> pb.LinkReady:
        stream.send(
            pb.DeliverRequest(
                open=pb.LinkOpen(
                    protocol_version=PROTOCOL_VERSION,
                    delivery_id=self._process,
                    delivery_epoch=self._epoch,
                    node_id=self.node.node_id,
                    node_epoch=self.node.epoch,
                    features=FEATURES,
                )
            )
        )
        frame = await stream.read()
        if frame is None or frame.WhichOneof("frame") != "ready":
            raise Unavailable("the node answered the opening with another frame", reason="PEER_UNAVAILABLE")
        if frame.ready.protocol_version != PROTOCOL_VERSION:
            raise FailedPrecondition(
                f"the node speaks protocol version {frame.ready.protocol_version}", reason="VERSION_UNSUPPORTED"
            )
        return frame.ready

    def _open(self, stream: _Stream, ready: pb.LinkReady) -> None:
        self._draining = False
        self._stored_sequence = self._told_sequence = 0
        self._window_count = ready.window_count
        self._window_bytes = ready.window_bytes
        self._heard = self._clock.monotonic()
        self._answer(ready.taken_sequence)
        for batch, _ in self._unanswered.values():
            stream.send(pb.DeliverRequest(batch=batch))
        self._stream = stream
        self._metrics.links.inc()
        self._log.info("link_opened", node_epoch=ready.node_epoch, repeated_batch_count=len(self._unanswered))
        self._pump()

    async def _read(self, stream: _Stream) -> None:
        while (frame := await stream.read()) is not None:
            self._heard = self._clock.monotonic()
            match frame.WhichOneof("frame"):
                case "result":
                    self._take_result(frame.result)
                case "marks":
                    self._mark_batches.append(frame.marks)
                    self._marks_came.set()
                case "ping":
                    pass
                case "drain":
                    self._draining = True
                    self._metrics.not_offered.inc(self._queued_keys)
                    self._queue.clear()
                    self._queued_keys = 0
                case _:
                    self._metrics.unknown_frames.inc()

    async def _keep_alive(self, stream: _Stream) -> None:
        number = 0
        while True:
            await asyncio.sleep(_PING_INTERVAL)
            number += 1
            self._pump()
            stream.send(pb.DeliverRequest(ping=pb.LinkPing(ping_number=number)))
            if self._clock.monotonic() - self._heard > _SILENCE_LIMIT:
                raise Unavailable(f"the node was silent for {_SILENCE_LIMIT:g} s", reason="PEER_UNAVAILABLE")

    async def _keep_marks(self, stream: _Stream) -> None:
        """Stores marks, everything that waits at once, and confirms them in order."""
        attempt = 0
        while True:
            while not self._mark_batches:
                self._marks_came.clear()
                await self._marks_came.wait()
            batches = self._next_marks()
            try:
                await self._marks.keep([mark for batch in batches for mark in batch.marks])
            except Failure as failure:
                self._log.warning("marks_not_stored", reason=failure.reason, error=failure.message)
                await asyncio.sleep(full_jitter(attempt, base=0.1, cap=2.0, random=random.random()))
                attempt += 1
                continue
            attempt = 0
            for _ in batches:
                self._mark_batches.popleft()
            self._stored_sequence = batches[-1].sequence
            self._pump()

    def _next_marks(self) -> list[pb.MarkBatch]:
        batches = [self._mark_batches[0]]
        count = len(batches[0].marks)
        for batch in itertools.islice(self._mark_batches, 1, None):
            count += len(batch.marks)
            if count > _LARGEST_BATCH:
                break
            batches.append(batch)
        return batches

    def _take_result(self, result: pb.DeliverResult) -> None:
        for refusal in result.refusals:
            kind = _REFUSAL_KINDS.get(refusal.kind, "unknown")
            self._metrics.refused[kind].inc(len(refusal.recipient_keys) or self._delivery_size(refusal))
        if self._trace is not None:
            for sequence, (batch, _) in self._unanswered.items():
                if sequence <= result.taken_sequence:
                    for delivery in batch.deliveries:
                        self._trace("taken", event_id=delivery.envelope.event_id, node_id=self.node.node_id)
        self._answer(result.taken_sequence)
        self._pump()

    def _delivery_size(self, refusal: pb.DeliveryRefusal) -> int:
        known = self._unanswered.get(refusal.sequence)
        if known is None or not 0 <= refusal.delivery_index < len(known[0].deliveries):
            return 0
        return len(known[0].deliveries[refusal.delivery_index].recipient_keys)

    def _answer(self, taken_sequence: int) -> None:
        for sequence in [number for number in self._unanswered if number <= taken_sequence]:
            self._unanswered_bytes -= self._unanswered.pop(sequence)[1]

    def _pump(self) -> None:
        """Sends what waits, as far as the window and the stream's queue allow; called whenever one of them moves."""
        stream = self._stream
        if stream is None:
            return
        if self._told_sequence < self._stored_sequence and stream.send(
            pb.DeliverRequest(stored=pb.MarksStored(sequence=self._stored_sequence))
        ):
            self._told_sequence = self._stored_sequence
        while (
            self._queue
            and len(self._unanswered) < self._window_count
            and (not self._unanswered or self._unanswered_bytes < self._window_bytes)
        ):
            batch, size = self._next_batch()
            self._unanswered[batch.sequence] = (batch, size)
            self._unanswered_bytes += size
            stream.send(pb.DeliverRequest(batch=batch))
        while self._changes:
            changes = list(itertools.islice(self._changes, _LARGEST_BATCH))
            if not stream.send(pb.DeliverRequest(changes=pb.ChangeBatch(changes=changes))):
                break
            for _ in changes:
                self._changes.popleft()

    def _next_batch(self) -> tuple[pb.DeliverBatch, int]:
        self._sequence += 1
        deliveries: list[pb.Delivery] = []
        size = 0
        room = self._window_bytes - self._unanswered_bytes
        while self._queue and len(deliveries) < _LARGEST_BATCH:
            delivery = self._queue[0]
            bytes_ = len(delivery.envelope.notification) + _ENVELOPE_BYTES + 40 * len(delivery.recipient_keys)
            if deliveries and size + bytes_ > room:
                break
            self._queue.popleft()
            self._queued_keys -= len(delivery.recipient_keys)
            self._metrics.offered.inc(len(delivery.recipient_keys))
            if self._trace is not None:
                self._trace("offered", event_id=delivery.envelope.event_id, node_id=self.node.node_id)
            deliveries.append(delivery)
            size += bytes_
        return pb.DeliverBatch(sequence=self._sequence, deliveries=deliveries), size


def _first(group: BaseExceptionGroup[Failure]) -> Failure:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    if not isinstance(found, Failure):
        raise found
    return found

"""One stream to every gateway node: deliveries out, results and marks back.

Path steps 6 and 7. Batches are numbered per process; what a node has not taken when a link breaks is offered again
under its number. The window is the node's: at most so many unanswered batches and bytes; what arrives meanwhile
becomes the next batch. A slow node costs only its own notifications latency: its queue is bounded.

Must not decide what a refusal leads to: the row is durable, the follow-up decides. It passes on who is not there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.gateway.v1 import gateway_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import envelope_pb2, notification_pb2
from mesh.channel import Channels
from mesh.clock import Clock
from mesh.errors import FailedPrecondition, Failure, Unavailable
from mesh.links import PACE, KeptStream, Pace
from mesh.streams import Bidi, connect
from mesh.telemetry import logger
from svc_delivery.metrics import Metrics
from svc_delivery.outgoing import LARGEST_BATCH, Outgoing
from svc_delivery.ports import NodeAddress

PROTOCOL_VERSION = 1
FEATURES: tuple[str, ...] = ()

# What a node may announce at most; the stream's queue holds so many batches, and other frames beside them.
_LARGEST_WINDOW = 48
_FRAMES = 64
# Batches of marks that wait for the store. Beyond it the link breaks: the node has them and sends them again.
_MARK_BATCHES = 1_000

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
        absent: Callable[[str, str, Sequence[str]], None] | None = None,
        pace: Pace = PACE,
    ) -> None:
        self.node = node
        self._process = process
        self._epoch = epoch
        self._channels = channels
        self._marks = marks
        self._metrics = metrics
        self._queue_limit = queue_limit
        self._trace = trace
        # Told of the node, the notification, and the recipients that have no session there.
        self._absent = absent
        self._log = logger().bind(node_id=node.node_id)
        self._kept: KeptStream[pb.DeliverRequest, pb.DeliverResponse] = KeptStream(
            self, peer="the node", clock=clock, log=self._log, pace=pace
        )
        self._outgoing = Outgoing(limit=queue_limit)
        self._changes: deque[pb.Change] = deque()
        self._stream: _Stream | None = None
        self._mark_batches: deque[pb.MarkBatch] = deque()
        self._marks_came = asyncio.Event()
        # Of the marks: the last batch that is durable, and the last one that the node was told of.
        self._stored_sequence = 0
        self._told_sequence = 0
        self._look_wanted = False
        self._draining = False

    @property
    def is_open(self) -> bool:
        """Whether a stream is open and takes deliveries."""
        return self._stream is not None and not self._draining

    @property
    def unfinished(self) -> int:
        """Batches that the node has not looked at, and deliveries that wait."""
        return self._outgoing.unfinished

    def offer(self, envelope: envelope_pb2.Envelope, recipient_keys: Sequence[str]) -> bool:
        """Queues a delivery; False when the queue is full or the node leaves."""
        if self._draining or not self._outgoing.add(envelope, recipient_keys):
            return False
        self._pump()
        return True

    def change(self, change: pb.Change) -> bool:
        """Queues a change; False when the queue is full or the node leaves."""
        if self._draining or len(self._changes) >= self._queue_limit:
            return False
        self._changes.append(change)
        self._pump()
        return True

    def look(self) -> None:
        """Has the node's sessions look into their inboxes soon; a link that is not open does that when it opens."""
        self._look_wanted = self._stream is not None
        self._pump()

    def hand_over(self) -> tuple[list[pb.Delivery], list[pb.Change]]:
        """Gives away what the node has not looked at, for the link to its next epoch; this one is over."""
        changes = list(self._changes)
        self._changes.clear()
        return self._outgoing.hand_over(), changes

    async def run(self) -> None:
        """Keeps a stream open, with full-jitter back-off between tries, until cancelled."""
        await self._kept.run()

    # ------------------------------------------------------------ what is said: see `mesh.links.Talk`

    def connect(self) -> AbstractAsyncContextManager[_Stream]:
        """See `Talk`."""
        stub = pb_grpc.GatewayServiceStub(self._channels.node(self.node.node_id))
        metadata = self._channels.node_metadata(self.node.node_id, self.node.address)
        return connect(stub.Deliver, metadata=metadata, limit=_FRAMES)

    def opening(self) -> pb.DeliverRequest:
        """See `Talk`."""
        return pb.DeliverRequest(
            open=pb.LinkOpen(
                protocol_version=PROTOCOL_VERSION,
                delivery_id=self._process,
                delivery_epoch=self._epoch,
                node_id=self.node.node_id,
                node_epoch=self.node.epoch,
                features=FEATURES,
            )
        )

    def opened(self, stream: _Stream, answer: pb.DeliverResponse) -> None:
        """See `Talk`."""
        if answer.WhichOneof("frame") != "ready":
            raise Unavailable("the node answered the opening with another frame", reason="PEER_UNAVAILABLE")
        ready = answer.ready
        if ready.protocol_version != PROTOCOL_VERSION:
            raise FailedPrecondition(
                f"the node speaks protocol version {ready.protocol_version}", reason="VERSION_UNSUPPORTED"
            )
        self._draining = False
        self._stored_sequence = self._told_sequence = 0
        self._outgoing.open(ready, most=_LARGEST_WINDOW)
        self._stream = stream
        self._metrics.links.inc()
        self._log.info("link_opened", node_epoch=ready.node_epoch, repeated_batch_count=self._outgoing.repeated)
        self._pump()

    async def beside(self) -> None:
        """See `Talk`: stores marks, everything that waits at once, and confirms them in order."""
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
                await self._kept.pause(attempt)
                attempt += 1
                continue
            attempt = 0
            for _ in batches:
                self._mark_batches.popleft()
            self._stored_sequence = batches[-1].sequence
            self._pump()

    def ping(self, number: int) -> pb.DeliverRequest:
        """See `Talk`; what had no room in the stream's queue goes first."""
        self._pump()
        return pb.DeliverRequest(ping=pb.LinkPing(ping_number=number))

    def take(self, frame: pb.DeliverResponse) -> None:
        """See `Talk`."""
        match frame.WhichOneof("frame"):
            case "result":
                self._take_result(frame.result)
            case "marks":
                self._take_marks(frame.marks)
            case "ping":
                pass
            case "drain":
                self._draining = True
                self._metrics.not_offered.inc(self._outgoing.clear_queue())
            case _:
                self._metrics.unknown_frames.inc()

    def closed(self) -> None:
        """See `Talk`."""
        if self._stream is not None:
            self._metrics.links.dec()
        self._stream = None
        self._look_wanted = False
        self._outgoing.interrupt()
        # The node sends marks that were not confirmed again over its next stream.
        self._mark_batches.clear()

    def lost(self, failure: Failure | None) -> bool:
        """See `Talk`; a node that has left may be gone for good."""
        if failure is not None:
            level = self._log.info if self._draining else self._log.warning
            level("link_lost", reason=failure.reason, error=failure.message)
        return False

    @property
    def leaves(self) -> bool:
        """See `Talk`."""
        return self._draining

    # ------------------------------------------------------------ marks, results, and what waits

    def _take_marks(self, batch: pb.MarkBatch) -> None:
        if len(self._mark_batches) >= _MARK_BATCHES:
            raise Unavailable("more marks came than the store takes", reason="STORE_UNAVAILABLE")
        self._mark_batches.append(batch)
        self._marks_came.set()

    def _next_marks(self) -> list[pb.MarkBatch]:
        batches = [self._mark_batches[0]]
        count = len(batches[0].marks)
        for batch in itertools.islice(self._mark_batches, 1, None):
            count += len(batch.marks)
            if count > LARGEST_BATCH:
                break
            batches.append(batch)
        return batches

    def _take_result(self, result: pb.DeliverResult) -> None:
        for refusal in result.refusals:
            kind = _REFUSAL_KINDS.get(refusal.kind, "unknown")
            delivery = self._outgoing.delivery_of(refusal.sequence, refusal.delivery_index)
            keys = refusal.recipient_keys or (() if delivery is None else delivery.recipient_keys)
            self._metrics.refused[kind].inc(len(keys))
            if delivery is not None and self._absent is not None and refusal.kind == pb.REFUSAL_KIND_ABSENT:
                self._absent(self.node.node_id, delivery.envelope.notification_id, keys)
        for batch in self._outgoing.taken(result.taken_sequence):
            if self._trace is not None:
                for delivery in batch.deliveries:
                    self._trace("taken", event_id=delivery.envelope.event_id, node_id=self.node.node_id)
        self._pump()

    def _pump(self) -> None:
        """Sends what waits, as far as the window and the stream's queue allow; called whenever one of them moves."""
        stream = self._stream
        if stream is None:
            return
        if self._told_sequence < self._stored_sequence and stream.send(
            pb.DeliverRequest(stored=pb.MarksStored(sequence=self._stored_sequence))
        ):
            self._told_sequence = self._stored_sequence
        if self._look_wanted and stream.send(pb.DeliverRequest(look=pb.LinkLook())):
            self._look_wanted = False
        while (batch := self._outgoing.next()) is not None and stream.send(pb.DeliverRequest(batch=batch)):
            self._outgoing.sent()
            self._count_offered(batch)
        while self._changes:
            changes = list(itertools.islice(self._changes, LARGEST_BATCH))
            if not stream.send(pb.DeliverRequest(changes=pb.ChangeBatch(changes=changes))):
                break
            for _ in changes:
                self._changes.popleft()

    def _count_offered(self, batch: pb.DeliverBatch) -> None:
        self._metrics.offered.inc(sum(len(delivery.recipient_keys) for delivery in batch.deliveries))
        if self._trace is not None:
            for delivery in batch.deliveries:
                self._trace("offered", event_id=delivery.envelope.event_id, node_id=self.node.node_id)

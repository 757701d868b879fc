"""A delivery process for a benchmark: a link to a gateway node, over which notifications are pushed as it takes.

What the gateway does with a notification is measured alone so: no event, no row, no follow-up. Marks are answered as
if they were stored. Must not be used where anything is to arrive for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.gateway.v1 import gateway_service_pb2_grpc as pb_grpc
from heliograph.type.v1.envelope_pb2 import ENVELOPE_KIND_NOTIFY, Envelope
from heliograph.type.v1.notification_pb2 import Content, Notification
from mesh.channel import Channels
from mesh.ids import to_text, uuid7
from mesh.streams import Bidi, connect

LARGEST_BATCH = 500
_QUEUED_FRAMES = 64
_PING_INTERVAL = 1.0


class Pusher:
    """One open link.

    Attributes:
        absent: recipients that had no session.
        behind: recipients whose sockets were full.
        marks: marks that came back.
    """

    def __init__(self, stream: Bidi[pb.DeliverRequest, pb.DeliverResponse], window: int) -> None:
        self.absent = 0
        self.behind = 0
        self.marks = 0
        self._stream = stream
        self._window = window
        self._sequence = 0
        self._taken = 0
        self._moved = asyncio.Event()
        # Recipients of each delivery that is not answered: a refusal without names means all of them.
        self._sizes: dict[int, list[int]] = {}

    async def push(self, deliveries: Sequence[pb.Delivery]) -> None:
        """Sends one batch as soon as the window allows."""
        while self._sequence - self._taken >= self._window:
            self._moved.clear()
            await self._moved.wait()
        self._sequence += 1
        self._sizes[self._sequence] = [len(one.recipient_keys) for one in deliveries]
        self._stream.send(pb.DeliverRequest(batch=pb.DeliverBatch(sequence=self._sequence, deliveries=deliveries)))

    async def done(self) -> None:
        """Returns when every batch was answered."""
        while self._taken < self._sequence:
            self._moved.clear()
            await self._moved.wait()

    async def read_for_ever(self) -> None:
        """Takes answers and marks."""
        while (frame := await self._stream.read()) is not None:
            kind = frame.WhichOneof("frame")
            if kind == "result":
                self._take_result(frame.result)
            elif kind == "marks":
                self.marks += len(frame.marks.marks)
                stored = pb.MarksStored(sequence=frame.marks.sequence)
                self._stream.send(pb.DeliverRequest(stored=stored))

    async def ping_for_ever(self) -> None:
        """Shows that this end lives."""
        number = 0
        while True:
            await asyncio.sleep(_PING_INTERVAL)
            number += 1
            self._stream.send(pb.DeliverRequest(ping=pb.LinkPing(ping_number=number)))

    def _take_result(self, result: pb.DeliverResult) -> None:
        for refusal in result.refusals:
            count = len(refusal.recipient_keys) or self._sizes[refusal.sequence][refusal.delivery_index]
            self.absent += count * (refusal.kind == pb.REFUSAL_KIND_ABSENT)
            self.behind += count * (refusal.kind == pb.REFUSAL_KIND_BEHIND)
        for sequence in range(self._taken + 1, result.taken_sequence + 1):
            del self._sizes[sequence]
        self._taken = result.taken_sequence
        self._moved.set()


@asynccontextmanager
async def pushing(channels: Channels, node_id: str) -> AsyncIterator[Pusher]:
    """Opens a link to a node, and ends it."""
    stub = pb_grpc.GatewayServiceStub(channels.node(node_id))
    async with connect(stub.Deliver, metadata=channels.node_metadata(node_id, ""), limit=_QUEUED_FRAMES) as stream:
        writing = asyncio.create_task(stream.write_loop())
        opened = pb.LinkOpen(
            protocol_version=1, delivery_id="bench", delivery_epoch=time.time_ns() // 1_000, node_id=node_id
        )
        stream.send(pb.DeliverRequest(open=opened))
        ready = await stream.read()
        if ready is None or ready.WhichOneof("frame") != "ready":
            raise RuntimeError(f"node {node_id} did not open the link: {ready}")
        pusher = Pusher(stream, ready.ready.window_count)
        running = [writing, asyncio.create_task(pusher.read_for_ever()), asyncio.create_task(pusher.ping_for_ever())]
        try:
            yield pusher
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class Writer:
    """Makes notifications whose frames have a given size."""

    def __init__(self, size: int) -> None:
        """Chooses the filler.

        Args:
            size: bytes of the WebSocket frame, its header of four bytes included.
        """
        self._size = size
        self._filler = 0
        # Twice: the lengths in the message grow with it.
        for _ in range(2):
            self._filler += size - len(self._frame())

    def delivery(self, recipient_keys: Sequence[str], intended: int) -> pb.Delivery:
        """Returns one notification for recipients.

        Args:
            recipient_keys: who gets it.
            intended: µs of CLOCK_MONOTONIC; latencies run from there.
        """
        notification = self._notification(intended)
        envelope = Envelope(
            kind=ENVELOPE_KIND_NOTIFY,
            notification_id=notification.notification_id,
            revision=1,
            event_id=notification.notification_id,
            notification=notification.SerializeToString(),
        )
        return pb.Delivery(envelope=envelope, recipient_keys=recipient_keys)

    def _notification(self, intended: int) -> Notification:
        now = time.time_ns()
        id_ = to_text(uuid7(now // 1_000_000, now.to_bytes(10)))
        content = Content(title="Build 4711 has passed " + "x" * self._filler, body=str(intended))
        return Notification(notification_id=id_, revision=1, category="general", content=content)

    def _frame(self) -> bytes:
        # Notify and ConnectResponse each add a tag and a length, the WebSocket frame four bytes.
        inner = self._notification(time.monotonic_ns() // 1_000).SerializeToString()
        return bytes(4 + 3 + 3) + inner

"""The Dispatch stream to delivery: one per priority, kept open, with delivery's window.

Path step 5. A batch goes out when the window has room; it is answered when everything not refused is durable. A broken
stream fails what was unanswered: the worker sends it again, which is harmless.
"""

from __future__ import annotations

import asyncio
import random

from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.delivery.v1 import delivery_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import notification_pb2
from mesh.backoff import full_jitter
from mesh.channel import Channels
from mesh.clock import Clock
from mesh.errors import FailedPrecondition, Failure, Unavailable
from mesh.streams import Bidi, connect
from mesh.telemetry import logger
from svc_fanout.metrics import Metrics
from svc_fanout.ports import Answer

PROTOCOL_VERSION = 1
FEATURES: tuple[str, ...] = ()

_PING_INTERVAL = 1.0
_SILENCE_LIMIT = 3.0
_FRAMES = 64

_Stream = Bidi[pb.DispatchRequest, pb.DispatchResponse]


class DispatchLink:
    """Implements `ports.Delivery` for one priority, over any number of streams."""

    def __init__(
        self,
        *,
        priority: notification_pb2.Priority.ValueType,
        process: str,
        channels: Channels,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._priority = priority
        self._process = process
        self._channels = channels
        self._clock = clock
        self._metrics = metrics
        self._log = logger().bind(priority=notification_pb2.Priority.Name(priority))
        self._stream: _Stream | None = None
        self._moving = False
        self._window_count = 0
        self._window_bytes = 0
        self._sequence = 0
        # sequence -> (answer, bytes)
        self._unanswered: dict[int, tuple[Answer, int]] = {}
        self._unanswered_bytes = 0
        self._room = asyncio.Event()
        self._heard = 0.0

    async def send(self, batch: pb.DispatchBatch) -> Answer:
        """See the port."""
        size = batch.ByteSize()
        while not self._has_room(size):
            self._room.clear()
            await self._room.wait()
        self._sequence += 1
        batch.sequence = self._sequence
        answer: Answer = asyncio.get_running_loop().create_future()
        self._unanswered[self._sequence] = (answer, size)
        self._unanswered_bytes += size
        if self._stream is not None:
            self._stream.send(pb.DispatchRequest(batch=batch))
        return answer

    async def run(self) -> None:
        """Keeps a stream open, with full-jitter back-off between tries, until cancelled."""
        attempt = 0
        while True:
            began = self._clock.monotonic()
            try:
                await self._serve_stream()
            except* Failure as group:
                failure = _first(group)
                level = self._log.info if self._moving else self._log.warning
                level("dispatch_lost", reason=failure.reason, error=failure.message)
            moved = self._moving
            attempt = 0 if moved or self._clock.monotonic() - began > 5.0 else attempt + 1
            await asyncio.sleep(full_jitter(attempt, base=0.1, cap=2.0, random=random.random()))

    async def _serve_stream(self) -> None:
        stub = pb_grpc.DeliveryServiceStub(self._channels.stream("delivery"))
        try:
            async with (
                connect(stub.Dispatch, metadata=self._channels.metadata(), limit=_FRAMES) as stream,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(stream.write_loop())
                self._open(stream, await self._shake_hands(stream))
                group.create_task(self._keep_alive(stream))
                await self._read(stream)
                raise Unavailable(
                    "delivery ended the stream", reason="DRAINING" if self._moving else "PEER_UNAVAILABLE"
                )
        finally:
            self._close()

    async def _shake_hands(self, stream: _Stream) -> pb.DispatchReady:
        stream.send(
            pb.DispatchRequest(
                open=pb.DispatchOpen(
                    protocol_version=PROTOCOL_VERSION,
                    fanout_id=self._process,
                    priority=self._priority,
                    features=FEATURES,
                )
            )
        )
        frame = await stream.read()
        if frame is None or frame.WhichOneof("frame") != "ready":
            raise Unavailable("delivery answered the opening with another frame", reason="PEER_UNAVAILABLE")
        if frame.ready.protocol_version != PROTOCOL_VERSION:
            raise FailedPrecondition(
                f"delivery speaks protocol version {frame.ready.protocol_version}", reason="VERSION_UNSUPPORTED"
            )
        return frame.ready

    def _open(self, stream: _Stream, ready: pb.DispatchReady) -> None:
        self._moving = False
        self._sequence = 0
        self._window_count = ready.window_count
        self._window_bytes = ready.window_bytes
        self._heard = self._clock.monotonic()
        self._stream = stream
        self._metrics.streams.inc()
        self._log.info("dispatch_opened", window_count=ready.window_count)
        self._room.set()

    def _close(self) -> None:
        if self._stream is not None:
            self._metrics.streams.dec()
        self._stream = None
        for answer, _ in self._unanswered.values():
            if not answer.done():
                answer.set_exception(Unavailable("the stream to delivery broke", reason="PEER_UNAVAILABLE"))
        self._unanswered.clear()
        self._unanswered_bytes = 0

    async def _read(self, stream: _Stream) -> None:
        while (frame := await stream.read()) is not None:
            self._heard = self._clock.monotonic()
            match frame.WhichOneof("frame"):
                case "result":
                    self._take_result(frame.result)
                case "ping":
                    pass
                case "drain":
                    self._moving = True
                case _:
                    self._metrics.unknown_frames.inc()
            if self._moving and not self._unanswered:
                stream.close()
                return

    async def _keep_alive(self, stream: _Stream) -> None:
        number = 0
        while True:
            await asyncio.sleep(_PING_INTERVAL)
            number += 1
            stream.send(pb.DispatchRequest(ping=pb.DispatchPing(ping_number=number)))
            if self._clock.monotonic() - self._heard > _SILENCE_LIMIT:
                raise Unavailable(f"delivery was silent for {_SILENCE_LIMIT:g} s", reason="PEER_UNAVAILABLE")

    def _take_result(self, result: pb.DispatchResult) -> None:
        known = self._unanswered.pop(result.sequence, None)
        if known is None:
            return
        answer, size = known
        self._unanswered_bytes -= size
        if not answer.done():
            answer.set_result(list(result.refusals))
        self._room.set()

    def _has_room(self, size: int) -> bool:
        if self._stream is None or self._moving or len(self._unanswered) >= self._window_count:
            return False
        return not self._unanswered or self._unanswered_bytes + size <= self._window_bytes


def _first(group: BaseExceptionGroup[Failure]) -> Failure:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    if not isinstance(found, Failure):
        raise found
    return found

"""The Dispatch stream to delivery: one per priority, kept open, with delivery's window.

Path step 5. A batch goes out when the window has room; it is answered when everything not refused is durable. A broken
stream fails what was unanswered: the worker sends it again, which is harmless.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.delivery.v1 import delivery_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import notification_pb2
from mesh.channel import Channels
from mesh.clock import Clock
from mesh.errors import FailedPrecondition, Failure, Unavailable
from mesh.links import PACE, KeptStream, Pace
from mesh.streams import Bidi, connect
from mesh.telemetry import logger
from svc_fanout.metrics import Metrics
from svc_fanout.pacing import Pacing
from svc_fanout.ports import Answer

PROTOCOL_VERSION = 1
FEATURES: tuple[str, ...] = ()

# What delivery may announce at most; the stream's queue holds so many batches, and pings beside them.
_LARGEST_WINDOW = 64
_FRAMES = _LARGEST_WINDOW + 16

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
        pace: Pace = PACE,
        pacing: Pacing | None = None,
    ) -> None:
        self._priority = priority
        self._process = process
        self._channels = channels
        self._clock = clock
        self._metrics = metrics
        self._pacing = pacing
        self._log = logger().bind(priority=notification_pb2.Priority.Name(priority))
        self._stream: _Stream | None = None
        self._moving = False
        self._window_count = 0
        self._window_bytes = 0
        self._sequence = 0
        # sequence -> (answer, bytes, time of sending)
        self._unanswered: dict[int, tuple[Answer, int, float]] = {}
        self._unanswered_bytes = 0
        self._room = asyncio.Event()
        self._kept: KeptStream[pb.DispatchRequest, pb.DispatchResponse] = KeptStream(
            self, peer="delivery", clock=clock, log=self._log, pace=pace
        )

    async def send(self, batch: pb.DispatchBatch) -> Answer:
        """See the port."""
        size = batch.ByteSize()
        while True:
            if rest := self._rest():
                await asyncio.sleep(rest)
            elif (stream := self._stream_with_room(size)) is not None:
                break
            else:
                self._room.clear()
                await self._room.wait()
        batch.sequence = self._sequence + 1
        answer: Answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        if not stream.send(pb.DispatchRequest(batch=batch)):
            # The stream is over, and the reader has not noticed yet. Its number stays free: there are no gaps.
            answer.set_exception(_broken())
            return answer
        self._sequence += 1
        self._unanswered[self._sequence] = (answer, size, self._clock.monotonic())
        self._unanswered_bytes += size
        return answer

    async def run(self) -> None:
        """Keeps a stream open, with full-jitter back-off between tries, until cancelled."""
        await self._kept.run()

    # ------------------------------------------------------------ what is said: see `mesh.links.Talk`

    def connect(self) -> AbstractAsyncContextManager[_Stream]:
        """See `Talk`."""
        self._moving = False
        stub = pb_grpc.DeliveryServiceStub(self._channels.stream("delivery"))
        return connect(stub.Dispatch, metadata=self._channels.metadata(), limit=_FRAMES)

    def opening(self) -> pb.DispatchRequest:
        """See `Talk`."""
        return pb.DispatchRequest(
            open=pb.DispatchOpen(
                protocol_version=PROTOCOL_VERSION,
                fanout_id=self._process,
                priority=self._priority,
                features=FEATURES,
            )
        )

    def opened(self, stream: _Stream, answer: pb.DispatchResponse) -> None:
        """See `Talk`."""
        if answer.WhichOneof("frame") != "ready":
            raise Unavailable("delivery answered the opening with another frame", reason="PEER_UNAVAILABLE")
        ready = answer.ready
        if ready.protocol_version != PROTOCOL_VERSION:
            raise FailedPrecondition(
                f"delivery speaks protocol version {ready.protocol_version}", reason="VERSION_UNSUPPORTED"
            )
        self._sequence = 0
        self._window_count = max(1, min(ready.window_count, _LARGEST_WINDOW))
        self._window_bytes = ready.window_bytes
        self._stream = stream
        self._metrics.streams.inc()
        self._log.info("dispatch_opened", window_count=self._window_count)
        self._room.set()

    async def beside(self) -> None:
        """See `Talk`; there is nothing."""

    def ping(self, number: int) -> pb.DispatchRequest:
        """See `Talk`."""
        return pb.DispatchRequest(ping=pb.DispatchPing(ping_number=number))

    def take(self, frame: pb.DispatchResponse) -> None:
        """See `Talk`."""
        match frame.WhichOneof("frame"):
            case "result":
                self._take_result(frame.result)
            case "ping":
                pass
            case "drain":
                self._moving = True
            case _:
                self._metrics.unknown_frames.inc()
        if self._moving and not self._unanswered and self._stream is not None:
            # Delivery ends its side when it has seen the end of ours.
            self._stream.close()

    def closed(self) -> None:
        """See `Talk`."""
        if self._stream is not None:
            self._metrics.streams.dec()
        self._stream = None
        for answer, _, _ in self._unanswered.values():
            if not answer.done():
                answer.set_exception(_broken())
        self._unanswered.clear()
        self._unanswered_bytes = 0

    def lost(self, failure: Failure | None) -> bool:
        """See `Talk`."""
        if failure is not None:
            level = self._log.info if self._moving else self._log.warning
            level("dispatch_lost", reason=failure.reason, error=failure.message)
        return self._moving

    @property
    def leaves(self) -> bool:
        """See `Talk`."""
        return self._moving

    # ------------------------------------------------------------ the window

    def _take_result(self, result: pb.DispatchResult) -> None:
        known = self._unanswered.pop(result.sequence, None)
        if known is None:
            return
        answer, size, began = known
        self._unanswered_bytes -= size
        if self._pacing is not None:
            now = self._clock.monotonic()
            self._pacing.worked(now, now - began)
        if not answer.done():
            answer.set_result(list(result.refusals))
        self._room.set()

    def _rest(self) -> float:
        """Returns how long the next batch must wait, whoever sends it, so that others are on time."""
        return 0.0 if self._pacing is None else self._pacing.rest(self._clock.monotonic())

    def _stream_with_room(self, size: int) -> _Stream | None:
        """Returns the open stream if it takes a batch of this size now; one that is too large for the window, alone."""
        if self._moving or len(self._unanswered) >= self._window_count:
            return None
        if self._unanswered and self._unanswered_bytes + size > self._window_bytes:
            return None
        return self._stream


def _broken() -> Unavailable:
    return Unavailable("the stream to delivery broke", reason="PEER_UNAVAILABLE")


def _seen(answer: Answer) -> None:
    """Whoever waited may have been cancelled; then nobody asks for the exception, and that is all right."""
    if not answer.cancelled():
        answer.exception()

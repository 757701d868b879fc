"""DeliveryService: takes plans from fanout and answers when they are durable.

Path step 5: rows, decisions and one follow-up a batch, then the answer, then the offers. Several batches are in flight;
each is begun in the order of its arrival, so one recipient's rows keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc.aio

from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.delivery.v1 import delivery_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import refusal_pb2
from mesh.clock import Clock
from mesh.errors import FailedPrecondition, Failure, InvalidArgument, Unavailable, describe
from mesh.streams import Bidi, accept
from mesh.telemetry import logger
from svc_delivery import intake
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.writes import FreshWriter

PROTOCOL_VERSION = 1
FEATURES: tuple[str, ...] = ()
# Below a stream's 1 MiB window, so that one full batch never blocks the answers.
WINDOW_BYTES = 768 * 1024

_PING_SILENCE = 3.0
_RETRY_DELAY = 1.0

_Stream: TypeAlias = Bidi[pb.DispatchResponse, pb.DispatchRequest]
# Any: streams are read and written through mesh.streams.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class DeliveryService(pb_grpc.DeliveryServiceServicer):
    """Serves fanout."""

    def __init__(
        self,
        *,
        writer: FreshWriter,
        offers: Offers,
        clock: Clock,
        metrics: Metrics,
        process: str,
        window_count: int,
        trace: Callable[..., None] | None,
    ) -> None:
        self._writer = writer
        self._offers = offers
        self._clock = clock
        self._metrics = metrics
        self._process = process
        self._window_count = window_count
        self._trace = trace
        self._log = logger()
        self._streams: set[_Stream] = set()
        # Set while no stream is open: a stream ends only after its batches are answered.
        self._idle = asyncio.Event()
        self._idle.set()

    async def Dispatch(self, request_iterator: object, context: _Context) -> None:  # type: ignore[override]  # coroutine style
        """Takes batches until fanout ends the stream."""
        stream: _Stream = await accept(context, limit=4 * self._window_count + 16, marker=self._process)
        opening = _check_opening(await stream.read())
        stream.send(
            pb.DispatchResponse(
                ready=pb.DispatchReady(
                    protocol_version=PROTOCOL_VERSION,
                    window_count=self._window_count,
                    window_bytes=WINDOW_BYTES,
                    features=[feature for feature in opening.features if feature in FEATURES],
                )
            )
        )
        self._log.info("dispatch_opened", fanout_id=opening.fanout_id, priority=opening.priority)
        self._streams.add(stream)
        self._idle.clear()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(stream.write_loop())
                await self._serve(stream, group)
        finally:
            self._streams.discard(stream)
            if not self._streams:
                self._idle.set()

    async def drain(self) -> None:
        """Asks every caller to move, and waits until what is in flight is answered and the streams have ended."""
        for stream in self._streams:
            stream.send(pb.DispatchResponse(drain=pb.DispatchDrain()))
        await self._idle.wait()

    async def _serve(self, stream: _Stream, group: asyncio.TaskGroup) -> None:
        heard = [self._clock.monotonic()]
        watch = group.create_task(self._watch(heard))
        batches: set[asyncio.Task[None]] = set()
        while (frame := await stream.read()) is not None:
            heard[0] = self._clock.monotonic()
            match frame.WhichOneof("frame"):
                case "batch":
                    if len(batches) >= 2 * self._window_count:
                        raise InvalidArgument("more batches in flight than the window allows", reason="FRAME_INVALID")
                    task = group.create_task(self._take(stream, frame.batch))
                    batches.add(task)
                    task.add_done_callback(batches.discard)
                case "ping":
                    stream.send(pb.DispatchResponse(ping=frame.ping))
                case _:
                    self._metrics.unknown_frames.inc()
        watch.cancel()
        if batches:
            await asyncio.wait(batches)
        stream.close()

    async def _watch(self, heard: list[float]) -> None:
        while True:
            await asyncio.sleep(_PING_SILENCE / 3)
            if self._clock.monotonic() - heard[0] > _PING_SILENCE:
                raise Unavailable(f"fanout was silent for {_PING_SILENCE:g} s", reason="PEER_UNAVAILABLE")

    async def _take(self, stream: _Stream, batch: pb.DispatchBatch) -> None:
        began = self._clock.monotonic()
        taken = intake.take(batch, round(self._clock.wall() * 1_000_000))
        result = pb.DispatchResult(sequence=batch.sequence)
        for index, failure in taken.refusals:
            result.refusals.add(dispatch_index=index, refusal=describe(failure, refusal_pb2.Refusal()))
        try:
            await self._writer.write(taken.rows, taken.follow_up, taken.decisions)
        except Failure as failure:
            self._log.warning("batch_not_stored", reason=failure.reason, error=failure.message)
            stream.send(pb.DispatchResponse(result=_all_refused(batch, failure)))
            return
        stream.send(pb.DispatchResponse(result=result))
        self._metrics.write_seconds.observe(self._clock.monotonic() - began)
        self._metrics.inboxed.inc(len(taken.rows))
        self._metrics.suppressed.inc(taken.suppressed_count)
        if self._trace is not None:
            self._trace_batch(batch)
        self._offers.add(taken.offers)

    def _trace_batch(self, batch: pb.DispatchBatch) -> None:
        if self._trace is None:
            return
        for dispatch in batch.dispatches:
            count = sum(len(group.recipient_ids) for group in dispatch.groups)
            self._trace("inboxed", event_id=dispatch.envelope.event_id, recipient_count=count)
        for dispatch in batch.dispatches:
            self._trace("handed_on", event_id=dispatch.envelope.event_id, sequence=batch.sequence)


def _check_opening(frame: pb.DispatchRequest | None) -> pb.DispatchOpen:
    if frame is None or frame.WhichOneof("frame") != "open":
        raise InvalidArgument("the first frame must open the stream", reason="FRAME_INVALID")
    if frame.open.protocol_version != PROTOCOL_VERSION:
        raise FailedPrecondition(
            f"protocol version {frame.open.protocol_version} is not spoken here; use {PROTOCOL_VERSION}",
            reason="VERSION_UNSUPPORTED",
            metadata={"protocol_version": str(frame.open.protocol_version)},
        )
    return frame.open


def _all_refused(batch: pb.DispatchBatch, failure: Failure) -> pb.DispatchResult:
    refusal = describe(failure, refusal_pb2.Refusal())
    if failure.retriable and not refusal.HasField("retry_delay"):
        refusal.retry_delay.FromNanoseconds(int(_RETRY_DELAY * 1_000_000_000))
    return pb.DispatchResult(
        sequence=batch.sequence,
        refusals=[pb.DispatchRefusal(dispatch_index=index, refusal=refusal) for index in range(len(batch.dispatches))],
    )

"""DeliveryService: takes plans from fanout and answers when they are durable; explains what became of them.

Path step 5: rows, decisions and one follow-up a batch, then the answer, then the offers. Several batches are in flight;
each is begun in the order of its arrival, so one recipient's rows keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import grpc.aio

from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.delivery.v1 import delivery_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import notification_pb2, refusal_pb2
from mesh.clock import Clock
from mesh.errors import FailedPrecondition, Failure, Internal, InvalidArgument, Unavailable, describe
from mesh.streams import Bidi, accept
from mesh.telemetry import logger
from svc_delivery.explain import Explainer
from svc_delivery.in_order import InOrder
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.rows import Rows, Stored

PROTOCOL_VERSION = 1
FEATURES: tuple[str, ...] = ()
# Below a stream's 1 MiB window, so that one full batch never blocks the answers.
WINDOW_BYTES = 768 * 1024
# Rows of all priorities are written one after the other: what is urgent waits for one bulk batch at most.
BULK_WINDOW = 1

_RETRY_DELAY = 1.0

_Stream: TypeAlias = Bidi[pb.DispatchResponse, pb.DispatchRequest]
# Any: streams are read and written through mesh.streams.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class DeliveryService(pb_grpc.DeliveryServiceServicer):
    """Serves fanout."""

    def __init__(
        self,
        *,
        rows: Rows,
        explainer: Explainer,
        offers: Offers,
        clock: Clock,
        metrics: Metrics,
        process: str,
        window_count: int,
        trace: Callable[..., None] | None,
        silence: float = 3.0,
        watch_interval: float = 1.0,
    ) -> None:
        """Connects the servicer.

        Args:
            rows: makes batches durable.
            explainer: knows what became of a delivery.
            offers: hears of what is durable.
            clock: for expiry and silence.
            metrics: counts.
            process: the marker of its streams.
            window_count: batches of one stream that may be unanswered.
            trace: logs steps of the path; None when that is off.
            silence: seconds of silence that end a stream; also the wait for its opening.
            watch_interval: seconds between two looks at the silence.
        """
        self._rows = rows
        self._explainer = explainer
        self._offers = offers
        self._clock = clock
        self._metrics = metrics
        self._process = process
        self._window_count = window_count
        self._trace = trace
        self._silence = silence
        self._watch_interval = watch_interval
        self._log = logger()
        self._streams: set[_Stream] = set()
        # Set while no stream is open: a stream ends only after its batches are answered.
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = asyncio.Event()

    async def Dispatch(self, request_iterator: object, context: _Context) -> None:  # type: ignore[override]  # coroutine style
        """Takes batches until fanout ends the stream."""
        if self._draining.is_set():
            raise Unavailable("this process leaves service", reason="DRAINING")
        stream: _Stream = await accept(context, limit=4 * self._window_count + 16, marker=self._process)
        opening = _check_opening(await self._read_opening(stream))
        stream.send(
            pb.DispatchResponse(
                ready=pb.DispatchReady(
                    protocol_version=PROTOCOL_VERSION,
                    window_count=BULK_WINDOW
                    if opening.priority == notification_pb2.PRIORITY_BULK
                    else self._window_count,
                    window_bytes=WINDOW_BYTES,
                    features=[feature for feature in opening.features if feature in FEATURES],
                )
            )
        )
        self._log.info("dispatch_opened", fanout_id=opening.fanout_id, priority=opening.priority)
        if self._draining.is_set():
            stream.send(pb.DispatchResponse(drain=pb.DispatchDrain()))
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

    async def Explain(self, request: pb.ExplainRequest, context: _Context) -> pb.ExplainResponse:
        """Tells why a recipient got an event or did not."""
        return await self._explainer.explain(request)

    async def drain(self) -> None:
        """Asks every caller to move, and waits until what is in flight is answered and the streams have ended."""
        self._draining.set()
        for stream in self._streams:
            stream.send(pb.DispatchResponse(drain=pb.DispatchDrain()))
        await self._idle.wait()

    async def _read_opening(self, stream: _Stream) -> pb.DispatchRequest | None:
        try:
            # Cancelling a read ends the call: that is what a caller deserves that opens a stream and says nothing.
            async with asyncio.timeout(self._silence):
                return await stream.read()
        except TimeoutError:
            raise Unavailable("the stream was not opened", reason="PEER_UNAVAILABLE") from None

    async def _serve(self, stream: _Stream, group: asyncio.TaskGroup) -> None:
        heard = [self._clock.monotonic()]
        watch = group.create_task(self._watch(heard))
        batches: set[asyncio.Task[None]] = set()
        order = InOrder(self._offers.add, most=self._window_count)
        try:
            while (frame := await stream.read()) is not None:
                heard[0] = self._clock.monotonic()
                match frame.WhichOneof("frame"):
                    case "batch":
                        if len(batches) >= 2 * self._window_count:
                            raise InvalidArgument(
                                "more batches in flight than the window allows", reason="FRAME_INVALID"
                            )
                        task = group.create_task(self._take(stream, frame.batch, order))
                        batches.add(task)
                        task.add_done_callback(batches.discard)
                    case "ping":
                        stream.send(pb.DispatchResponse(ping=frame.ping))
                    case _:
                        self._metrics.unknown_frames.inc()
            watch.cancel()
            if batches:
                await asyncio.wait(batches)
        finally:
            order.let_go()
        stream.close()

    async def _watch(self, heard: list[float]) -> None:
        while True:
            await asyncio.sleep(self._watch_interval)
            if self._clock.monotonic() - heard[0] > self._silence:
                raise Unavailable(f"fanout was silent for {self._silence:g} s", reason="PEER_UNAVAILABLE")

    async def _take(self, stream: _Stream, batch: pb.DispatchBatch, order: InOrder) -> None:
        began, slot = self._clock.monotonic(), order.begin()
        try:
            taken = await self._store(batch)
        except Failure as failure:
            order.finish(slot)
            self._log.warning("batch_not_stored", reason=failure.reason, error=failure.message)
            refusals = [(index, failure) for index in range(len(batch.dispatches))]
            self._answer(stream, batch, refusals)
            return
        self._answer(stream, batch, taken.refusals)
        self._metrics.write_seconds.observe(self._clock.monotonic() - began)
        self._metrics.inboxed.inc(len(taken.rows))
        self._metrics.suppressed.inc(taken.suppressed_count)
        if self._trace is not None:
            self._trace_batch(batch, {index for index, _ in taken.refusals})
        order.finish(slot, taken.offers)

    async def _store(self, batch: pb.DispatchBatch) -> Stored:
        """Makes a batch durable.

        An event that breaks something is refused for good: fanout parks it. It must break neither the stream, where it
        would come again and again, nor the events beside it.

        Raises:
            Unavailable: the store does not answer; nothing of the batch counts.
        """
        try:
            return await self._rows.take(batch)
        except Failure:
            raise
        except Exception as error:
            if len(batch.dispatches) > 1:
                return await self._store_one_by_one(batch)
            self._log.exception("event_broken", event_ids=[one.envelope.event_id for one in batch.dispatches])
            return Stored(refusals=[(index, broken(error)) for index in range(len(batch.dispatches))])

    async def _store_one_by_one(self, batch: pb.DispatchBatch) -> Stored:
        stored = Stored()
        for index, dispatch in enumerate(batch.dispatches):
            one = await self._store(pb.DispatchBatch(plans=batch.plans, dispatches=[dispatch]))
            stored.rows += one.rows
            stored.offers += one.offers
            stored.suppressed_count += one.suppressed_count
            stored.refusals += [(index, failure) for _, failure in one.refusals]
        return stored

    def _answer(self, stream: _Stream, batch: pb.DispatchBatch, refusals: Sequence[tuple[int, Failure]]) -> None:
        result = pb.DispatchResult(sequence=batch.sequence)
        for index, failure in refusals:
            refusal = describe(failure, refusal_pb2.Refusal())
            if failure.retriable and failure.retry_delay is None:
                refusal.retry_delay.FromNanoseconds(int(_RETRY_DELAY * 1_000_000_000))
            result.refusals.add(dispatch_index=index, refusal=refusal)
        if not stream.send(pb.DispatchResponse(result=result)):
            raise Unavailable("fanout does not read its answers", reason="PEER_UNAVAILABLE")

    def _trace_batch(self, batch: pb.DispatchBatch, refused: Collection[int]) -> None:
        if self._trace is None:
            return
        stored = [dispatch for index, dispatch in enumerate(batch.dispatches) if index not in refused]
        for dispatch in stored:
            count = sum(len(group.recipient_ids) for group in dispatch.groups)
            self._trace("inboxed", event_id=dispatch.envelope.event_id, recipient_count=count)
        for dispatch in stored:
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


def broken(error: Exception) -> Internal:
    """An event at which this version breaks; whoever has its record parks it."""
    return Internal(f"cannot be delivered: {type(error).__name__}", reason="INTERNAL")

"""The far ends of our links, as real gRPC servers on Unix sockets: what arrives is kept, tests say what goes back.

They keep the contract of the streams and decide nothing. Must not assert anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from heliograph.access.v1 import access_pb2
from heliograph.delivery.v1 import delivery_service_pb2, delivery_service_pb2_grpc
from heliograph.gateway.v1 import gateway_service_pb2, gateway_service_pb2_grpc
from mesh.access import read_access
from mesh.channel import Channels
from mesh.clock import SystemClock
from mesh.errors import Failure, Unavailable
from mesh.server import Server
from mesh.streams import Bidi, accept
from mesh.telemetry import Telemetry

Out = TypeVar("Out")
In = TypeVar("In")
S = TypeVar("S")
# Any: streams are read and written through mesh.streams.
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_FRAMES = 10_000


class FarStream(Generic[Out, In]):
    """One stream at its far end: the frames that came, and a way to answer or cut it."""

    def __init__(self, stream: Bidi[Out, In], metadata: dict[str, str]) -> None:
        self.stream = stream
        self.metadata = metadata
        self.frames: list[In] = []
        self.ended = False
        self._cut: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

    def send(self, frame: Out) -> None:
        """Queues a frame."""
        if not self.stream.send(frame):
            raise AssertionError("the far end's queue is full or its stream is over")

    def cut(self, failure: Failure | None = None) -> None:
        """Ends the stream with a failure, in the middle of everything."""
        if not self._cut.done():
            self._cut.set_result(failure or Unavailable("cut", reason="PEER_UNAVAILABLE"))

    async def serve(self, arrived: Callable[[In], None]) -> None:
        """Keeps frames until the near end closes its side or the stream is cut."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.stream.write_loop())
            cutting = group.create_task(self._wait_for_cut())
            while (frame := await self.stream.read()) is not None:
                self.frames.append(frame)
                arrived(frame)
            self.ended = True
            cutting.cancel()
            self.stream.close()

    async def _wait_for_cut(self) -> None:
        raise await self._cut


DispatchFar: TypeAlias = FarStream[delivery_service_pb2.DispatchResponse, delivery_service_pb2.DispatchRequest]
DeliverFar: TypeAlias = FarStream[gateway_service_pb2.DeliverResponse, gateway_service_pb2.DeliverRequest]


class DeliveryEnd(delivery_service_pb2_grpc.DeliveryServiceServicer):
    """Delivery as fanout sees it.

    Attributes:
        ready: what the opening is answered with; None says nothing at all.
        refused: raised before the stream begins.
        answers_pings: whether it does.
        answers_batches: with no refusals, as soon as they come.
    """

    def __init__(self, *, window_count: int = 8, window_bytes: int = 1 << 20) -> None:
        self.ready: delivery_service_pb2.DispatchReady | None = delivery_service_pb2.DispatchReady(
            protocol_version=1, window_count=window_count, window_bytes=window_bytes
        )
        self.refused: Failure | None = None
        self.answers_pings = True
        self.answers_batches = False
        self.streams: list[DispatchFar] = []

    async def Dispatch(self, request_iterator: object, context: Context) -> None:  # type: ignore[override]  # coroutine style
        """Serves one stream."""
        if self.refused is not None:
            raise self.refused
        far: DispatchFar = FarStream(await accept(context, limit=_FRAMES, marker="delivery"), _metadata(context))
        self.streams.append(far)
        await far.serve(lambda frame: self._arrived(far, frame))

    async def Explain(
        self, request: delivery_service_pb2.ExplainRequest, context: Context
    ) -> delivery_service_pb2.ExplainResponse:
        """Not for fanout."""
        raise NotImplementedError

    def _arrived(self, far: DispatchFar, frame: delivery_service_pb2.DispatchRequest) -> None:
        if frame.HasField("open") and self.ready is not None:
            far.send(delivery_service_pb2.DispatchResponse(ready=self.ready))
        if frame.HasField("ping") and self.answers_pings:
            far.send(delivery_service_pb2.DispatchResponse(ping=frame.ping))
        if frame.HasField("batch") and self.answers_batches:
            self.answer(frame.batch.sequence, far=far)

    @property
    def batches(self) -> list[delivery_service_pb2.DispatchBatch]:
        """The batches of all streams, as they came."""
        return [frame.batch for far in self.streams for frame in far.frames if frame.HasField("batch")]

    def answer(
        self,
        sequence: int,
        *refusals: delivery_service_pb2.DispatchRefusal,
        far: DispatchFar | None = None,
    ) -> None:
        """Answers a batch on a stream, the newest one by default."""
        result = delivery_service_pb2.DispatchResult(sequence=sequence, refusals=refusals)
        (far or self.streams[-1]).send(delivery_service_pb2.DispatchResponse(result=result))


class GatewayEnd(gateway_service_pb2_grpc.GatewayServiceServicer):
    """One gateway node as delivery sees it.

    Attributes:
        ready: what the opening is answered with; None says nothing at all.
        refused: raised before the stream begins.
        answers_pings: whether it does.
        takes_batches: answers them as taken, as soon as they come.
    """

    def __init__(self, *, window_count: int = 4, window_bytes: int = 1 << 20) -> None:
        self.ready: gateway_service_pb2.LinkReady | None = gateway_service_pb2.LinkReady(
            protocol_version=1, window_count=window_count, window_bytes=window_bytes
        )
        self.refused: Failure | None = None
        self.answers_pings = True
        self.takes_batches = False
        self.streams: list[DeliverFar] = []

    async def Deliver(self, request_iterator: object, context: Context) -> None:  # type: ignore[override]  # coroutine style
        """Serves one stream."""
        if self.refused is not None:
            raise self.refused
        far: DeliverFar = FarStream(await accept(context, limit=_FRAMES, marker="gateway"), _metadata(context))
        self.streams.append(far)
        await far.serve(lambda frame: self._arrived(far, frame))

    def _arrived(self, far: DeliverFar, frame: gateway_service_pb2.DeliverRequest) -> None:
        if frame.HasField("open") and self.ready is not None:
            far.send(gateway_service_pb2.DeliverResponse(ready=self.ready))
        if frame.HasField("ping") and self.answers_pings:
            far.send(gateway_service_pb2.DeliverResponse(ping=frame.ping))
        if frame.HasField("batch") and self.takes_batches:
            self.take(frame.batch.sequence, far=far)

    @property
    def opens(self) -> list[gateway_service_pb2.LinkOpen]:
        """The openings of all streams."""
        return [frame.open for far in self.streams for frame in far.frames if frame.HasField("open")]

    @property
    def batches(self) -> list[gateway_service_pb2.DeliverBatch]:
        """The batches of all streams, as they came."""
        return [frame.batch for far in self.streams for frame in far.frames if frame.HasField("batch")]

    @property
    def changes(self) -> list[gateway_service_pb2.Change]:
        """The changes of all streams, as they came."""
        return [change for far in self.streams for frame in far.frames for change in frame.changes.changes]

    @property
    def look_count(self) -> int:
        """How often the node was told to look."""
        return sum(frame.HasField("look") for far in self.streams for frame in far.frames)

    @property
    def stored(self) -> list[int]:
        """The numbers of the marks that were confirmed."""
        return [frame.stored.sequence for far in self.streams for frame in far.frames if frame.HasField("stored")]

    def take(
        self, sequence: int, *refusals: gateway_service_pb2.DeliveryRefusal, far: DeliverFar | None = None
    ) -> None:
        """Says that every batch up to this one was looked at."""
        result = gateway_service_pb2.DeliverResult(taken_sequence=sequence, refusals=refusals)
        (far or self.streams[-1]).send(gateway_service_pb2.DeliverResponse(result=result))


def _metadata(context: Context) -> dict[str, str]:
    return {str(key): str(value) for key, value in context.invocation_metadata() or ()}


@contextlib.asynccontextmanager
async def serving(
    run_dir: Path,
    process: str,
    service: ServiceDescriptor,
    add_function: Callable[[S, grpc.aio.Server], None],
    servicer: S,
) -> AsyncIterator[Telemetry]:
    """Serves one service as a process of this name would, in direct mode."""
    telemetry = Telemetry(process)
    server = Server(
        name=process,
        socket=run_dir / f"{process}.sock",
        access=read_access([service], access_pb2.callers),
        direct=True,
        trust_domain="heliograph.local",
        tokens=None,
        telemetry=telemetry,
        clock=SystemClock(),
    )
    server.add(add_function, servicer, service)
    await server.start()
    try:
        yield telemetry
    finally:
        await server.stop(0.0)


@contextlib.asynccontextmanager
async def delivery_end(run_dir: Path, end: DeliveryEnd) -> AsyncIterator[DeliveryEnd]:
    """Serves delivery's far end."""
    service = delivery_service_pb2.DESCRIPTOR.services_by_name["DeliveryService"]
    add_function = delivery_service_pb2_grpc.add_DeliveryServiceServicer_to_server
    async with serving(run_dir, "delivery", service, add_function, end):
        yield end


@contextlib.asynccontextmanager
async def gateway_end(run_dir: Path, node_id: str, end: GatewayEnd) -> AsyncIterator[GatewayEnd]:
    """Serves a gateway node's far end."""
    service = gateway_service_pb2.DESCRIPTOR.services_by_name["GatewayService"]
    add_function = gateway_service_pb2_grpc.add_GatewayServiceServicer_to_server
    async with serving(run_dir, node_id, service, add_function, end):
        yield end


@contextlib.asynccontextmanager
async def calling(run_dir: Path, service: str) -> AsyncIterator[Channels]:
    """The outgoing channels of a service, in direct mode."""
    channels = Channels(service=service, process=service, run_dir=run_dir, direct=True)
    try:
        yield channels
    finally:
        await channels.close()


@contextlib.asynccontextmanager
async def running(coroutine: Callable[[], Any]) -> AsyncIterator[asyncio.Task[None]]:
    """Runs something that runs for good, and cancels it at the end; what it raised before that is raised here."""
    async with asyncio.TaskGroup() as group:
        running_task: asyncio.Task[None] = group.create_task(coroutine())
        try:
            yield running_task
        finally:
            running_task.cancel()

"""A device of `device.py` whose connection is a gRPC stream, and what the stream ended with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from heliograph.gateway.v1 import client_service_pb2_grpc
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from mesh import options, status, streams
from mesh.errors import Failure
from tests.support.device import LIMIT_S, Device, Ended

METHOD = "/heliograph.gateway.v1.ClientService/Connect"
_IN_ORDER, _BROKEN = 1000, 1006

# Any: one kind of call carries messages, another one plain bytes.
Call = grpc.aio.StreamStreamCall[Any, Any]


class StreamPipe:
    """A stream; implements `device.Pipe`.

    Attributes:
        failure: what it ended with; None while it is open and after an end in order.
    """

    def __init__(self, call: Call) -> None:
        self.failure: Failure | None = None
        self._call = call
        self._write = streams.writer(call)
        # Any: a message or gRPC's end marker.
        self._read: asyncio.Future[Any] | None = None

    async def send(self, request: ConnectRequest) -> None:
        """See `device.Pipe`."""
        # What has ended says so to the reader.
        with contextlib.suppress(grpc.aio.BaseError):
            await self._write(request)

    async def receive(self) -> ConnectResponse:
        """See `device.Pipe`."""
        # A read that is cancelled would cancel the call: who stops reading leaves it, and finds it again.
        if self._read is None:
            self._read = asyncio.ensure_future(self._call.read())
        try:
            frame = await asyncio.shield(self._read)
        except grpc.aio.AioRpcError as error:
            self.failure = status.from_call(error)
            raise Ended(int(self.failure.metadata.get("close_code", _BROKEN))) from None
        self._read = None
        if frame is grpc.aio.EOF:
            raise Ended(_IN_ORDER)
        assert isinstance(frame, ConnectResponse)
        return frame

    async def close(self) -> None:
        """See `device.Pipe`."""
        with contextlib.suppress(grpc.aio.BaseError, grpc.aio.AioRpcError, asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._call.done_writing()
                await self._call.code()
        self._call.cancel()

    def cut(self) -> None:
        """See `device.Pipe`."""
        self._call.cancel()


class StreamDevice(Device):
    """One stream of one device."""

    def __init__(self, pipe: StreamPipe) -> None:
        self.pipe = pipe
        super().__init__(pipe)

    async def ends_with(self) -> Failure:
        """Waits for the end and returns the status, read as the failure that was raised over there."""
        await self.is_closed()
        assert self.pipe.failure is not None, "it ended in order"
        return self.pipe.failure


@asynccontextmanager
async def streaming(
    target: str,
    metadata: Sequence[tuple[str, str]] = (),
    *,
    credentials: grpc.ChannelCredentials | None = None,
    authority: str | None = None,
) -> AsyncIterator[StreamDevice]:
    """Opens a stream; hello is not said yet.

    Args:
        target: of a gateway node or the edge.
        metadata: of the call.
        credentials: for TLS.
        authority: the name to ask for.
    """
    opened = options.channel_options(authority, own_connection=True)
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, options=opened)
    else:
        channel = grpc.aio.secure_channel(target, credentials, options=opened)
    call = client_service_pb2_grpc.ClientServiceStub(channel).Connect(metadata=tuple(metadata))
    device: StreamDevice | None = None
    try:
        async with asyncio.timeout(LIMIT_S):
            await call.initial_metadata()
        device = StreamDevice(StreamPipe(call))
        yield device
    finally:
        if device is not None:
            await device.close()
        await channel.close()


@asynccontextmanager
async def raw_streams(target: str, metadata: Sequence[tuple[str, str]] = ()) -> AsyncIterator[Callable[[], Call]]:
    """Opens a channel; each call opens a stream on it by which any bytes may be sent."""
    channel = grpc.aio.insecure_channel(target, options=options.channel_options(None, own_connection=True))
    try:
        yield lambda: channel.stream_stream(METHOD)(metadata=tuple(metadata))
    finally:
        await channel.close()

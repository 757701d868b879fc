"""Sessions over gRPC: opening a stream to the edge or a gateway node, its frames, and what its status means.

Must not know what a frame means.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import grpc
import grpc.aio
import msgspec

from heliograph.gateway.v1 import client_service_pb2_grpc
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from heliograph_client.closing import is_final_status, stream_end
from heliograph_client.tls import Tls
from heliograph_client.wires import BROKEN, NotOpened, WireClosed
from mesh import status, streams
from mesh.errors import Failure, Unavailable

_MAX_FRAME_BYTES = 256 * 1024
_OPEN_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0
# A server shows that it has taken the stream; an answer without is a refusal.
_MARKER = "x-heliograph-stream"
_TOKEN_HEADER = "authorization"
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The window stays at 64 KiB: behind it the stream is full, and the server notices that nothing is read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", _MAX_FRAME_BYTES),
)

_Call: TypeAlias = grpc.aio.StreamStreamCall[ConnectRequest, ConnectResponse]


class StreamAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway takes streams.

    Attributes:
        target: `host:port` of the edge, or `unix:PATH` of a node's socket.
        tls: certificates; None: no encryption, and the token travels in the call's head as well, since no edge speaks
            for the caller.
        headers: additional metadata of the call.
    """

    target: str
    tls: Tls | None = None
    headers: Mapping[str, str] = {}


class StreamWire:
    """An open stream; implements `wires.Wire`."""

    def __init__(self, channel: grpc.aio.Channel, call: _Call) -> None:
        self._channel = channel
        self._call = call
        self._write = streams.writer(call)
        # Any: a frame, or gRPC's end marker.
        self._reading: asyncio.Future[Any] | None = None
        self._failure: Failure | None = None
        self._ended = False

    async def send(self, frame: ConnectRequest) -> None:
        """See `wires.Wire`."""
        try:
            await self._write(frame)
        except grpc.aio.BaseError:
            # The reader learns why.
            raise WireClosed from None

    async def receive(self) -> ConnectResponse:
        """See `wires.Wire`."""
        # A read that is cancelled would cancel the call: who is cancelled leaves it to the next one.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        reading = self._reading
        try:
            frame = await asyncio.shield(reading)
        except grpc.aio.AioRpcError as error:
            self._failure = status.from_call(error)
            raise WireClosed from None
        except asyncio.CancelledError:
            if reading.cancelled():
                # The call was, by `abort`.
                raise WireClosed from None
            raise
        if frame is grpc.aio.EOF:
            self._ended = True
            raise WireClosed
        if self._reading is reading:
            self._reading = None
        assert isinstance(frame, ConnectResponse)
        return frame

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """See `wires.Wire`; a stream has neither code nor reason on this side."""
        with contextlib.suppress(WireClosed, TimeoutError, grpc.aio.BaseError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._call.done_writing()
                while True:
                    await self.receive()
        self._call.cancel()

    def abort(self) -> None:
        """See `wires.Wire`."""
        self._call.cancel()

    async def dispose(self) -> None:
        """See `wires.Wire`."""
        self._call.cancel()
        reading = self._reading
        if reading is not None:
            # Nobody asks for it any more.
            reading.cancel()
            await asyncio.wait([reading])
        await self._channel.close()

    def end(self) -> tuple[int, str]:
        """See `wires.Wire`."""
        if self._failure is not None:
            return stream_end(self._failure)
        return (1000 if self._ended else BROKEN), ""


async def open_stream(address: StreamAddress, token: str, client_name: str) -> StreamWire | NotOpened:
    """Connects and opens a stream."""
    channel = _open_channel(address, client_name)
    metadata = [(name.lower(), value) for name, value in address.headers.items()]
    if address.tls is None:
        metadata.append((_TOKEN_HEADER, f"Bearer {token}"))
    call = client_service_pb2_grpc.ClientServiceStub(channel).Connect(metadata=tuple(metadata))
    failure: Failure
    try:
        async with asyncio.timeout(_OPEN_TIMEOUT_S):
            initial = await call.initial_metadata()
            if any(key == _MARKER for key, _ in initial or ()):
                return StreamWire(channel, call)
            failure = await _refusal(call)
    except TimeoutError:
        failure = Unavailable(f"no answer from {address.target} within {_OPEN_TIMEOUT_S:g} s", reason="")
    except BaseException:
        call.cancel()
        await channel.close()
        raise
    call.cancel()
    await channel.close()
    return NotOpened(failure, is_final_status(failure))


async def _refusal(call: _Call) -> Failure:
    code, details = await call.code(), await call.details()
    trailing = await call.trailing_metadata()
    if code is grpc.StatusCode.OK:
        return Unavailable("the server ended the stream before it began", reason="")
    return status.from_call(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details))


def _open_channel(address: StreamAddress, client_name: str) -> grpc.aio.Channel:
    options: list[tuple[str, int | str]] = list(_OPTIONS)
    if client_name:
        options.append(("grpc.primary_user_agent", client_name))
    if address.tls is None:
        return grpc.aio.insecure_channel(address.target, options=options)
    if address.tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", address.tls.server_name))
    return grpc.aio.secure_channel(address.target, address.tls.credentials(), options=options)

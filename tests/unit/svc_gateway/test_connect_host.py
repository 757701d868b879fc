"""One gRPC stream and its host: every way to end, and what a host that fails costs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from heliograph.access.v1 import access_pb2
from heliograph.gateway.v1 import client_service_pb2, client_service_pb2_grpc
from mesh import status
from mesh.access import read_access
from mesh.clock import SystemClock
from mesh.errors import Unavailable
from mesh.identity import CALLER_HEADER
from mesh.server import Server
from mesh.telemetry import Telemetry
from svc_gateway.connect import ClientStreams, StreamOptions
from svc_gateway.host import ClientConnection
from tests.support.stream_device import Call, raw_streams
from tests.support.wait import until

EDGE = ((CALLER_HEADER, "svc/edge"),)


async def _status(call: Call) -> grpc.StatusCode:
    async with asyncio.timeout(10.0):
        return await call.code()


class _Failing:
    """A host that answers "fill" with more than a window takes, and fails when told to or when it is drained."""

    def __init__(self) -> None:
        self.turns: list[str] = []
        self.codes: list[int] = []
        self.fails_when_writable = False

    def opened(self, connection: ClientConnection) -> None:
        self.turns.append("opened")

    def received(self, connection: ClientConnection, payload: bytes | bytearray, text: bool) -> None:
        if payload == b"fail":
            raise LookupError("the host's own failure")
        if payload == b"fill":
            for _ in range(20):
                connection.write(b"x" * 10_000)
        else:
            connection.write(bytes(payload))

    def behind(self, connection: ClientConnection) -> None:
        self.turns.append("behind")

    def writable(self, connection: ClientConnection) -> None:
        self.turns.append("writable")
        if self.fails_when_writable:
            raise LookupError("the host's own failure")

    def closed(self, connection: ClientConnection, code: int) -> None:
        self.codes.append(code)
        connection.write(b"nothing")
        connection.close(4001, "again")


@contextlib.asynccontextmanager
async def _serving(run_dir: Path, host: _Failing, admit: Callable[[], float] | None = None) -> AsyncIterator[str]:
    """Serves streams to a host; returns where."""
    service = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"]
    streams = ClientStreams(
        host=host,
        options=StreamOptions(stream_limit=10),
        node_id="gw-0",
        draining=lambda: False,
        counted=lambda _: None,
        admit=admit,
    )
    path = run_dir / "gw-0.sock"
    server = Server(
        name="gateway",
        socket=path,
        access=read_access([service], access_pb2.callers),
        direct=True,
        trust_domain="heliograph.local",
        tokens=None,
        telemetry=Telemetry("gateway"),
        clock=SystemClock(),
    )
    server.add(client_service_pb2_grpc.add_ClientServiceServicer_to_server, streams, service, raw=("Connect",))
    await server.start()
    try:
        yield f"unix:{path}"
    finally:
        await server.stop(0.0)


async def test_a_failing_host_ends_one_stream_and_not_its_neighbour(run_dir: Path) -> None:
    """The client is told INTERNAL and nothing of the cause; the end is told once."""
    host = _Failing()
    async with _serving(run_dir, host) as target, raw_streams(target, EDGE) as open_one:
        neighbour, call = open_one(), open_one()
        await call.write(b"fail")
        assert await _status(call) is grpc.StatusCode.INTERNAL
        assert "LookupError" not in await call.details()
        await neighbour.write(b"hello")
        assert await neighbour.read() == b"hello"
        assert host.codes == [1011]
        await neighbour.done_writing()
        assert await _status(neighbour) is grpc.StatusCode.OK
        assert host.codes == [1011, 1000]


async def test_a_stream_that_is_not_read_fills_up_and_drains(run_dir: Path) -> None:
    """Behind once, writable once, and every byte comes."""
    host = _Failing()
    async with _serving(run_dir, host) as target, raw_streams(target, EDGE) as open_one:
        call = open_one()
        await call.write(b"fill")
        await until(lambda: host.turns == ["opened", "behind"], 5.0, "it is behind")
        assert [len(await call.read()) for _ in range(20)] == [10_000] * 20  # type: ignore[arg-type]  # bytes
        await until(lambda: host.turns == ["opened", "behind", "writable"], 5.0, "it has drained")


async def test_a_host_that_fails_while_a_stream_drains_ends_it(run_dir: Path) -> None:
    """As when it fails at a frame."""
    host = _Failing()
    host.fails_when_writable = True
    async with _serving(run_dir, host) as target, raw_streams(target, EDGE) as open_one:
        call = open_one()
        await call.write(b"fill")
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await _status(call) is grpc.StatusCode.INTERNAL
        assert host.codes == [1011]


async def test_who_comes_too_early_is_told_when_to_come_again(run_dir: Path) -> None:
    """Before anything is read of the stream, and the host never hears of it."""
    host, delays = _Failing(), [1.5, 0.0]
    async with _serving(run_dir, host, lambda: delays.pop(0)) as target, raw_streams(target, EDGE) as open_one:
        early = open_one()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await early.read()
        failure = status.from_call(raised.value)
        assert (type(failure), failure.reason, failure.retry_delay) == (Unavailable, "OVERLOADED", 1.5)
        assert host.turns == []
        later = open_one()
        await later.write(b"hello")
        assert await later.read() == b"hello"

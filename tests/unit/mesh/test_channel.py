"""Outgoing calls: deadlines, headers, and failures as they were raised."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from mesh import context as calls
from mesh.channel import Channels, call
from mesh.clock import ManualClock
from mesh.errors import DeadlineExceeded, Unavailable, Unimplemented
from tests.support import echo

HI = StringValue(value="hi")


def _served(clock: ManualClock, seconds: float, trace: str = "") -> calls.CallContext:
    caller = calls.Caller(role="edge", name="edge")
    return calls.CallContext(caller, clock.monotonic() + seconds, trace, "/a.B/C", clock.monotonic)


async def _left(request: StringValue, context: echo.Context) -> StringValue:
    return StringValue(value=str(context.time_remaining()))


async def test_the_deadline_is_the_shorter_of_own_and_remaining(run_dir: Path) -> None:
    """A call made while serving another one never outlives it; otherwise its own time-out holds."""
    async with echo.serving(run_dir, say=_left) as running:
        metadata = running.channels.metadata()
        alone = await call(running.say, HI, timeout=7, metadata=metadata)
        with calls.serving(_served(ManualClock(), 2.0)):
            shorter = await call(running.say, HI, timeout=7, metadata=metadata)
        with calls.serving(_served(ManualClock(), 60.0)):
            own = await call(running.say, HI, timeout=7, metadata=metadata)
    # gRPC rounds a deadline up when it sends it.
    assert 6 < float(alone.value) < 7.1
    assert 1 < float(shorter.value) < 2.1
    assert 6 < float(own.value) < 7.1


async def test_without_time_left_nothing_is_sent(run_dir: Path) -> None:
    """When the served call's time is over, no peer is bothered."""
    async with echo.serving(run_dir) as running:
        with calls.serving(_served(ManualClock(), 0.0)), pytest.raises(DeadlineExceeded):
            await call(running.say, HI, timeout=5, metadata=running.channels.metadata())
        assert running.count(echo.SAY, "OK") == 0


async def test_an_expired_call_is_a_failure_and_cancels_the_servicer(run_dir: Path) -> None:
    """The caller gets DeadlineExceeded; the servicer does not go on."""
    cancelled = asyncio.Event()

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return request

    async with echo.serving(run_dir, say=say) as running:
        with pytest.raises(DeadlineExceeded):
            await call(running.say, HI, timeout=0.1, metadata=running.channels.metadata())
        async with asyncio.timeout(5):
            await cancelled.wait()


async def test_an_absent_peer_is_unavailable_and_found_later(run_dir: Path) -> None:
    """A peer that is not there fails at once; the same channel reaches it soon after it came up."""
    channels = Channels(service="fanout", process="fanout", run_dir=run_dir, direct=True)
    say = echo.say_of(channels.unary("echo"))
    with pytest.raises(Unavailable):
        await call(say, HI, timeout=5, metadata=channels.metadata())
    async with echo.serving(run_dir), asyncio.timeout(5):
        answer = await say(HI, timeout=5, metadata=channels.metadata(), wait_for_ready=True)
    assert answer == HI
    await channels.close()


async def test_headers_name_the_caller_and_pass_the_trace_on(run_dir: Path) -> None:
    """Direct calls say who calls; the served call's trace goes along; behind a sidecar nobody names himself."""
    direct = Channels(service="gateway", process="gw-a-0", run_dir=run_dir, direct=True)
    meshed = Channels(service="gateway", process="gw-a-0", run_dir=run_dir, direct=False)
    assert direct.metadata() == (("x-heliograph-caller", "svc/gateway"),)
    assert meshed.metadata() == ()
    with calls.serving(_served(ManualClock(), 1.0, trace="00-t")):
        assert meshed.metadata(x_extra="1") == (("traceparent", "00-t"), ("x-extra", "1"))
    assert direct.node_metadata("gw-b-1", "127.0.0.1:20001") == (
        ("x-heliograph-caller", "svc/gateway"),
        ("x-heliograph-node", "gw-b-1"),
        ("x-heliograph-node-addr", "127.0.0.1:20001"),
    )


async def test_channels_are_kept_and_streams_have_their_own(run_dir: Path) -> None:
    """The same peer gives the same channel, another one for streams; a released node gets a new one."""
    channels = Channels(service="delivery", process="delivery", run_dir=run_dir, direct=True)
    assert channels.unary("echo") is channels.unary("echo")
    assert channels.stream("echo") is channels.stream("echo")
    assert channels.stream("echo") is not channels.unary("echo")
    node = channels.node("gw-a-0")
    assert channels.node("gw-a-0") is node
    assert channels.node("gw-a-1") is not node
    await channels.release_node("gw-a-0")
    assert channels.node("gw-a-0") is not node
    await channels.close()


async def _authority_of_one_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Plays the sidecar for one call: returns the authority that it was sent to."""
    http2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    http2.initiate_connection()
    while True:
        writer.write(http2.data_to_send())
        for event in http2.receive_data(await reader.read(65_536)):
            if isinstance(event, RequestReceived):
                return next(value.decode() for name, value in event.headers if name == b":authority")


async def test_behind_a_sidecar_the_authority_names_the_peer(run_dir: Path) -> None:
    """Calls leave through the own outbound socket, and the authority is the peer's name in the trust domain."""
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def sidecar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.put_nowait(await _authority_of_one_call(reader, writer))
        writer.close()

    listener = await asyncio.start_unix_server(sidecar, run_dir / "fanout.out")
    channels = Channels(service="fanout", process="fanout", run_dir=run_dir, direct=False, trust_domain="example.org")
    opened = (channels.unary("prefs"), channels.stream("delivery"), channels.node("gw-a-0"))
    for channel, expected in zip(opened, ("prefs", "delivery", "gateway"), strict=True):
        with pytest.raises(Unavailable):
            await call(echo.say_of(channel), HI, timeout=5)
        assert seen.get_nowait() == f"{expected}.example.org"
    await channels.close()
    listener.close()


def test_a_channel_needs_the_running_loop(run_dir: Path) -> None:
    """Outside of a loop a channel would belong to a wrong one: that is an error at once."""
    channels = Channels(service="fanout", process="fanout", run_dir=run_dir, direct=True)
    with pytest.raises(RuntimeError, match="loop"):
        channels.unary("echo")


async def test_codes_become_categories(run_dir: Path) -> None:
    """A refusal without details still gets its category."""
    async with echo.serving(run_dir) as running:
        unknown: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        unknown = running.channels.unary("echo").unary_unary("/mesh.test.v1.EchoService/Missing")
        with pytest.raises(Unimplemented, match="Method not found"):
            await call(unknown, b"", timeout=5, metadata=running.channels.metadata())

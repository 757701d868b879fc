"""The listener: limits in time, real clients on real sockets, and a reader that stops."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from mesh.app import StartError
from mesh.clock import ManualClock
from svc_gateway import wire
from svc_gateway.websocket import Listener, Options
from tests.support.connections import REQUEST, Bench, Recorder
from tests.support.wait import until

JSON = Subprotocol("heliograph.v1.json")


def test_a_request_that_does_not_come_is_given_up() -> None:
    """The sweep breaks off what has not opened in time, and nothing that has."""
    opening, opened = Bench(opened=False), Bench()
    for bench in (opening, opened):
        bench.clock.advance(4.9)
        bench.listener.sweep(bench.clock.monotonic())
        assert not bench.transport.gone
        bench.clock.advance(0.2)
        bench.listener.sweep(bench.clock.monotonic())
    assert opening.transport.gone
    assert not opened.transport.gone


@pytest.mark.parametrize("breaks", [True, False])
def test_a_peer_that_does_not_finish_closing_is_cut_off(breaks: bool) -> None:
    """Both a closing handshake without an answer and a broken rule end after the limit."""
    bench = Bench()
    if breaks:
        bench.feed(wire.frame(1, b"unmasked"))
    else:
        bench.connection.close(4001, "")
    bench.clock.advance(1.9)
    bench.listener.sweep(bench.clock.monotonic())
    assert not bench.transport.gone
    bench.clock.advance(0.2)
    bench.listener.sweep(bench.clock.monotonic())
    assert bench.transport.gone


# ---------------------------------------------------------------- on sockets


@asynccontextmanager
async def listening(host: Recorder, address: str, delay: float = 0.0) -> AsyncIterator[Listener]:
    """A listener for one test; its connections are cut at the end."""
    options = Options(allowed_origins=frozenset({"https://app.example.com"}))
    listener = Listener(host=host, options=options, clock=ManualClock(), admit=lambda: delay)
    await listener.open(address)
    try:
        yield listener
    finally:
        await listener.close()
        for connection in host.connections:
            connection.abort()


async def test_a_real_client_speaks_over_a_unix_socket(run_dir: Path) -> None:
    """Messages and closing codes pass both ways; the socket is its owner's alone and is removed afterwards."""
    host, path = Recorder(), run_dir / "gw-1.ws"
    async with listening(host, f"unix:{path}") as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with unix_connect(str(path), "ws://gateway/v1/ws", subprotocols=[JSON], compression="deflate") as client:
            assert client.subprotocol == JSON
            await client.send("hällo")
            await until(lambda: host.messages == [("hällo".encode(), True)])
            host.connections[0].write(wire.frame(wire.TEXT, b"answer"))
            assert await client.recv() == "answer"
            host.connections[0].close(4001, "draining")
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4001, "draining")
        await until(lambda: host.codes == [4001])
        assert (listener.accepted, listener.refused) == (1, 0)
    assert not path.exists()


async def test_a_stale_socket_is_replaced_and_a_served_one_is_not(run_dir: Path) -> None:
    """A crashed process leaves a file that must not stop the next one; a living process is not pushed aside."""
    address = f"unix:{run_dir / 'gw-1.ws'}"
    async with listening(Recorder(), address):
        with pytest.raises(StartError, match="another process serves"):
            await Listener(host=Recorder(), options=Options(), clock=ManualClock()).open(address)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(run_dir / "gw-1.ws"))
    async with listening(Recorder(), address) as listener:
        assert listener.address == address


async def test_a_real_client_is_pinged_and_refused_over_tcp() -> None:
    """The chosen port is known, pings are answered, and a foreign page gets a status with a reason."""
    host = Recorder()
    async with listening(host, "127.0.0.1:0") as listener:
        url = f"ws://{listener.address}/v1/ws"
        async with connect(url, subprotocols=[JSON], origin=Origin("https://app.example.com")) as client:
            await asyncio.wait_for(await client.ping(), 5)
            assert host.connections[0].peer.startswith("127.0.0.1:")
        await until(lambda: host.codes == [1000])
        with pytest.raises(InvalidStatus) as caught:
            await connect(url, subprotocols=[JSON], origin=Origin("https://evil.example"))
        assert caught.value.response.status_code == 403
        assert b"ORIGIN_REFUSED" in (caught.value.response.body or b"")


async def test_a_listener_that_admits_nobody_says_when_to_come_back() -> None:
    """Overload is refused before the handshake is worked on."""
    async with listening(Recorder(), "127.0.0.1:0", delay=2.3) as listener:
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"ws://{listener.address}/v1/ws", subprotocols=[JSON])
        assert caught.value.response.status_code == 503
        assert caught.value.response.headers["Retry-After"] == "3"


async def test_a_reader_that_stops_puts_its_session_behind() -> None:
    """The host is told when the transport is full, how much waits there, and when it has drained."""
    host = Recorder()
    async with listening(host, "127.0.0.1:0") as listener:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(listener.address.rpartition(":")[2]), limit=1024
        )
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        frame, sent = wire.frame(wire.BINARY, bytes(60_000)), 0
        while not host.turns:
            host.connections[0].write(frame)
            sent += len(frame)
            await asyncio.sleep(0)
        assert host.turns == ["behind"]
        assert host.connections[0].buffered > 65_536
        await asyncio.wait_for(reader.readexactly(sent), 10)
        await until(lambda: host.turns == ["behind", "writable"])
        writer.close()
    await until(lambda: host.codes == [1006])


async def test_closing_the_listener_leaves_open_connections_alone() -> None:
    """Unfinished openings are dropped, sessions are the host's to end."""
    host = Recorder()
    async with listening(host, "127.0.0.1:0") as listener:
        port = int(listener.address.rpartition(":")[2])
        _, unfinished = await asyncio.open_connection("127.0.0.1", port)
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        async with connect(f"ws://127.0.0.1:{port}/v1/ws", subprotocols=[JSON]) as client:
            await until(lambda: listener.accepted == 3)
            await listener.close()
            assert await asyncio.wait_for(reader.read(), 5) == b""
            await client.send("still here")
            await until(lambda: host.messages == [(b"still here", True)])
        unfinished.close()

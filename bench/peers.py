"""Servers to compare the gateway with: the `websockets` library's own, and an asyncio protocol that does the minimum.

Run as `python -m bench.peers KIND`; prints its port, then obeys JSON lines on standard input. Both speak just enough
for `bench.listeners`: they take a hello unread, answer with a checkpoint, ping, and write one frame to every session
when told to. Neither checks a token, keeps a state, or tells anybody: what the gateway does beyond is its own price.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import msgspec
from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from heliograph.gateway.v1.client_frames_pb2 import ConnectResponse, Notify, Replayed
from heliograph.type.v1.notification_pb2 import Content, Notification

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY = re.compile(rb"\r\nsec-websocket-key: *([^\r]+)", re.IGNORECASE)
_PROTO = "heliograph.v1.proto"
_CHECKPOINT = ConnectResponse(replayed=Replayed(cursor="1.peer")).SerializeToString()
_BACKLOG = 4_096


class Command(msgspec.Struct, frozen=True):
    """Write a frame to every session, so many times.

    Attributes:
        rounds: how often.
        payload: bytes of the frame's message.
    """

    rounds: int
    payload: int


class Pushed(msgspec.Struct, frozen=True):
    """What a command did: frames, and the process's CPU and wall seconds for them."""

    frames: int
    cpu: float
    wall: float


class Peer(Protocol):
    """A server."""

    async def listen(self, heartbeat: float) -> int:
        """Listens on a free loopback port and returns it; pings each session every so many seconds."""
        ...

    async def push(self, payload: bytes) -> int:
        """Writes a message to every session; returns how many there are."""
        ...


class Bare(asyncio.Protocol):
    """One session of the minimum."""

    __slots__ = ("_open", "_peer", "transport")

    transport: asyncio.Transport

    def __init__(self, peer: BarePeer) -> None:
        self._peer = peer
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the request."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answers the request, then the first frame; what follows is thrown away."""
        if self._open:
            if self not in self._peer.sessions:
                self._peer.sessions[self] = None
                self.transport.write(bytes((0x82, len(_CHECKPOINT))) + _CHECKPOINT)
            return
        found = _KEY.search(data)
        if found is None:
            self.transport.close()
            return
        self._open = True
        accept = base64.b64encode(hashlib.sha1(found[1] + _GUID, usedforsecurity=False).digest())
        self.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\nSec-WebSocket-Protocol: " + _PROTO.encode() + b"\r\n\r\n"
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the session."""
        self._peer.sessions.pop(self, None)


class BarePeer:
    """The minimum: a loop over transports."""

    def __init__(self) -> None:
        self.sessions: dict[Bare, None] = {}
        self._pinging: asyncio.Task[None] | None = None

    async def listen(self, heartbeat: float) -> int:
        """See `Peer`."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Bare(self), "127.0.0.1", 0, backlog=_BACKLOG)
        self._pinging = loop.create_task(self._ping(heartbeat))
        return int(server.sockets[0].getsockname()[1])

    async def push(self, payload: bytes) -> int:
        """See `Peer`."""
        frame = bytes((0x82, 126, len(payload) >> 8, len(payload) & 0xFF)) + payload
        for session in self.sessions:
            session.transport.write(frame)
        return len(self.sessions)

    async def _ping(self, heartbeat: float) -> None:
        """Pings a share of the sessions every second, so that each gets one a heartbeat."""
        waiting: list[Bare] = []
        while True:
            await asyncio.sleep(1.0)
            waiting = waiting or list(self.sessions)
            share = int(len(self.sessions) / heartbeat) + 1
            for session in waiting[:share]:
                session.transport.write(b"\x89\x00")
            del waiting[:share]


class LibraryPeer:
    """The `websockets` library's own server, compression off."""

    def __init__(self) -> None:
        self._sessions: dict[ServerConnection, None] = {}

    async def listen(self, heartbeat: float) -> int:
        """See `Peer`."""
        server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            compression=None,
            ping_interval=heartbeat,
            ping_timeout=None,
            subprotocols=[Subprotocol(_PROTO)],
            open_timeout=60.0,
            backlog=_BACKLOG,
        )
        return int(next(iter(server.sockets)).getsockname()[1])

    async def push(self, payload: bytes) -> int:
        """See `Peer`."""
        broadcast(self._sessions, payload)
        return len(self._sessions)

    async def _serve(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.recv()
            await connection.send(_CHECKPOINT)
            self._sessions[connection] = None
            try:
                async for _ in connection:
                    pass
            finally:
                del self._sessions[connection]


KINDS: dict[str, Callable[[], Peer]] = {"websockets": LibraryPeer, "bare": BarePeer}


def notification(size: int, number: int) -> bytes:
    """Returns a serialised notification frame of so many bytes, with an id of its own."""
    id_ = f"00000000-0000-7000-8000-{number:012d}"

    def built(filler: int) -> bytes:
        content = Content(title="x" * filler, body=str(time.monotonic_ns() // 1_000))
        return ConnectResponse(
            notify=Notify(notification=Notification(notification_id=id_, revision=1, content=content))
        ).SerializeToString()

    filler = 0
    # Twice: the lengths in the message grow with it.
    for _ in range(2):
        filler += size - len(built(filler))
    return built(filler)


async def obey(push: Callable[[bytes], Awaitable[int]]) -> None:
    """Carries commands out until the input ends."""
    number = 0
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        command = msgspec.json.decode(line, type=Command)
        frames, cpu, began = 0, 0.0, time.monotonic()
        for _ in range(command.rounds):
            number += 1
            payload = notification(command.payload, number)
            before = time.process_time()
            frames += await push(payload)
            cpu += time.process_time() - before
            # The sessions' answers are no part of it.
            await asyncio.sleep(0)
        answer = Pushed(frames=frames, cpu=cpu, wall=time.monotonic() - began)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.flush()


async def run(kind: str, heartbeat: float) -> None:
    """Serves until the input ends."""
    peer = KINDS[kind]()
    print(await peer.listen(heartbeat), flush=True)
    await obey(peer.push)


def main() -> None:
    """Runs the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--heartbeat", type=float, default=120.0)
    chosen = parser.parse_args()
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(run(chosen.kind, chosen.heartbeat))


if __name__ == "__main__":
    main()

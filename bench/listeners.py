"""Many listening sessions in one process: the receiving half of a load, lean enough not to be what is measured.

Run as `python -m bench.listeners`, told what to do by one JSON line on standard input; prints a JSON line when all are
connected ("ready") and one with the results at the end of input. A session acks every notification at once, over the
binary subprotocol. Latencies run from the intended time in the content (µs of CLOCK_MONOTONIC) to the receipt, and to
the confirmation of the stored ack.
"""

from __future__ import annotations

import array
import asyncio
import base64
import contextlib
import os
import random
import ssl
import sys
import time
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from heliograph.gateway.v1 import client_frames_pb2 as pb
from heliograph.type.v1 import notification_pb2

_HANDSHAKE_LIMIT = 30.0


class Order(msgspec.Struct, frozen=True):
    """What the process is told.

    Attributes:
        targets: where to connect, in turn: "127.0.0.1:7420".
        server_name: for TLS; empty: plain.
        ca_file: the certificate authority; empty: plain.
        sessions: one (device id, token) each.
        frozen: so many sessions stop reading once they are connected.
        pace: connects a second.
        by_category: also keep intended time and latency of each receipt.
    """

    targets: list[str]
    server_name: str
    ca_file: str
    sessions: list[tuple[str, str]]
    frozen: int = 0
    pace: float = 500.0
    by_category: bool = False


class Result(msgspec.Struct, frozen=True):
    """What was seen.

    Attributes:
        received: notifications, each (recipient, id) once.
        duplicates: the same one again.
        receipts: µs from intended time to receipt.
        acks: µs from intended time to the confirmed ack.
        closed: sessions that ended before their time.
        by_category: where asked for, intended time and latency in turn, µs.
    """

    received: int
    duplicates: int
    receipts: list[int]
    acks: list[int]
    closed: int
    by_category: dict[str, list[int]] = {}


class Tally:
    """What all sessions of the process have seen."""

    def __init__(self) -> None:
        self.receipts = array.array("q")
        self.acks = array.array("q")
        self.duplicates = 0
        self.closed = 0
        self.by_category: dict[str, array.array[int]] = {}


class Listener(asyncio.Protocol):
    """One session: handshake, hello, then frames."""

    def __init__(self, order: Order, device_id: str, token: str, tally: Tally) -> None:
        self._order = order
        self._device_id = device_id
        self._token = token
        self._tally = tally
        self._buffer = bytearray()
        self._open = False
        self._frame_number = 1
        # frame number of an ack -> intended time of what it acks
        self._unconfirmed: dict[int, int] = {}
        self._seen: set[str] = set()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the opening handshake."""
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode("ascii")
        host = self._order.server_name or "localhost"
        self.transport.write(
            f"GET /v1/ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: heliograph.v1.proto\r\n\r\n".encode("ascii")
        )

    def data_received(self, data: bytes) -> None:
        """Takes the handshake's answer, then frames; control frames are answered."""
        buffer = self._buffer
        buffer += data
        if not self._open:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not buffer.startswith(b"HTTP/1.1 101"):
                self._fail(f"handshake refused: {bytes(buffer[:200])!r}")
                return
            del buffer[: end + 4]
            self._open = True
            self._send(pb.ConnectRequest(hello=pb.Hello(token=self._token, device_id=self._device_id), frame_number=1))
        while len(buffer) >= 2:
            size, start = buffer[1] & 0x7F, 2
            if size == 126:
                size, start = int.from_bytes(buffer[2:4], "big"), 4
            elif size == 127:
                size, start = int.from_bytes(buffer[2:10], "big"), 10
            if len(buffer) < start + size:
                return
            opcode = buffer[0] & 0x0F
            payload = bytes(buffer[start : start + size])
            del buffer[: start + size]
            if opcode == 0x2:
                self._take(payload)
            elif opcode == 0x9:
                self._write(0xA, payload)
            elif opcode == 0x8:
                self._fail(f"closed: {payload!r}")
                return

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts sessions that end before their time."""
        self._fail("connection lost")

    def _take(self, payload: bytes) -> None:
        try:
            frame = pb.ConnectResponse.FromString(payload)
        except DecodeError:
            self._fail("undecodable frame")
            return
        kind = frame.WhichOneof("frame")
        if kind == "notify":
            self._take_notification(frame.notify.notification)
        elif kind == "confirmed":
            now = time.monotonic_ns() // 1_000
            for number in [one for one in self._unconfirmed if one <= frame.confirmed.frame_number]:
                self._tally.acks.append(now - self._unconfirmed.pop(number))
        elif kind == "replayed":
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == "ping":
            self._frame_number += 1
            self._send(pb.ConnectRequest(pong=pb.Pong(), frame_number=self._frame_number))

    def _take_notification(self, notification: notification_pb2.Notification) -> None:
        now = time.monotonic_ns() // 1_000
        if notification.notification_id in self._seen:
            self._tally.duplicates += 1
            return
        self._seen.add(notification.notification_id)
        intended = int(notification.content.body or 0)
        if intended:
            self._tally.receipts.append(now - intended)
            if self._order.by_category:
                self._tally.by_category.setdefault(notification.category, array.array("q")).extend(
                    (intended, now - intended)
                )
        self._frame_number += 1
        if intended:
            self._unconfirmed[self._frame_number] = intended
        mark = pb.ClientMark(
            kind=notification_pb2.MARK_KIND_RECEIVED,
            refs=[notification_pb2.NotificationRef(notification_id=notification.notification_id, revision=1)],
        )
        self._send(pb.ConnectRequest(mark=mark, frame_number=self._frame_number))

    def _send(self, request: pb.ConnectRequest) -> None:
        self._write(0x2, request.SerializeToString())

    def _write(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        head = bytes((0x80 | opcode, 0x80 | size)) if size < 126 else bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2)
        # A mask of zeros is a legal mask, and costs nothing.
        self.transport.write(head + b"\0\0\0\0" + payload)

    def _fail(self, why: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
        elif self.transport is not None and not self.transport.is_closing():
            self._tally.closed += 1
        if self.transport is not None:
            self.transport.close()


async def connect(order: Order, tally: Tally) -> list[Listener]:
    """Connects all sessions at the pace that was asked for."""
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(cafile=order.ca_file) if order.ca_file else None
    listeners: list[Listener] = []

    async def one(index: int, device_id: str, token: str) -> None:
        host, _, port = order.targets[index % len(order.targets)].rpartition(":")
        _, listener = await loop.create_connection(
            lambda: Listener(order, device_id, token, tally),
            host,
            int(port),
            ssl=context,
            server_hostname=order.server_name if context else None,
        )
        listeners.append(listener)
        async with asyncio.timeout(_HANDSHAKE_LIMIT):
            await listener.ready

    async with asyncio.TaskGroup() as group:
        began = loop.time()
        for index, (device_id, token) in enumerate(order.sessions):
            group.create_task(one(index, device_id, token))
            ahead = began + (index + 1) / order.pace - loop.time()
            if ahead > 0:
                await asyncio.sleep(ahead)
    return listeners


async def run() -> None:
    """Connects, says so, listens until the input ends, and prints what was seen."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    tally = Tally()
    listeners = await connect(order, tally)
    for listener in random.Random(1).sample(listeners, order.frozen):
        listener.transport.pause_reading()
    print('"ready"', flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    result = Result(
        received=len(tally.receipts),
        duplicates=tally.duplicates,
        receipts=tally.receipts.tolist(),
        acks=tally.acks.tolist(),
        closed=tally.closed,
        by_category={category: one.tolist() for category, one in tally.by_category.items()},
    )
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.flush()


def main() -> None:
    """Runs the process."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(run())


if __name__ == "__main__":
    main()

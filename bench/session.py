"""One listening session over all its connections, as `bench.listeners` holds thousands of them.

Speaks the binary subprotocol by hand, counts what it gets in its process's tally, acks, answers pings, and comes back
when its order says so. Must not wait for anything: one call of the event loop is all it gets.
"""

from __future__ import annotations

import array
import asyncio
import base64
import functools
import os
import random
import re
import ssl
import time
from collections import deque
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from heliograph.gateway.v1 import client_frames_pb2 as pb
from heliograph.type.v1 import notification_pb2
from mesh.backoff import full_jitter

_CONNECT_LIMIT = 90.0
# As the client library waits by default before it connects again.
_RETRY_BASE, _RETRY_CAP = 0.5, 15.0
_LARGEST_REFS = 500
# Sessions of one process that connect, or come back, at the same time. More of them could not follow their own
# handshakes, and would be too slow where as many clients of their own are not.
LARGEST_RETURN = 500
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *([0-9]+)", re.IGNORECASE)
_NOT_NOW = b"HTTP/1.1 503"
_SWITCHED = b"HTTP/1.1 101"


class Order(msgspec.Struct, frozen=True):
    """What the process is told.

    Attributes:
        targets: where to connect, in turn: "127.0.0.1:7420".
        server_name: for TLS; empty: plain.
        ca_file: the certificate authority; empty: plain.
        sessions: one (device id, token) each.
        frozen: so many sessions stop reading once they are connected.
        pace: connects a second.
        addresses: loopback addresses that the sessions come from in turn; 0: the system's choice.
        first: so many sessions connect at once, the others on command; all when left out.
        acks: notifications are acked.
        returns: sessions that are lost come back.
        elsewhere: where they come back, by any of these; where they were when left out.
        by_category: also keep intended time and latency of each receipt.
    """

    targets: list[str]
    server_name: str
    ca_file: str
    sessions: list[tuple[str, str]]
    frozen: int = 0
    pace: float = 500.0
    addresses: int = 0
    first: int | None = None
    acks: bool = True
    returns: bool = False
    elsewhere: list[str] = []
    by_category: bool = False


class Tally:
    """What all sessions of the process have seen."""

    def __init__(self) -> None:
        self.receipts = array.array("q")
        self.acks = array.array("q")
        self.returns = array.array("q")
        # Intended time and latency in turn.
        self.by_category: dict[str, array.array[int]] = {}
        self.received = 0
        self.duplicates = 0
        self.lost = 0
        self.lost_again = 0
        self.tries = 0
        self.turned_away = 0
        self._returning = 0
        self._waiting: deque[Session] = deque()

    def return_soon(self, session: Session) -> None:
        """Has a session come back as soon as there is room."""
        self._waiting.append(session)
        self._next()

    def returned(self) -> None:
        """One that was coming back has come, or failed."""
        self._returning -= 1
        self._next()

    def _next(self) -> None:
        while self._waiting and self._returning < LARGEST_RETURN:
            self._returning += 1
            self._waiting.popleft().try_again()


def now_micros() -> int:
    """Returns the clock that every process of a machine shares."""
    return time.monotonic_ns() // 1_000


@functools.cache
def _tls(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


class Session(asyncio.Protocol):
    """One session: handshake, hello, then frames.

    Attributes:
        transport: of the present connection.
        caught_up: the replay is over.
    """

    __slots__ = (
        "_attempt",
        "_away",
        "_buffer",
        "_came_back",
        "_cursor",
        "_device_id",
        "_frame_number",
        "_index",
        "_loop",
        "_named",
        "_open",
        "_order",
        "_ready",
        "_returning",
        "_seen",
        "_tally",
        "_token",
        "_turned_away",
        "_unconfirmed",
        "caught_up",
        "transport",
    )

    def __init__(
        self,
        order: Order,
        index: int,
        device_id: str,
        token: str,
        tally: Tally,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._order = order
        self._index = index
        self._device_id = device_id
        self._token = token
        self._tally = tally
        self._loop = loop
        self._buffer = bytearray()
        self._open = False
        self._frame_number = 0
        # frame number of an ack -> intended time of what it acks
        self._unconfirmed: dict[int, int] = {}
        self._seen: set[str] = set()
        self._cursor = ""
        self._attempt = 0
        self._away = self._came_back = False
        self._turned_away = False
        self._returning = False
        # Seconds that the server named.
        self._named = 0.0
        self._ready: asyncio.Future[None] | None = None
        self.caught_up = False
        # Any: the event loops' transports have no common type for what is used here.
        self.transport: Any = None

    async def connect(self) -> None:
        """Connects for the first time; returns when the replay is over."""
        self._ready = self._loop.create_future()
        try:
            async with asyncio.timeout(_CONNECT_LIMIT):
                await self._dial([self._order.targets[self._index % len(self._order.targets)]])
                await self._ready
        finally:
            self._ready = None

    # ------------------------------------------------------------ connections

    async def _dial(self, targets: list[str]) -> None:
        """Connects to the first target that answers, as what balances connections would."""
        order = self._order
        own = (f"127.1.0.{1 + self._index % order.addresses}", 0) if order.addresses else None
        for target in targets:
            host, _, port = target.rpartition(":")
            try:
                await self._loop.create_connection(
                    lambda: self,
                    host,
                    int(port),
                    ssl=_tls(order.ca_file) if order.ca_file else None,
                    server_hostname=order.server_name if order.ca_file else None,
                    local_addr=own,
                )
            except OSError as error:
                failure = error
            else:
                return
        if self._ready is not None:
            raise failure
        self._come_back()

    def _come_back(self) -> None:
        """Has another connection made, after the wait that the client library would choose."""
        jitter = full_jitter(self._attempt, base=_RETRY_BASE, cap=_RETRY_CAP, random=random.random())
        self._loop.call_later(self._named * random.random() + jitter, self._tally.return_soon, self)
        self._attempt += 1
        self._named = 0.0
        self._arrive()

    def _arrive(self) -> None:
        """The way back has ended, for better or worse."""
        if self._returning:
            self._returning = False
            self._tally.returned()

    def try_again(self) -> None:
        """Connects anew; called by the tally when it is this session's turn."""
        self._returning = True
        self._tally.tries += 1
        known = self._order.targets if self._ready is not None else self._order.elsewhere or self._order.targets
        targets = random.sample(known, len(known))
        self._loop.create_task(self._dial(targets))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the opening handshake."""
        self.transport = transport
        self._buffer.clear()
        self._open = self._turned_away = False
        key = base64.b64encode(os.urandom(16)).decode("ascii")
        host = self._order.server_name or "localhost"
        self.transport.write(
            f"GET /v1/ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: heliograph.v1.proto\r\n\r\n".encode("ascii")
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts sessions that end before their time, and comes back where that is wanted."""
        if self.caught_up:
            self.caught_up, self._away = False, True
            self._tally.lost += 1
            self._tally.lost_again += self._came_back
        if self._order.returns or (self._turned_away and self._ready is not None):
            self._come_back()
        elif self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConnectionError(f"connection lost: {exc}"))

    def _give_up(self, why: str) -> None:
        if not self._turned_away and self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConnectionError(why))
        self.transport.close()

    # ------------------------------------------------------------ frames

    def data_received(self, data: bytes) -> None:
        """Takes the handshake's answer, then frames; control frames are answered."""
        buffer = self._buffer
        buffer += data
        if not self._open and not self._take_answer():
            return
        position, end = 0, len(buffer)
        while end - position >= 2:
            size, start = buffer[position + 1] & 0x7F, position + 2
            if size == 126:
                size, start = int.from_bytes(buffer[start : start + 2], "big"), start + 2
            elif size == 127:
                size, start = int.from_bytes(buffer[start : start + 8], "big"), start + 8
            if end < start + size:
                break
            opcode = buffer[position] & 0x0F
            payload = bytes(buffer[start : start + size])
            position = start + size
            if opcode == 0x2:
                self._take(payload)
            elif opcode == 0x9:
                self._write(0xA, payload)
            elif opcode == 0x8:
                self._give_up(f"closed: {payload!r}")
                return
        del buffer[:position]

    def _take_answer(self) -> bool:
        """Takes the handshake's answer; says hello and returns True when it is whole and good."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(buffer[: end + 2])
        if not head.startswith(_SWITCHED):
            if head.startswith(_NOT_NOW):
                found = _RETRY_AFTER.search(head)
                self._send_away(float(found[1]) if found else 0.0)
            self._give_up(f"handshake refused: {head[:200]!r}")
            return False
        del buffer[: end + 4]
        self._open = True
        received = [notification_pb2.NotificationRef(notification_id=one, revision=1) for one in self._newest()]
        hello = pb.Hello(token=self._token, device_id=self._device_id, cursor=self._cursor, received_refs=received)
        self._unconfirmed.clear()
        self._frame_number = 1
        self._send(pb.ConnectRequest(hello=hello, frame_number=1))
        return True

    def _newest(self) -> list[str]:
        return list(self._seen)[:_LARGEST_REFS] if self._cursor else []

    def _send_away(self, delay: float) -> None:
        """The server named a delay: it wants no session now."""
        self._turned_away, self._named = True, delay
        self._tally.turned_away += 1

    def _take(self, payload: bytes) -> None:
        try:
            frame = pb.ConnectResponse.FromString(payload)
        except DecodeError:
            self._give_up("undecodable frame")
            return
        kind = frame.WhichOneof("frame")
        if kind == "notify":
            self._take_notification(frame.notify.notification)
        elif kind == "confirmed":
            now = now_micros()
            for number in [one for one in self._unconfirmed if one <= frame.confirmed.frame_number]:
                self._tally.acks.append(now - self._unconfirmed.pop(number))
        elif kind == "replayed":
            self._take_checkpoint(frame.replayed.cursor)
        elif kind == "ping":
            self._frame_number += 1
            self._send(pb.ConnectRequest(pong=pb.Pong(), frame_number=self._frame_number))
        elif kind == "go_away":
            self._take_go_away(frame.go_away.reconnect_delay.ToMilliseconds() / 1_000)

    def _take_go_away(self, delay: float) -> None:
        """A session that is live ends with a delay; one that has not begun is not wanted."""
        if self.caught_up:
            self._named = delay
        else:
            self._send_away(delay)

    def _take_checkpoint(self, cursor: str) -> None:
        self._cursor, self._attempt = cursor, 0
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
        elif self._away:
            self._away, self._came_back = False, True
            self._tally.returns.append(now_micros())
        self.caught_up = True
        self._arrive()

    def _take_notification(self, notification: notification_pb2.Notification) -> None:
        now = now_micros()
        if notification.notification_id in self._seen:
            self._tally.duplicates += 1
            return
        self._seen.add(notification.notification_id)
        self._tally.received += 1
        intended = int(notification.content.body or 0)
        if intended:
            self._tally.receipts.append(now - intended)
            if self._order.by_category:
                self._tally.by_category.setdefault(notification.category, array.array("q")).extend(
                    (intended, now - intended)
                )
        if not self._order.acks:
            return
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

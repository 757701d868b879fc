"""One WebSocket connection with a transport in memory, a manual clock and a host that remembers; no assertions."""

from __future__ import annotations

import asyncio
import struct

from mesh.clock import ManualClock
from svc_gateway import wire
from svc_gateway.host import ClientConnection
from svc_gateway.websocket import Connection, Listener, Options

REQUEST = (
    b"GET /v1/ws HTTP/1.1\r\nhost: g\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: heliograph.v1.proto\r\n\r\n"
)


class Recorder:
    """A host that remembers what it was told."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.messages: list[tuple[bytes, bool]] = []
        self.turns: list[str] = []
        self.codes: list[int] = []

    def opened(self, connection: ClientConnection) -> None:
        assert isinstance(connection, Connection)
        self.connections.append(connection)

    def received(self, connection: ClientConnection, payload: bytes | bytearray, text: bool) -> None:
        if payload == b"fail":
            raise LookupError("the host's own failure")
        if payload == b"close":
            connection.close(4001, "draining")
        self.messages.append((bytes(payload), text))

    def behind(self, connection: ClientConnection) -> None:
        self.turns.append("behind")

    def writable(self, connection: ClientConnection) -> None:
        self.turns.append("writable")

    def closed(self, connection: ClientConnection, code: int) -> None:
        self.codes.append(code)


class Memory(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.ended = False
        self.gone = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.sent += data

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.gone = True

    def abort(self) -> None:
        self.gone = True

    def is_closing(self) -> bool:
        return self.gone

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 65_536


class Bench:
    """One connection on a transport in memory, its host and its clock."""

    def __init__(self, *, opened: bool = True) -> None:
        self.clock = ManualClock()
        self.host = Recorder()
        self.listener = Listener(host=self.host, options=Options(), clock=self.clock)
        self.transport = Memory()
        self.connection = Connection(self.listener)
        self.connection.connection_made(self.transport)
        if opened:
            self.connection.data_received(REQUEST)
            assert self.transport.sent.startswith(b"HTTP/1.1 101 ")
            self.transport.sent.clear()

    def feed(self, *pieces: bytes) -> Bench:
        """Lets bytes arrive, each piece by itself."""
        for piece in pieces:
            self.connection.data_received(piece)
        return self

    @property
    def close_sent(self) -> int | None:
        """The code of the closing frame at the end of what was sent."""
        at = self.transport.sent.rfind(b"\x88")
        return None if at < 0 else int.from_bytes(self.transport.sent[at + 2 : at + 4], "big")


def masked(opcode: int, payload: bytes = b"", *, final: bool = True, key: bytes = b"\x01\xa2\x73\x04") -> bytes:
    """Returns a client's frame."""
    size = len(payload)
    if size < 126:
        length = bytes((0x80 | size,))
    else:
        length = struct.pack("!BH", 0xFE, size) if size < 65_536 else struct.pack("!BQ", 0xFF, size)
    return bytes((opcode | (0x80 if final else 0),)) + length + key + wire.unmask(payload, key)


def closing(code: int) -> bytes:
    """Returns a client's closing frame."""
    return masked(8, code.to_bytes(2, "big"))

"""A socket without manners: it sends any bytes to where WebSockets are taken, and reads frames as they are.

What a WebSocket library would never send is sent here. Must not judge what comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import msgspec
from google.protobuf import json_format

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse, Hello
from svc_gateway import wire
from tests.support.connections import masked

JSON, PROTO = "heliograph.v1.json", "heliograph.v1.proto"
# Generous: two cores may be busy with other things.
_LIMIT_S = 10.0


class Reply(msgspec.Struct, frozen=True):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class End(msgspec.Struct, frozen=True):
    """How a connection ended.

    Attributes:
        code: of the closing frame; 1006 when there was none.
        reason: its text.
        refused: the reasons of the frames that were refused before.
    """

    code: int
    reason: str = ""
    refused: tuple[str, ...] = ()


class RawSocket:
    """One connection; `end` is whoever's last word."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self, head: bytes) -> Reply:
        """Sends the bytes of a request and returns the response."""
        await self.send(head)
        async with asyncio.timeout(_LIMIT_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(int(lines[0].split()[1]), headers, body)

    async def send(self, data: bytes) -> None:
        """Sends bytes as they are; a peer that is gone is no failure."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(_LIMIT_S):
                await self._writer.drain()
        except ConnectionError:
            pass

    async def say(self, text: str | bytes) -> None:
        """Sends a message as a client does: text, or bytes in a binary frame."""
        payload = text.encode() if isinstance(text, str) else text
        await self.send(masked(wire.TEXT if isinstance(text, str) else wire.BINARY, payload))

    async def next(self) -> ConnectResponse | End:
        """Returns the next thing that comes."""
        async with asyncio.timeout(_LIMIT_S):
            try:
                opcode, payload = await self._frame()
            except (asyncio.IncompleteReadError, ConnectionError):
                return End(wire.ABNORMAL)
        if opcode == wire.CLOSE:
            return End(int.from_bytes(payload[:2], "big") if payload else wire.NO_CODE, payload[2:].decode())
        if opcode == wire.TEXT:
            return json_format.Parse(payload, ConnectResponse())
        return ConnectResponse.FromString(payload) if opcode == wire.BINARY else await self.next()

    async def until(self, kind: str) -> ConnectResponse:
        """Returns the next frame of a kind; others are passed over.

        Raises:
            AssertionError: the connection ended before.
        """
        while True:
            came = await self.next()
            assert isinstance(came, ConnectResponse), came
            if came.WhichOneof("frame") == kind:
                return came

    async def kinds_until(self, kind: str) -> list[str]:
        """Returns the kinds of what comes before the next frame of a kind.

        Raises:
            AssertionError: the connection ended before.
        """
        kinds: list[str] = []
        while True:
            came = await self.next()
            assert isinstance(came, ConnectResponse), came
            found = came.WhichOneof("frame") or ""
            if found == kind:
                return kinds
            kinds.append(found)

    async def end(self) -> End:
        """Reads to the end and returns it, with what was refused on the way."""
        refused: list[str] = []
        while True:
            came = await self.next()
            if isinstance(came, End):
                return End(came.code, came.reason, tuple(refused))
            if came.HasField("refused"):
                refused.append(came.refused.refusal.reason)

    async def is_gone(self) -> None:
        """Waits until the peer has ended the connection, whatever it says before."""
        async with asyncio.timeout(_LIMIT_S):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(4_096):
                    pass

    async def _frame(self) -> tuple[int, bytes]:
        first, length = await self._reader.readexactly(2)
        if length > wire.CONTROL_LIMIT:
            length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8), "big")
        return first & 0x0F, await self._reader.readexactly(length)


def opening(path: str = "/v1/ws", *, subprotocol: str = JSON, **headers: str) -> bytes:
    """Returns a request that opens a WebSocket; a header is replaced by its name, and left out when empty."""
    fields = {
        "host": "localhost",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-protocol": subprotocol,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def hello(token: str, device_id: str = "stranger", *, cursor: str = "", frame_number: int = 1) -> str:
    """Returns a hello as JSON."""
    said = Hello(token=token, device_id=device_id, cursor=cursor)
    return json_format.MessageToJson(ConnectRequest(hello=said, frame_number=frame_number))


@asynccontextmanager
async def plain(url: str, context: ssl.SSLContext | None) -> AsyncIterator[RawSocket]:
    """Connects; no request is sent yet."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port, ssl=context, server_hostname="localhost" if context else None
    )
    try:
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def opened(url: str, context: ssl.SSLContext | None, *, subprotocol: str = JSON) -> AsyncIterator[RawSocket]:
    """Connects and opens a WebSocket; hello is not said yet."""
    async with plain(url, context) as raw:
        reply = await raw.request(opening(subprotocol=subprotocol))
        assert reply.status == 101, reply
        yield raw

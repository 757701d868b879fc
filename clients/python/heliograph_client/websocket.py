"""Opening a WebSocket to a gateway: address, TLS, subprotocol, and what a refused opening means.

Must not know frames. The protocol itself is the library's.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from google.protobuf import json_format
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
    NegotiationError,
    WebSocketException,
)
from websockets.http11 import Response
from websockets.typing import Origin, Subprotocol

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from heliograph.type.v1.refusal_pb2 import Refusal
from heliograph_client.closing import Opening, opening_failure
from heliograph_client.frames import SUBPROTOCOLS, Encoding, decode, encode
from heliograph_client.wires import BROKEN, NotOpened, WireClosed
from mesh.errors import FailedPrecondition, InvalidArgument, Unauthenticated, Unavailable

PATH = "/v1/ws"
# Servers send no frame larger than this; a larger one is somebody else's.
_MAX_FRAME_BYTES = 256 * 1024
# Frames that the library reads ahead; behind them the socket is full, and the server notices.
_MAX_QUEUE = 64
_OPEN_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway listens.

    Attributes:
        uri: `ws://` or `wss://`, with the path.
        unix_path: a Unix socket to connect to instead of the URI's host; None: TCP.
        tls_context: certificates for `wss://`; None: those of the system.
        server_name: the name to ask for and expect in the certificate; None: that of the URI.
        headers: additional headers of the opening request.
        origin: the Origin header, as a browser would send it; None: no such header.
    """

    uri: str
    unix_path: str | None = None
    tls_context: ssl.SSLContext | None = None
    server_name: str | None = None
    headers: Mapping[str, str] = {}
    origin: str | None = None


class WebSocketWire:
    """An open WebSocket; implements `wires.Wire`."""

    def __init__(self, connection: ClientConnection, encoding: Encoding) -> None:
        self._connection = connection
        self._encoding: Encoding = encoding

    async def send(self, frame: ConnectRequest) -> None:
        """See `wires.Wire`."""
        try:
            await self._connection.send(encode(frame, self._encoding))
        except ConnectionClosed:
            raise WireClosed from None

    async def receive(self) -> ConnectResponse:
        """See `wires.Wire`."""
        try:
            message = await self._connection.recv()
        except ConnectionClosed:
            raise WireClosed from None
        return decode(message, self._encoding)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """See `wires.Wire`."""
        await self._connection.close(code, reason)

    def abort(self) -> None:
        """See `wires.Wire`."""
        self._connection.transport.abort()

    async def dispose(self) -> None:
        """See `wires.Wire`."""
        self._connection.transport.abort()

    def end(self) -> tuple[int, str]:
        """See `wires.Wire`."""
        code = self._connection.close_code
        return BROKEN if code is None else code, self._connection.close_reason or ""


def parse_url(url: str) -> tuple[str, str | None]:
    """Returns the URI and the Unix socket's path of `ws://…`, `wss://…` or `unix:PATH`; a missing path is filled in.

    Raises:
        InvalidArgument: it is none of these.
    """
    if url.startswith("unix:"):
        return f"ws://localhost{PATH}", url.removeprefix("unix:").removeprefix("//")
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.netloc:
        text = f"{url} is no address of a gateway: it is ws://HOST:PORT, wss://HOST:PORT or unix:PATH"
        raise InvalidArgument(text, reason="FIELD_INVALID", metadata={"url": url})
    return urlunsplit(parts._replace(path=PATH if parts.path in ("", "/") else parts.path)), None


async def open_websocket(address: Address, encoding: Encoding, client_name: str) -> WebSocketWire | NotOpened:
    """Connects and does the opening handshake."""
    try:
        connection = await _connecting(address, encoding, client_name)
    except InvalidStatus as error:
        failure, final = opening_failure(_opening(error.response))
        return NotOpened(failure, final)
    except (NegotiationError, InvalidURI) as error:
        return NotOpened(_no_version(str(error)), final=True)
    except ssl.SSLCertVerificationError as error:
        text = f"the server's certificate does not verify: {error.verify_message}"
        return NotOpened(Unauthenticated(text, reason=""), final=True)
    except (OSError, TimeoutError, InvalidHandshake, WebSocketException) as error:
        text = f"no connection to {address.unix_path or address.uri}: {str(error) or type(error).__name__}"
        return NotOpened(Unavailable(text, reason=""), final=False)
    if connection.subprotocol is None:
        await connection.close()
        return NotOpened(_no_version("the server chose no subprotocol"), final=True)
    return WebSocketWire(connection, encoding)


def _connecting(address: Address, encoding: Encoding, client_name: str) -> connect:
    # Any: the library passes further keywords on to the event loop, unlisted.
    options: dict[str, Any] = {}
    if address.uri.startswith("wss:"):
        options["ssl"] = address.tls_context or ssl.create_default_context()
        if address.server_name is not None:
            options["server_hostname"] = address.server_name
    if address.unix_path is not None:
        options |= {"unix": True, "path": address.unix_path}
    return connect(
        address.uri,
        subprotocols=[Subprotocol(SUBPROTOCOLS[encoding])],
        additional_headers=dict(address.headers),
        origin=None if address.origin is None else Origin(address.origin),
        user_agent_header=client_name or None,
        # The contract has its own signs of life, and small frames do not pay for compression.
        compression=None,
        ping_interval=None,
        max_size=_MAX_FRAME_BYTES,
        max_queue=_MAX_QUEUE,
        open_timeout=_OPEN_TIMEOUT_S,
        close_timeout=_CLOSE_TIMEOUT_S,
        proxy=None,
        **options,
    )


def _opening(response: Response) -> Opening:
    delay = response.headers.get("Retry-After", "")
    refusal = Refusal()
    try:
        json_format.Parse(bytes(response.body) or b"{}", refusal, ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError):
        # A proxy's own page says nothing that a program could use.
        refusal.Clear()
    return Opening(
        code=response.status_code,
        reason=refusal.reason,
        text=refusal.message or response.reason_phrase,
        retry_delay=float(delay) if delay.isdecimal() else None,
    )


def _no_version(cause: str) -> FailedPrecondition:
    return FailedPrecondition(f"client and server have no common version: {cause}", reason="VERSION_UNSUPPORTED")

"""The two ways to a session: which address is meant, and how it is opened.

Must not know frames.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import msgspec

from heliograph_client.frames import Encoding
from heliograph_client.streams import StreamAddress, open_stream
from heliograph_client.tls import Tls
from heliograph_client.websocket import Address, open_websocket, parse_url
from heliograph_client.wires import NotOpened, Transport, Wire


def address_of(
    url: str,
    transport: Transport,
    *,
    tls: Tls | None,
    tls_context: ssl.SSLContext | None,
    server_name: str | None,
    headers: Mapping[str, str],
    origin: str | None,
) -> Address | StreamAddress:
    """Returns the address that a subscriber's arguments mean; see `Subscriber`.

    Raises:
        InvalidArgument: a URL is malformed, or a certificate's file cannot be read.
    """
    if transport == "grpc":
        if tls is not None and server_name is not None:
            tls = msgspec.structs.replace(tls, server_name=server_name)
        return StreamAddress(target=url, tls=tls, headers=headers)
    uri, unix_path = parse_url(url)
    if tls is not None:
        tls_context, server_name = tls_context or tls.context(), server_name or tls.server_name
    return Address(
        uri=uri,
        unix_path=unix_path,
        tls_context=tls_context,
        server_name=server_name,
        headers=headers,
        origin=origin,
    )


async def open_wire(
    address: Address | StreamAddress, token: str, encoding: Encoding, client_name: str
) -> Wire | NotOpened:
    """Connects.

    Args:
        address: where, and by which transport.
        token: goes into a call's head where no edge speaks for the caller.
        encoding: of the frames over WebSocket.
        client_name: for the server's logs.
    """
    if isinstance(address, StreamAddress):
        return await open_stream(address, token, client_name)
    return await open_websocket(address, encoding, client_name)

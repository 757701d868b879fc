"""The opening of a WebSocket: which request becomes a session, and what the others are told.

Pure: bytes in, bytes out. Must not keep anything of a request: the library's protocol object lives for one call, since
kept it would cost three times the session. Step 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from websockets.exceptions import InvalidHeader, NegotiationError
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

JSON_SUBPROTOCOL = "heliograph.v1.json"
PROTO_SUBPROTOCOL = "heliograph.v1.proto"

_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED, _UNAVAILABLE = 3, 5, 7, 14
_PEER_CHARACTERS = 64
_VERSION_HEADER, _VERSION = "Sec-WebSocket-Version", "13"
# What a refusal of the library says beside its text.
_KEPT_HEADERS = ("Allow", "Upgrade")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a listener accepts.

    Attributes:
        path: the only path; a query is ignored.
        subprotocols: known ones, the preferred first.
        any_subprotocol: take clients without a subprotocol, for conformance tests.
        allowed_origins: values of the Origin header, compared as they are; a request without it comes from no browser.
        head_limit: bytes of a request with its headers.
        max_message: bytes of one message.
        max_fragments: frames of one message.
        control_rate: pings and pongs a client may send in one second.
        high_water: bytes in a transport from which a session is behind.
        open_timeout: seconds for the opening handshake.
        close_timeout: seconds for the closing handshake.
        backlog: connections that may wait to be accepted.
    """

    path: str = "/v1/ws"
    subprotocols: tuple[str, ...] = (PROTO_SUBPROTOCOL, JSON_SUBPROTOCOL)
    any_subprotocol: bool = False
    allowed_origins: frozenset[str] = frozenset()
    head_limit: int = 16 * 1024
    max_message: int = 64 * 1024
    max_fragments: int = 256
    control_rate: int = 50
    high_water: int = 64 * 1024
    open_timeout: float = 5.0
    close_timeout: float = 2.0
    backlog: int = 4096


class Answer(msgspec.Struct, frozen=True):
    """What a request gets.

    Attributes:
        response: the bytes to send.
        accepted: the connection is a WebSocket from here on.
        subprotocol: the chosen one, empty where none is needed.
        forwarded: the client's address as the last proxy saw it, empty without one; for logs only.
    """

    response: bytes
    accepted: bool = False
    subprotocol: str = ""
    forwarded: str = ""


def answer(head: bytes, options: Options) -> Answer:
    """Returns the answer to a request line with its headers, the empty line included."""
    protocol = ServerProtocol(
        subprotocols=None if options.any_subprotocol else [Subprotocol(name) for name in options.subprotocols]
    )
    protocol.receive_data(head)
    request = next(iter(protocol.events_received()), None)
    if not isinstance(request, Request):
        return refusal(400, "FIELD_INVALID", "not an HTTP/1.1 request that opens a WebSocket")
    if request.path.partition("?")[0] != options.path:
        return refusal(404, "FIELD_INVALID", f"WebSockets are served at {options.path}")
    origins = request.headers.get_all("Origin")
    if origins and (len(origins) > 1 or origins[0] == "null" or origins[0] not in options.allowed_origins):
        return refusal(403, "ORIGIN_REFUSED", "pages of this origin may not connect")
    response = protocol.accept(request)
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        if isinstance(protocol.handshake_exc, NegotiationError):
            known = ", ".join(options.subprotocols)
            return refusal(400, "VERSION_UNSUPPORTED", f"offer one of these subprotocols: {known}", kept)
        if isinstance(protocol.handshake_exc, InvalidHeader) and protocol.handshake_exc.name == _VERSION_HEADER:
            kept[_VERSION_HEADER] = _VERSION
            return refusal(426, "VERSION_UNSUPPORTED", f"WebSocket version {_VERSION} is spoken here", kept)
        return refusal(response.status_code, "FIELD_INVALID", str(protocol.handshake_exc), kept)
    forwarded = request.headers.get_all("X-Forwarded-For")
    return Answer(
        response=response.serialize(),
        accepted=True,
        subprotocol=protocol.subprotocol or "",
        forwarded=last_hop(forwarded[-1]) if forwarded else "",
    )


def last_hop(forwarded: str) -> str:
    """Returns the last address of an X-Forwarded-For header: what the nearest proxy saw."""
    return forwarded.rpartition(",")[2].strip()[:_PEER_CHARACTERS]


def not_now(delay: float) -> Answer:
    """Returns the refusal of a request that may come again in so many seconds."""
    text = f"too many are connecting; come back in {delay:.1f} s"
    # As the body says it: else header and body differ by a second around a whole one.
    delay = round(delay, 3)
    return refusal(503, "OVERLOADED", text, {"Retry-After": str(math.ceil(delay))}, delay)


def refusal(
    status: int, reason: str, message: str, headers: dict[str, str] | None = None, delay: float = 0.0
) -> Answer:
    """Returns a refusal: an HTTP response whose body is a `Refusal` in JSON, after which the connection ends."""
    code = {403: _PERMISSION_DENIED, 404: _NOT_FOUND, 503: _UNAVAILABLE}.get(status, _INVALID_ARGUMENT)
    said: dict[str, int | str] = {"code": code, "reason": reason, "message": message}
    if delay:
        said["retryDelay"] = f"{delay:.3f}s"
    body = msgspec.json.encode(said)
    fields = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
        **(headers or {}),
    }
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return Answer(response="\r\n".join([*lines, "", ""]).encode("latin-1") + body)

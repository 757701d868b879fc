"""Why a session ended and what follows: connect again, or stop with a failure. Pure.

Close codes below 4500 and those of the protocol itself mean "connect again", from 4500 on "do not". Must not wait.
"""

from __future__ import annotations

import msgspec

from mesh.errors import (
    Aborted,
    FailedPrecondition,
    Failure,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

TOKEN_EXPIRED = 4003
_BROKEN = 1006
_FIRST_FINAL = 4500
_LAST_FINAL = 4999

_FINAL: dict[int, tuple[type[Failure], str, str]] = {
    4500: (Aborted, "SUPERSEDED", "the same device connected elsewhere"),
    4501: (Unauthenticated, "TOKEN_INVALID", "the token does not verify"),
    4502: (PermissionDenied, "ORIGIN_REFUSED", "the origin is not allowed"),
    4503: (InvalidArgument, "FRAME_INVALID", "a frame of this client broke the protocol"),
    4504: (FailedPrecondition, "VERSION_UNSUPPORTED", "client and server have no common version"),
    4505: (Unauthenticated, "TOKEN_INVALID", "the token was revoked"),
}
_REFUSED_OPENINGS: dict[int, type[Failure]] = {
    400: InvalidArgument,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    405: InvalidArgument,
    426: FailedPrecondition,
}
_TOO_MANY_REQUESTS = 429


def is_final(code: int) -> bool:
    """Tells whether a close code forbids connecting again."""
    return _FIRST_FINAL <= code <= _LAST_FINAL


def final_failure(code: int, text: str, refused: Failure | None) -> Failure:
    """Returns what a final close code means.

    Args:
        code: from 4500 on.
        text: the closing frame's own words.
        refused: the refusal that was sent before it; it says more than the code.
    """
    kind, reason, words = _FINAL.get(code, (FailedPrecondition, text, f"the server ended the session: {code} {text}"))
    if refused is not None and code not in (4500, 4505):
        return refused
    return kind(words, reason=reason, metadata={"close_code": str(code)})


class Opening(msgspec.Struct, frozen=True):
    """An opening handshake that was answered with something else than a WebSocket.

    Attributes:
        code: HTTP status code.
        reason: from the body's `Refusal`; may be empty.
        text: from the body's `Refusal`; may be empty.
        retry_delay: what the server names, seconds.
    """

    code: int
    reason: str = ""
    text: str = ""
    retry_delay: float | None = None


def opening_failure(opening: Opening) -> tuple[Failure, bool]:
    """Returns the failure of a refused opening and whether it is final."""
    text = f"the server refused the connection with {opening.code}: {opening.text or 'no reason given'}"
    metadata = {"http_status": str(opening.code)}
    final = _REFUSED_OPENINGS.get(opening.code)
    if final is not None:
        return final(text, reason=opening.reason, metadata=metadata), True
    kind = ResourceExhausted if opening.code == _TOO_MANY_REQUESTS else Unavailable
    return kind(text, reason=opening.reason, metadata=metadata, retry_delay=opening.retry_delay), False


_CODES: dict[type[Failure], int] = {
    Aborted: 4500,
    Unauthenticated: 4501,
    PermissionDenied: 4502,
    InvalidArgument: 4503,
    NotFound: 4504,
    FailedPrecondition: 4504,
    Unimplemented: 4504,
}


def is_final_status(failure: Failure) -> bool:
    """Tells whether the status of a stream forbids to connect again; a token that has expired may be replaced."""
    return type(failure) in _CODES and failure.reason != "TOKEN_EXPIRED"


def stream_end(failure: Failure) -> tuple[int, str]:
    """Returns the close code that says the same as a stream's status, and its reason or words.

    A gateway names the code; what is between it and this client knows none.
    """
    named = failure.metadata.get("close_code", "")
    code = int(named) if named.isdecimal() else _CODES.get(type(failure), _BROKEN)
    return code, failure.reason or failure.message

"""WebSocket frames as bytes: how one is made, unmasked, and what a closing frame may say.

Pure. Must not know connections or what a payload means. Step 7 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import codecs

CONTINUATION = 0x0
TEXT = 0x1
BINARY = 0x2
CLOSE = 0x8
PING = 0x9
PONG = 0xA

NORMAL = 1000
PROTOCOL_ERROR = 1002
NO_CODE = 1005
ABNORMAL = 1006
INVALID_PAYLOAD = 1007
POLICY_VIOLATION = 1008
TOO_BIG = 1009
INTERNAL_ERROR = 1011

# The most a control frame may carry, and with the code's two bytes off, a closing reason.
CONTROL_LIMIT = 125
REASON_LIMIT = CONTROL_LIMIT - 2

_FINAL = 0x80
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")
# Codes below 3000 that a peer may send; the others are reserved or stand for "no code was sent".
_REGISTERED = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})
_FIRST_PRIVATE, _AFTER_PRIVATE = 3000, 5000


class ProtocolError(Exception):
    """The peer broke the protocol; the connection ends with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


def frame(opcode: int, payload: bytes) -> bytes:
    """Returns one final, unmasked frame, as a server sends it."""
    size = len(payload)
    if size < 126:
        return bytes((_FINAL | opcode, size)) + payload
    if size < 65_536:
        return bytes((_FINAL | opcode, 126, size >> 8, size & 0xFF)) + payload
    return bytes((_FINAL | opcode, 127)) + size.to_bytes(8, "big") + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """Returns a closing frame; a longer reason than fits is cut between characters, and NO_CODE sends neither."""
    if code == NO_CODE:
        return frame(CLOSE, b"")
    text = reason.encode("utf-8", "replace")[:REASON_LIMIT].decode("utf-8", "ignore").encode()
    return frame(CLOSE, code.to_bytes(2, "big") + text)


def unmask(data: bytes | bytearray, key: bytes | bytearray) -> bytes:
    """Returns the data with the key of four bytes applied; the key's first byte belongs to the data's first."""
    size = len(data)
    # Two numbers as long as the data: one operation on all of it, whatever its length.
    stream = (bytes(key) * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")).to_bytes(size, "little")


def close_code(payload: bytes) -> int:
    """Returns the code in a closing frame's payload, NO_CODE when it has none.

    Raises:
        ProtocolError: half a code, one that must not be sent, or a reason that is not text.
    """
    if not payload:
        return NO_CODE
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not (code in _REGISTERED or _FIRST_PRIVATE <= code < _AFTER_PRIVATE):
        raise ProtocolError(PROTOCOL_ERROR, "a closing code that must not be sent")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise ProtocolError(INVALID_PAYLOAD, "a closing reason that is not UTF-8") from None
    return code


class Inflow:
    """One data message while it arrives: in fragments, or in a frame that came in pieces."""

    __slots__ = ("_decoder", "_final", "_key", "_left", "buffer", "fragments", "text")

    def __init__(self, text: bool) -> None:
        self.text = text
        self.buffer = bytearray()
        self.fragments = 0
        self._decoder = _Utf8Decoder() if text else None
        self._final = False
        self._key = b""
        self._left = 0

    @property
    def in_frame(self) -> bool:
        """Whether the next bytes belong to a frame that has begun, so that no header may follow."""
        return self._left > 0

    def begin(self, length: int, final: bool, key: bytes) -> None:
        """Starts the next fragment."""
        self.fragments += 1
        self._left, self._final, self._key = length, final, key

    def absorb(self, data: bytes, position: int) -> tuple[int, bool]:
        """Takes what the fragment can use.

        Returns:
            Where the rest begins, and whether the message is complete.

        Raises:
            ProtocolError: the text can no longer become valid UTF-8; said at the first byte that makes it so.
        """
        piece = unmask(data[position : position + self._left], self._key)
        self._left -= len(piece)
        self.buffer += piece
        turn = len(piece) % 4
        self._key = self._key[turn:] + self._key[:turn]
        complete = self._final and not self._left
        if self._decoder is not None:
            try:
                self._decoder.decode(piece, complete)
            except UnicodeDecodeError:
                raise not_text() from None
        return position + len(piece), complete


def not_text() -> ProtocolError:
    """A text message that is not UTF-8."""
    return ProtocolError(INVALID_PAYLOAD, "text that is not UTF-8")

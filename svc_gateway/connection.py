"""One WebSocket: the opening, messages in, frames out, the closing handshake.

A connection has no coroutine, no timer and no queue, and holds no bytes while nothing is under way: tens of thousands
are idle in one process. Must not know what a message means. Steps 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from svc_gateway import handshake, wire
from svc_gateway.handshake import PROTO_SUBPROTOCOL
from svc_gateway.host import Form

if TYPE_CHECKING:
    from svc_gateway.websocket import Listener

_OPENING, _OPEN, _CLOSING, _ENDED = 0, 1, 2, 3
_HEAD_END = b"\r\n\r\n"


class Connection(asyncio.Protocol):
    """One WebSocket from accept to the end.

    Attributes:
        session: whatever the host keeps with it.
        form: in which form frames are written, by the subprotocol.
    """

    __slots__ = (
        "_code",
        "_control_count",
        "_control_second",
        "_forwarded",
        "_inflow",
        "_listener",
        "_partial",
        "_paused",
        "_state",
        "_transport",
        "form",
        "session",
    )

    # Only hello says who is there.
    recipient_key = ""

    _transport: asyncio.Transport

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._state = _OPENING
        self._paused = False
        # The request while it arrives; later a frame whose header, or control payload, is not whole yet.
        self._partial: bytearray | None = None
        self._inflow: wire.Inflow | None = None
        self._code = wire.ABNORMAL
        self._control_second = 0
        self._control_count = 0
        self.session: object | None = None
        self.form = Form.TEXT
        self._forwarded = ""

    # ------------------------------------------------------------ what the host calls

    def write(self, frame: bytes) -> None:
        """Sends a framed message as it is; nothing happens once the connection is closing."""
        if self._state == _OPEN:
            self._transport.write(frame)

    def close(self, code: int, reason: str, delay: float = 0.0) -> None:
        """Starts the closing handshake; repeating it changes nothing. `closed` follows when the peer has answered.

        A closing frame has no room for the delay: "go away" has named it.
        """
        if self._state == _OPEN:
            self._state = _CLOSING
            self._code = code
            self._transport.write(wire.close_frame(code, reason))
            self._listener.expect_end(self)

    @property
    def peer(self) -> str:
        """The client's address, for logs; behind a proxy what the last one saw."""
        return self._listener.peer(self._transport, self._forwarded)

    @property
    def buffered(self) -> int:
        """Bytes that wait in the transport."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Breaks the connection off without a closing handshake; `closed` follows."""
        if self._state == _OPEN:
            self._state = _CLOSING
        self._transport.abort()

    # ------------------------------------------------------------ what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the request."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._listener.options.high_water)
        self._listener.expect_head(self)

    def data_received(self, data: bytes) -> None:
        """Takes bytes in whatever pieces they come."""
        if self._state == _ENDED:
            return
        try:
            if self._state == _OPENING:
                data = self._open(data)
            if data:
                self._parse(data)
        except wire.ProtocolError as error:
            self._fail(error.code, error.reason)
        except Exception as error:  # the host's; one session ends, the process goes on
            context = {"message": "a session failed", "exception": error, "protocol": self}
            asyncio.get_running_loop().call_exception_handler(context)
            self._fail(wire.INTERNAL_ERROR, "internal error")

    def pause_writing(self) -> None:
        """The transport is full."""
        self._paused = True
        if self._state == _OPEN:
            self._listener.host.behind(self)

    def resume_writing(self) -> None:
        """The transport has drained."""
        self._paused = False
        if self._state == _OPEN:
            self._listener.host.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone, for whatever reason."""
        self._listener.forget(self)
        self._end(self._code)

    # ------------------------------------------------------------ opening and ending

    def _open(self, data: bytes) -> bytes:
        """Collects the request, answers it, and returns what came behind it."""
        options = self._listener.options
        head = self._partial = bytearray() if self._partial is None else self._partial
        known = max(0, len(head) - len(_HEAD_END) + 1)
        head += data
        end = head.find(_HEAD_END, known, options.head_limit)
        if end < 0:
            if len(head) >= options.head_limit:
                self._refuse(handshake.refusal(431, "FIELD_INVALID", f"at most {options.head_limit} bytes of headers"))
            return b""
        self._partial = None
        answer = self._listener.answer(bytes(head[: end + len(_HEAD_END)]))
        if not answer.accepted:
            self._refuse(answer)
            return b""
        self._listener.forget(self)
        self._transport.write(answer.response)
        self._state = _OPEN
        self.form = Form.BINARY if answer.subprotocol == PROTO_SUBPROTOCOL else Form.TEXT
        self._forwarded = answer.forwarded
        self._listener.host.opened(self)
        return bytes(head[end + len(_HEAD_END) :])

    def _refuse(self, answer: handshake.Answer) -> None:
        self._listener.forget(self)
        self._listener.refused += 1
        self._transport.write(answer.response)
        self._end(wire.ABNORMAL)
        self._half_close()

    def _fail(self, code: int, reason: str) -> None:
        """Ends a connection whose peer broke the rules, or whose host failed."""
        if self._state == _OPEN:
            self._transport.write(wire.close_frame(code, reason))
        else:
            code = self._code
        self._end(code)
        self._half_close()

    def _half_close(self) -> None:
        # A full close with unread bytes in the socket would reset it, and the peer might lose what was said last. What
        # still comes is thrown away until the peer ends its side, or the limit for that is over.
        if not self._transport.is_closing():
            self._listener.expect_end(self)
            self._transport.write_eof()

    def _end(self, code: int) -> None:
        """Lets go of everything and tells the host, once."""
        told = self._state not in (_OPEN, _CLOSING)
        self._state = _ENDED
        self._partial = self._inflow = None
        if not told:
            self._listener.host.closed(self, code)

    # ------------------------------------------------------------ frames

    def _parse(self, data: bytes) -> None:
        if self._partial is not None:
            data = bytes(self._partial + data)
            self._partial = None
        position, size = 0, len(data)
        while position < size and self._state != _ENDED:
            if self._inflow is not None and self._inflow.in_frame:
                position = self._absorb(self._inflow, data, position)
                continue
            after = self._frame(data, position) if size - position > 1 else -1
            if after < 0:
                self._partial = bytearray(data[position:])
                return
            position = after

    def _frame(self, data: bytes, position: int) -> int:
        """Takes the frame that begins here; returns where the next one does, or -1 when more bytes are needed."""
        first, second = data[position], data[position + 1]
        opcode, final, length, start = first & 0x0F, first >= 0x80, second & 0x7F, position + 6
        if first & 0x70 or second < 0x80:
            raise wire.ProtocolError(wire.PROTOCOL_ERROR, "reserved bits" if first & 0x70 else "an unmasked frame")
        if opcode >= wire.CLOSE:
            if opcode > wire.PONG or not final or length > wire.CONTROL_LIMIT:
                raise wire.ProtocolError(wire.PROTOCOL_ERROR, "a malformed control frame")
        elif opcode > wire.BINARY or (opcode == wire.CONTINUATION) == (self._inflow is None):
            raise wire.ProtocolError(wire.PROTOCOL_ERROR, "a frame out of order")
        if length > wire.CONTROL_LIMIT:
            width = 2 if length == 126 else 8
            start += width
            length = int.from_bytes(data[position + 2 : position + 2 + width], "big")
        end = start + length
        if len(data) < start or (opcode >= wire.CLOSE and len(data) < end):
            return -1
        key = data[start - 4 : start]
        if opcode >= wire.CLOSE:
            self._control(opcode, wire.unmask(data[start:end], key))
            return end
        if self._inflow is None and final and end <= len(data) and length <= self._listener.options.max_message:
            self._deliver(wire.unmask(data[start:end], key), opcode == wire.TEXT)
            return end
        return self._absorb(self._fragment(opcode, length, final, key), data, start)

    def _fragment(self, opcode: int, length: int, final: bool, key: bytes) -> wire.Inflow:
        """Begins a frame of a message that does not come in one piece."""
        options, inflow = self._listener.options, self._inflow
        if inflow is None:
            inflow = self._inflow = wire.Inflow(opcode == wire.TEXT)
        inflow.begin(length, final, key)
        if len(inflow.buffer) + length > options.max_message:
            raise wire.ProtocolError(wire.TOO_BIG, f"at most {options.max_message} bytes a message")
        if inflow.fragments > options.max_fragments:
            raise wire.ProtocolError(wire.POLICY_VIOLATION, f"at most {options.max_fragments} frames a message")
        return inflow

    def _absorb(self, inflow: wire.Inflow, data: bytes, position: int) -> int:
        position, complete = inflow.absorb(data, position)
        if complete:
            self._inflow = None
            if self._state == _OPEN:
                self._listener.host.received(self, inflow.buffer, inflow.text)
        return position

    def _deliver(self, payload: bytes, text: bool) -> None:
        if text and not payload.isascii():
            try:
                payload.decode()
            except UnicodeDecodeError:
                raise wire.not_text() from None
        if self._state == _OPEN:
            self._listener.host.received(self, payload, text)

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == wire.CLOSE:
            self._peer_closed(wire.close_code(payload))
            return
        second = int(self._listener.clock.monotonic())
        self._control_count = self._control_count + 1 if second == self._control_second else 1
        self._control_second = second
        if self._control_count > self._listener.options.control_rate:
            raise wire.ProtocolError(wire.POLICY_VIOLATION, "too many pings")
        # A peer that does not read gets no pongs: they would pile up here.
        if opcode == wire.PING and self._state == _OPEN and not self._paused:
            self._transport.write(wire.frame(wire.PONG, payload))

    def _peer_closed(self, code: int) -> None:
        if self._state == _OPEN:
            self._transport.write(wire.close_frame(code))
        else:
            code = self._code
        # The server closes the connection first; what waits in the transport is still sent, within the limit.
        self._listener.expect_end(self)
        self._transport.close()
        self._end(code)

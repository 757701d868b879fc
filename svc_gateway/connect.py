"""ClientService: sessions over gRPC, for apps. The same sessions as over WebSocket, on streams instead of sockets.

A stream has the one coroutine that gRPC gives it, which reads; a second one writes while something waits, and only
then. Must not know what a message means. Steps 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import grpc.aio
import msgspec

from heliograph.gateway.v1 import client_service_pb2_grpc as pb_grpc
from mesh.context import current
from mesh.errors import (
    Aborted,
    FailedPrecondition,
    Failure,
    Internal,
    InvalidArgument,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from mesh.ids import join_key
from mesh.streams import STREAM_HEADER
from svc_gateway import answers
from svc_gateway.decisions import CloseCode
from svc_gateway.handshake import last_hop
from svc_gateway.host import Form, Host

# Any: the frames are bytes, which the generated types do not know.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

# Streams beyond the sessions of a node: before hello, superseded, and such that do not read their end.
OTHER_STREAMS = 256
_FORWARDED_HEADER = "x-forwarded-for"
_RECIPIENT = "recipient"
_NORMAL, _ABNORMAL, _INTERNAL_ERROR = 1000, 1006, 1011
_STATUSES: Mapping[int, type[Failure]] = {
    CloseCode.SUPERSEDED: Aborted,
    CloseCode.TOKEN_INVALID: Unauthenticated,
    CloseCode.ORIGIN: PermissionDenied,
    CloseCode.PROTOCOL: InvalidArgument,
    CloseCode.VERSION: FailedPrecondition,
    CloseCode.REVOKED: PermissionDenied,
}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is taken.

    Attributes:
        stream_limit: streams that may be open, those without a session and those that are ending included.
        max_message: bytes of one message.
        high_water: bytes that wait from which a session is behind.
        low_water: bytes that wait up to which it has drained.
        close_timeout: seconds for what is still to be sent when a session ends.
        retry_delay: seconds a client waits that found no room.
    """

    stream_limit: int
    max_message: int = 64 * 1024
    high_water: int = 64 * 1024
    low_water: int = 16 * 1024
    close_timeout: float = 2.0
    retry_delay: float = 1.0


def status_of(code: int, reason: str, delay: float) -> Failure:
    """Returns what a stream ends with instead of a close code: UNAVAILABLE where the client connects again."""
    return _STATUSES.get(code, Unavailable)(
        f"the session has ended: {reason}",
        reason=reason,
        metadata={"close_code": str(int(code))},
        retry_delay=delay or None,
    )


class StreamConnection:
    """One client's stream; implements `host.ClientConnection`.

    Attributes:
        open: nothing has ended it yet.
        recipient_key: whose token the call brought; empty: none.
    """

    __slots__ = (
        "_code",
        "_context",
        "_end",
        "_host",
        "_options",
        "_paused",
        "_queue",
        "_reader",
        "_reading",
        "_size",
        "_writer",
        "open",
        "peer",
        "recipient_key",
        "session",
    )

    form: Form = Form.MESSAGE

    def __init__(self, context: _Context, *, host: Host, options: StreamOptions, peer: str, recipient_key: str) -> None:
        self.session: object | None = None
        self.peer = peer
        self.recipient_key = recipient_key
        self._context = context
        self._host = host
        self._options = options
        self.open = True
        # What waits, while anything does; the first of them is being written.
        self._queue: deque[bytes] | None = None
        self._size = 0
        self._paused = False
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[Any] | None = None
        self._reading = False
        # What the stream ends with; without a failure in order.
        self._code = _ABNORMAL
        self._end: Failure | None = None

    # ------------------------------------------------------------ what the host calls

    def write(self, frame: bytes) -> None:
        """See `host.ClientConnection`."""
        if not self.open:
            return
        self._size += len(frame)
        if self._queue is None:
            self._queue = deque((frame,))
            self._writer = asyncio.get_running_loop().create_task(self._write(self._queue))
        else:
            self._queue.append(frame)
        if not self._paused and self._size > self._options.high_water:
            self._paused = True
            self._host.behind(self)

    def close(self, code: int, reason: str, delay: float = 0.0) -> None:
        """See `host.ClientConnection`."""
        self._close(code, status_of(code, reason, delay))

    @property
    def buffered(self) -> int:
        """Bytes that wait for the client's window, those being written included."""
        return self._size

    # ------------------------------------------------------------ what the servicer calls

    async def serve(self) -> None:
        """Carries messages until the session or the client ends it.

        Raises:
            Failure: the session has ended; what the client is told.
        """
        try:
            await self._read()
            # What was written before the end still goes, within the limit.
            if self._writer is not None:
                await asyncio.wait([self._writer], timeout=self._options.close_timeout)
        except Exception:  # the host's; the guard tells and logs it
            self._code = _INTERNAL_ERROR
            raise
        finally:
            self.open = False
            if self._writer is not None:
                self._writer.cancel()
            self._host.closed(self, self._code)
        if self._end is not None:
            raise self._end

    def _close(self, code: int, end: Failure | None) -> None:
        if not self.open:
            return
        self.open, self._code, self._end = False, code, end
        if self._reading and self._reader is not None:
            # A read has no other end, and what it brings is not needed any more.
            self._reader.cancel()

    async def _read(self) -> None:
        received, largest = self._host.received, self._options.max_message
        self._reader = asyncio.current_task()
        while self.open:
            payload = await self._next()
            if payload is grpc.aio.EOF:
                self._close(_NORMAL, None)
            elif len(payload) > largest:
                self.close(CloseCode.PROTOCOL, "FRAME_INVALID")
            elif self.open:
                received(self, payload, False)

    # Any: a message's bytes, or gRPC's end marker.
    async def _next(self) -> Any:
        self._reading = True
        try:
            return await self._context.read()
        except asyncio.CancelledError:
            if self.open or self._reader is None or self._reader.uncancel():
                # The client is gone.
                raise
            return grpc.aio.EOF
        finally:
            self._reading = False

    async def _write(self, queue: deque[bytes]) -> None:
        """Writes what waits, in order, and ends when nothing does."""
        write = self._context.write
        try:
            while queue:
                await write(queue[0])
                self._size -= len(queue.popleft())
                if self._paused and self._size <= self._options.low_water:
                    self._paused = False
                    if self.open:
                        self._host.writable(self)
            self._queue = self._writer = None
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            self._close(_ABNORMAL, status_of(_ABNORMAL, "PEER_UNAVAILABLE", 0.0))
        except Exception as error:  # the host's; one session ends, the process goes on
            context = {"message": "a session failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            self._close(_INTERNAL_ERROR, Internal("internal error", reason="INTERNAL"))


class ClientStreams(pb_grpc.ClientServiceServicer):
    """Serves the streams. Register it with `raw=("Connect",)`.

    Attributes:
        count: streams that are open.
    """

    def __init__(
        self,
        *,
        host: Host,
        options: StreamOptions,
        node_id: str,
        draining: Callable[[], bool],
        counted: Callable[[int], None],
        admit: Callable[[], float] | None = None,
    ) -> None:
        """Serves nobody yet.

        Args:
            host: who lives behind the streams.
            options: what is taken.
            node_id: said to each client first.
            draining: no more streams are taken.
            counted: told how many streams are open whenever that changes.
            admit: asked for each stream; returns 0, or in how many seconds it may come again: it is refused then,
                before anything is read of it.
        """
        self.count = 0
        self._host = host
        self._options = options
        self._marker = ((STREAM_HEADER, node_id),)
        self._draining = draining
        self._counted = counted
        self._admission = admit
        # Any: the stub's callback type is a class that no function can be.
        self._over: Any = lambda _: self._count(-1)

    async def Connect(  # type: ignore[override]  # coroutine style
        self, request_iterator: object, context: _Context
    ) -> None:
        """Serves one session."""
        self._admit()
        self._count(1)
        # A stream whose client does not even read its end stays open, and counts.
        context.add_done_callback(self._over)
        await context.send_initial_metadata(self._marker)
        caller = current().caller
        connection = StreamConnection(
            context,
            host=self._host,
            options=self._options,
            peer=_peer_of(context),
            # Behind the edge, without a token of the call's own, only hello says who it is.
            recipient_key=join_key(caller.tenant, caller.name) if caller.role == _RECIPIENT else "",
        )
        self._host.opened(connection)
        await connection.serve()

    def _admit(self) -> None:
        delay = self._options.retry_delay
        if self._draining():
            raise answers.node_draining(delay)
        if self.count < self._options.stream_limit:
            delay = 0.0 if self._admission is None else self._admission()
        if delay:
            raise status_of(CloseCode.OVERLOADED, "OVERLOADED", delay)

    def _count(self, change: int) -> None:
        self.count += change
        self._counted(self.count)


def _peer_of(context: _Context) -> str:
    """Returns the client's address as the last proxy saw it; for logs only."""
    found = [value for key, value in context.invocation_metadata() or () if key == _FORWARDED_HEADER]
    return last_hop(str(found[-1])) if found else ""

"""The discipline of bidirectional streams: one reader, one writer, a bounded queue, an opening that keeps its status.

Path step: under every stream between services. Learnt by trial: two writers kill a gRPC stream, a time-out around a
read cancels the whole call, a call that is dropped without cancel lives on, a refusal can lose its status when the
client writes before it has heard from the server, and any end can when gRPC's own `write` fails. Must not know what
frames mean, nor reconnect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from mesh import status
from mesh.errors import Failure, Unavailable

Out = TypeVar("Out")
In = TypeVar("In")

STREAM_HEADER = "x-heliograph-stream"
_MARKERS = frozenset({STREAM_HEADER, "x-heliograph-node"})
# What a stream ends with when it was cut rather than refused; proxies and gRPC itself use all of them for that.
_CUT = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
    }
)
_BROKEN = "PEER_UNAVAILABLE"


class _Gauge:
    """Counts calls that are open in this process."""

    def __init__(self) -> None:
        self.value = 0


_LIVE = _Gauge()


def live_calls() -> int:
    """Returns how many streams, on both sides, this process has open now."""
    return _LIVE.value


class Bidi(Generic[Out, In]):
    """One open stream: frames of type Out go away, frames of type In arrive.

    Made by `connect` or `accept`. Its owner runs `write_loop` as one task and `read` in one other.
    """

    __slots__ = ("_closed", "_finish", "_frames", "_limit", "_read", "_reading", "_wake", "_write")

    def __init__(
        self,
        *,
        read: Callable[[], Awaitable[Any]],
        write: Callable[[Out], Awaitable[None]],
        finish: Callable[[], Awaitable[None]] | None,
        limit: int,
    ) -> None:
        # Any: gRPC's read returns a frame or its end marker.
        self._read = read
        self._write = write
        self._finish = finish
        self._limit = limit
        self._frames: deque[Out] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self._reading = False

    @property
    def pending(self) -> int:
        """Frames that wait for the writer."""
        return len(self._frames)

    def send(self, frame: Out) -> bool:
        """Queues a frame; returns False, and keeps nothing, when the queue is full or the stream is closed."""
        if self._closed or len(self._frames) >= self._limit:
            return False
        self._frames.append(frame)
        self._wake.set()
        return True

    async def read(self) -> In | None:
        """Returns the next frame, or None when the peer ended the stream in order.

        Never put a time-out around it: cancelling a read cancels the stream. At a server a broken connection may look
        like an end; the call is cancelled right after.

        Raises:
            Unavailable: the stream was cut; connect again.
            Failure: the peer refused to go on, with its own category and reason.
        """
        if self._reading:
            raise RuntimeError("a stream has one reader")
        self._reading = True
        try:
            frame = await self._read()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            self.close()
            raise _failure_of(error) from error
        finally:
            self._reading = False
        if frame is grpc.aio.EOF:
            return None
        arrived: In = frame
        return arrived

    async def write_loop(self) -> None:
        """Writes queued frames in order.

        Returns when the stream was closed and the queue is empty, and when the stream is over: why it is, a read says.
        """
        frames, wake, write = self._frames, self._wake, self._write
        try:
            while True:
                while frames:
                    await write(frames.popleft())
                if self._closed:
                    break
                wake.clear()
                await wake.wait()
            if self._finish is not None:
                await self._finish()
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            self._closed = True

    def close(self) -> None:
        """Takes no more frames; what is queued still goes. At a server, returning from the servicer ends the stream."""
        self._closed = True
        self._wake.set()


@asynccontextmanager
async def connect(
    method: grpc.aio.StreamStreamMultiCallable[Out, In],
    *,
    metadata: Sequence[tuple[str, str]],
    limit: int,
    marker_timeout: float = 5.0,
) -> AsyncIterator[Bidi[Out, In]]:
    """Opens a stream, and ends it whatever happens.

    Nothing is written before the server has shown its marker: only so a refusal keeps its status.

    Args:
        method: a stub's method.
        metadata: `Channels.metadata()` or `Channels.node_metadata(…)`.
        limit: how many frames may wait for the writer.
        marker_timeout: seconds to wait for the server's marker.

    Raises:
        Failure: the server or a proxy refused; its own category and reason.
        Unavailable: no answer in time, or the peer cannot be reached.
    """
    call = method(metadata=metadata)
    _LIVE.value += 1
    try:
        await _await_marker(call, marker_timeout)
        yield Bidi(read=call.read, write=writer(call), finish=call.done_writing, limit=limit)
    finally:
        _LIVE.value -= 1
        # A dropped call that nobody cancels is never collected.
        call.cancel()


def writer(call: grpc.aio.StreamStreamCall[Out, In]) -> Callable[[Out], Awaitable[None]]:
    """Returns what writes messages on a client's call and leaves the call's status to the server.

    gRPC's own `write`, when it fails because the server has just ended the call, gives the call the status INTERNAL.
    The server's is lost then (each second time under a client that writes all the time), and so is what had arrived
    and was not read. The function below it does neither.

    Args:
        call: one whose initial metadata has come.

    Raises (the returned function):
        grpc.aio.BaseError: the call is over; a read says why.
    """
    # Any: private, and the stubs do not know it.
    below: Any = call
    send = below._cython_call.send_serialized_message

    async def write(message: Out) -> None:
        # Any: a message.
        made: Any = message
        try:
            await send(made.SerializeToString())
        except asyncio.CancelledError:
            # A message that is half sent ends the call, as with gRPC's own.
            call.cancel()
            raise

    return write


async def accept(context: grpc.aio.ServicerContext[In, Out], *, limit: int, marker: str) -> Bidi[Out, In]:
    """Takes a stream at the server: sends the marker that `connect` waits for. The servicer's first step.

    Args:
        context: the servicer's context.
        limit: how many frames may wait for the writer.
        marker: who took the stream, such as the node's id.
    """
    # Any: the stub's callback type is a class that no function can be.
    count_down: Any = _count_down
    _LIVE.value += 1
    context.add_done_callback(count_down)
    await context.send_initial_metadata(((STREAM_HEADER, marker),))
    return Bidi(read=context.read, write=context.write, finish=None, limit=limit)


def _count_down(_: object) -> None:
    _LIVE.value -= 1


async def _await_marker(call: grpc.aio.StreamStreamCall[Any, Any], limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            initial = await call.initial_metadata()
            if any(key in _MARKERS for key, _ in initial):
                return
            code = await call.code()
            details = await call.details()
            trailing = await call.trailing_metadata()
    except TimeoutError:
        raise Unavailable(f"no answer within {limit_s:g} s of opening the stream", reason=_BROKEN) from None
    if code is grpc.StatusCode.OK:
        raise Unavailable("the peer ended the stream before it began", reason=_BROKEN)
    raise _failure_of(grpc.aio.AioRpcError(code, initial, trailing, details))


def _failure_of(error: Exception) -> Failure:
    if not isinstance(error, grpc.aio.AioRpcError):
        return Unavailable("the stream is over", reason=_BROKEN)
    failure = status.from_call(error)
    if error.code() in _CUT:
        return Unavailable(
            failure.message or "the stream was cut",
            reason=failure.reason or _BROKEN,
            metadata=failure.metadata,
            retry_delay=failure.retry_delay,
        )
    return failure

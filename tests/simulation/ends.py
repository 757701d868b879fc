"""The two ends of a simulated call, with the surface of gRPC that the code uses: a server's context, a client's stream.

They only say what the call behind them does. They must not decide when something arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Never, TypeAlias

import grpc
import grpc.aio

if TYPE_CHECKING:
    from tests.simulation.calls import Call

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]


class ServerContext:
    """What a servicer's method sees of its call."""

    def __init__(self, call: Call, decode: Any, encode: Any) -> None:
        self.aborted: tuple[grpc.StatusCode, str, Metadata] | None = None
        self.callbacks: list[Callable[[Any], None]] = []
        self._call = call
        self._decode = decode
        self._encode = encode

    def invocation_metadata(self) -> Metadata:
        """Returns the caller's headers."""
        return self._call.metadata

    def time_remaining(self) -> float | None:
        """Returns the seconds left."""
        deadline = self._call.deadline
        return None if deadline is None else deadline - self._call.world.loop.time()

    def code(self) -> grpc.StatusCode | None:
        """Returns what the method set."""
        return None if self.aborted is None else self.aborted[0]

    def peer(self) -> str:
        """Returns who calls."""
        return f"sim:{self._call.client.name}"

    async def abort_with_status(self, status: Any) -> Never:
        """Ends the call with a status."""
        self.aborted = status.code, status.details, tuple(status.trailing_metadata or ())
        raise grpc.aio.AbortError

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Shows headers to the client."""
        call = self._call
        if not call.initial.done():
            call.world.loop.call_at(call.arrival(), _show, call, tuple(metadata))

    async def read(self) -> Any:
        """Returns the client's next message."""
        raw = await self._call.up.get()
        if raw is None:
            return grpc.aio.EOF
        return raw if self._decode is None else self._decode(raw)

    async def write(self, message: Any) -> None:
        """Sends a message."""
        host = self._call.server
        assert host is not None
        if not host.alive or not self._call.world.hook(host, f"send {short(self._call.path)}"):
            raise asyncio.CancelledError
        await self._call.down.put(message if self._encode is None else self._encode(message))

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Called at the end."""
        self.callbacks.append(callback)


class ClientStream:
    """Takes the place of `grpc.aio.StreamStreamCall`."""

    def __init__(self, call: Call, decode: Any) -> None:
        self._call = call
        # Under the real one lies another call, which `mesh.streams.writer` writes to.
        self._cython_call = self
        self._decode = decode
        self._ended = False
        self._opening = call.world.loop.create_task(self._open(), name=f"open {call.path}")

    async def _open(self) -> None:
        try:
            handler = await self._call.open()
        except grpc.aio.AioRpcError:
            return
        if self._call.error is None:
            self._call.serve_stream(handler)

    async def initial_metadata(self) -> Metadata:
        """Returns the server's headers, once they are there or never will be."""
        return await asyncio.shield(self._call.initial)

    async def code(self) -> grpc.StatusCode:
        """Returns how the call ended, once it has."""
        await asyncio.shield(self._call.over)
        if self._call.error is not None:
            return self._call.error.code()
        return grpc.StatusCode.OK if self._call.status is None else self._call.status[0]

    async def details(self) -> str:
        """Returns the words of the end."""
        if self._call.error is not None:
            return self._call.error.details() or ""
        return "" if self._call.status is None else self._call.status[1]

    async def trailing_metadata(self) -> Metadata:
        """Returns the headers of the end."""
        return () if self._call.status is None else self._call.status[2]

    async def read(self) -> Any:
        """Returns the server's next message, its end marker, or raises how it ended."""
        if self._call.cancelled:
            raise asyncio.CancelledError
        if self._ended:
            return grpc.aio.EOF
        raw = await self._call.down.get()
        if raw is not None:
            return self._decode(raw)
        self._ended = True
        if self._call.status is not None:
            code, text, trailing = self._call.status
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, text)  # type: ignore[arg-type] # pairs do
        return grpc.aio.EOF

    async def send_serialized_message(self, message: bytes) -> None:
        """Sends a message."""
        call = self._call
        if call.error is not None or call.over.done():
            raise grpc.aio.InternalError("the call is over")
        if not call.client.alive or not call.world.hook(call.client, f"send {short(call.path)}"):
            raise asyncio.CancelledError
        await call.up.put(message)

    async def done_writing(self) -> None:
        """Says that nothing more comes."""
        await self._call.up.put(None)

    def cancel(self) -> bool:
        """Ends the call."""
        call = self._call
        if call.error is None and not self._ended:
            call.cancelled = True
            call.fail(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        self._opening.cancel()
        return True


def _show(call: Call, metadata: Metadata) -> None:
    if not call.initial.done():
        call.initial.set_result(metadata)


def short(path: str) -> str:
    """Returns the name of a method without its service."""
    return path.rpartition("/")[2]

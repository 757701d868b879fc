"""gRPC without a network: calls and streams between simulated machines, with the surface that the code uses.

Messages are serialised, travel in order, take their time, are held while a link is cut, and end when either end dies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Never

import grpc
import grpc.aio
import msgspec

from tests.simulation.world import Host, World, current

Metadata = Sequence[tuple[str, str | bytes]]

# What a stream may hold before its writer waits, in messages.
_WINDOW = 4
_CONNECT_FAILS_S = 0.01


class Details(msgspec.Struct, frozen=True):
    """What a generic handler looks at."""

    method: str
    invocation_metadata: Metadata


class Network:
    """Which servers listen, and the calls that are open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.servers: dict[str, tuple[Host, Sequence[Any]]] = {}
        self._open: dict[_Call, None] = {}
        world.on_crash = self._crash

    def listen(self, name: str, host: Host, handlers: Sequence[Any]) -> None:
        """Takes calls for a process."""
        self.servers[name] = host, handlers

    def close(self, name: str, host: Host) -> None:
        """Takes no more."""
        if name in self.servers and self.servers[name][0] is host:
            del self.servers[name]

    def reset(self, one: str, other: str) -> int:
        """Breaks every call between two machines; returns how many there were."""
        broken = [call for call in self._open if {call.client.name, call.server_name} == {one, other}]
        for call in broken:
            call.fail(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return len(broken)

    def _crash(self, host: Host) -> None:
        self.servers = {name: entry for name, entry in self.servers.items() if entry[0] is not host}
        for call in [call for call in self._open if host in (call.client, call.server)]:
            call.fail(grpc.StatusCode.UNAVAILABLE, "connection reset by peer")

    def begin(self, call: _Call) -> None:
        """Notes an open call."""
        self._open[call] = None

    def end(self, call: _Call) -> None:
        """Forgets it."""
        self._open.pop(call, None)


class Channel:
    """Takes the place of `grpc.aio.Channel`, from the machine that made it to a named process."""

    network: Network

    def __init__(self, target: str) -> None:
        host = current()
        assert host is not None
        self._host = host
        self._target = target.removeprefix("unix:").rpartition("/")[2].removesuffix(".sock")

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: object) -> Any:
        """Returns what makes a call."""

        async def call(request: Any, timeout: float | None = None, metadata: Metadata = (), **_: object) -> Any:
            made = _Call(self.network, self._host, self._target, path, tuple(metadata or ()), timeout)
            raw = request if request_serializer is None else request_serializer(request)
            return await made.unary(raw, response_deserializer)

        return call

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: object) -> Any:
        """Returns what opens a stream."""

        def call(metadata: Metadata = (), **_: object) -> ClientStream:
            made = _Call(self.network, self._host, self._target, path, tuple(metadata or ()), None)
            return ClientStream(made, request_serializer, response_deserializer)

        return call

    def unary_stream(self, *_: object, **__: object) -> None:
        """Nothing that is simulated uses such calls; stubs ask for them all the same."""

    def stream_unary(self, *_: object, **__: object) -> None:
        """See `unary_stream`."""

    async def close(self, grace: float | None = None) -> None:
        """Nothing is kept open between calls."""


class _Pipe:
    """One way of a stream: in order, bounded, each message after its time."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._messages: deque[tuple[float, bytes | None]] = deque()
        self._last = 0.0
        self._changed = asyncio.Event()

    async def put(self, message: bytes | None) -> None:
        while len(self._messages) >= _WINDOW and self._call.error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._call.error is None:
            self._last = max(self._last, self._call.arrival())
            self._messages.append((self._last, message))
            self.wake()

    async def get(self) -> bytes | None:
        """Returns the next message, None at the end; raises what ended the call."""
        while True:
            if self._messages and self._messages[0][0] <= self._call.world.loop.time() + 1e-9:
                message = self._messages.popleft()[1]
                self.wake()
                return message
            if self._call.error is not None:
                raise self._call.error
            self._changed.clear()
            if self._messages:
                try:
                    async with asyncio.timeout_at(self._messages[0][0]):
                        await self._changed.wait()
                except TimeoutError:
                    continue
            else:
                await self._changed.wait()

    def wake(self) -> None:
        self._changed.set()


class _Call:
    """One call, seen from above: both ends, how it ended."""

    def __init__(
        self, network: Network, client: Host, server_name: str, path: str, metadata: Metadata, timeout: float | None
    ) -> None:
        self.network = network
        self.world = network.world
        self.client = client
        self.server: Host | None = None
        self.server_name = server_name
        self.path = path
        self.metadata = metadata
        self.deadline = None if timeout is None else self.world.loop.time() + timeout
        self.error: grpc.aio.AioRpcError | None = None
        self.cancelled = False
        self.initial: asyncio.Future[Metadata] = self.world.loop.create_future()
        self.over: asyncio.Future[None] = self.world.loop.create_future()
        self.up = _Pipe(self)
        self.down = _Pipe(self)
        self.result: bytes | None = None
        self.status: tuple[grpc.StatusCode, str, Metadata] | None = None
        self._task: asyncio.Task[Any] | None = None
        network.begin(self)

    def arrival(self) -> float:
        """Returns when a message that is sent now arrives."""
        now = self.world.loop.time()
        return max(now, self.world.held_until(self.client.name, self.server_name)) + self.world.latency()

    # ------------------------------------------------------------ the way there

    async def open(self) -> Any:
        """Travels to the server and returns the method's handler; fails the call when there is none."""
        host, world = self.client, self.world
        if not host.alive or not world.hook(host, f"before call {_short(self.path)}"):
            raise asyncio.CancelledError
        await _until(world, self.arrival())
        if self.error is not None:
            raise self.error
        found = self.network.servers.get(self.server_name)
        if found is None:
            await asyncio.sleep(_CONNECT_FAILS_S)
            raise self.fail(grpc.StatusCode.UNAVAILABLE, f"nobody listens at {self.server_name}")
        self.server, handlers = found
        details = Details(self.path, self.metadata)
        handler = next((one for one in (each.service(details) for each in handlers) if one is not None), None)
        if handler is None:
            raise self.fail(grpc.StatusCode.UNIMPLEMENTED, f"no method {self.path}")
        return handler

    async def unary(self, request: bytes, decode: Callable[[bytes], Any] | None) -> Any:
        """Makes a unary call."""
        try:
            async with asyncio.timeout_at(self.deadline):
                handler = await self.open()
                self._serve(handler.unary_unary, request, None, None)
                await self.over
                await _until(self.world, self.arrival())
        except TimeoutError:
            raise self.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        finally:
            self.finish()
        if not self.client.alive or not self.world.hook(self.client, f"after call {_short(self.path)}"):
            raise asyncio.CancelledError
        if self.error is not None:
            raise self.error
        if self.status is not None:
            code, text, trailing = self.status
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, text)  # type: ignore[arg-type] # pairs do
        assert self.result is not None
        return self.result if decode is None else decode(self.result)

    def serve_stream(self, handler: Any) -> None:
        """Runs a stream's method on the server."""
        self._serve(handler.stream_stream, None, handler.request_deserializer, handler.response_serializer)

    def _serve(self, behaviour: Any, request: bytes | None, decode: Any, encode: Any) -> None:
        assert self.server is not None
        context = ServerContext(self, decode, encode)
        self._task = self.world.start(self.server, self._run(behaviour, request, context), f"serve {self.path}")

    async def _run(self, behaviour: Any, request: bytes | None, context: ServerContext) -> None:
        try:
            self.result = await behaviour(request, context)
            self.status = None
            if request is not None and self.server is not None and self.server.alive:
                self.world.hook(self.server, f"answer {_short(self.path)}")
        except grpc.aio.AbortError:
            self.status = context.aborted
        except asyncio.CancelledError:
            self.fail(grpc.StatusCode.CANCELLED, "the server cancelled the call")
            raise
        finally:
            if not self.initial.done():
                self.initial.set_result(())
            if not self.over.done():
                self.over.set_result(None)
            for callback in context.callbacks:
                callback(context)
            self.network.end(self)
            self.up.wake()
        await self.down.put(None)

    # ------------------------------------------------------------ ends

    def fail(self, code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
        """Ends the call for both ends."""
        error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)
        if self.error is None:
            self.error = error
        for future in (self.initial, self.over):
            if not future.done():
                future.set_result(() if future is self.initial else None)  # type: ignore[arg-type] # one or the other
        self.up.wake()
        self.down.wake()
        self.finish()
        return self.error

    def finish(self) -> None:
        """The client wants nothing more: the server's side is cancelled if it still runs."""
        self.network.end(self)
        if self._task is not None and not self._task.done():
            self._task.cancel()


class ServerContext:
    """What a servicer's method sees of its call."""

    def __init__(self, call: _Call, decode: Any, encode: Any) -> None:
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
        if not host.alive or not self._call.world.hook(host, f"send {_short(self._call.path)}"):
            raise asyncio.CancelledError
        await self._call.down.put(message if self._encode is None else self._encode(message))

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Called at the end."""
        self.callbacks.append(callback)


def _show(call: _Call, metadata: Metadata) -> None:
    if not call.initial.done():
        call.initial.set_result(metadata)


class ClientStream:
    """Takes the place of `grpc.aio.StreamStreamCall`."""

    def __init__(self, call: _Call, encode: Any, decode: Any) -> None:
        self._call = call
        self._encode = encode
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

    async def write(self, message: Any) -> None:
        """Sends a message."""
        call = self._call
        if call.error is not None:
            raise call.error
        if call.over.done():
            raise asyncio.InvalidStateError("the call is over")
        if not call.client.alive or not call.world.hook(call.client, f"send {_short(call.path)}"):
            raise asyncio.CancelledError
        await call.up.put(self._encode(message))

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


async def _until(world: World, when: float) -> None:
    pause = when - world.loop.time()
    if pause > 0:
        await asyncio.sleep(pause)


def _short(path: str) -> str:
    return path.rpartition("/")[2]

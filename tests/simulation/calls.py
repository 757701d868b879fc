"""One simulated call from above: both ways, both ends, and how it ended.

Messages travel in order, take their time, are held while a link is cut, and end when either end dies. A unary request
whose caller gave up may arrive all the same. It must not know who listens, beyond asking the network.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import msgspec

from tests.simulation.ends import Metadata, ServerContext, short
from tests.simulation.world import Host, World

if TYPE_CHECKING:
    from tests.simulation.network import Network

# What a stream may hold before its writer waits, in messages.
_WINDOW = 4
_CONNECT_FAILS_S = 0.01
# So long after its caller gave up a request may arrive, beside what a cut holds it.
_LATEST_S = 4.0
# This share of them is lost with its caller, as on any network.
_NEVER = 0.3


class Details(msgspec.Struct, frozen=True):
    """What a generic handler looks at."""

    method: str
    invocation_metadata: Metadata


class Pipe:
    """One way of a stream: in order, bounded, each message after its time."""

    def __init__(self, call: Call) -> None:
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


class Call:
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
        self.timeout = timeout
        self.deadline = None if timeout is None else self.world.loop.time() + timeout
        self.error: grpc.aio.AioRpcError | None = None
        self.cancelled = False
        self.initial: asyncio.Future[Metadata] = self.world.loop.create_future()
        self.over: asyncio.Future[None] = self.world.loop.create_future()
        self.up = Pipe(self)
        self.down = Pipe(self)
        self.result: bytes | None = None
        self.status: tuple[grpc.StatusCode, str, Metadata] | None = None
        self._handlers: Sequence[Any] = ()
        self._task: asyncio.Task[Any] | None = None
        # The client has sent it, and it has not arrived.
        self._on_its_way = False
        network.begin(self)

    def arrival(self) -> float:
        """Returns when a message that is sent now arrives."""
        return self.world.send(self.client.name, self.server_name)

    # ------------------------------------------------------------ the way there

    async def open(self) -> Any:
        """Travels to the server and returns the method's handler; fails the call when there is none."""
        host, world = self.client, self.world
        if not host.alive or not world.hook(host, f"before call {short(self.path)}"):
            raise asyncio.CancelledError
        self._on_its_way = True
        await _until(world, self.arrival())
        if self.error is not None:
            raise self.error
        if not self._finds_server():
            await asyncio.sleep(_CONNECT_FAILS_S)
            raise self.fail(grpc.StatusCode.UNAVAILABLE, f"nobody listens at {self.server_name}")
        handler = self._method()
        if handler is None:
            raise self.fail(grpc.StatusCode.UNIMPLEMENTED, f"no method {self.path}")
        return handler

    def _finds_server(self) -> bool:
        found = self.network.servers.get(self.server_name)
        if found is not None:
            self._on_its_way = False
            self.server, self._handlers = found
        return found is not None

    def _method(self) -> Any:
        details = Details(self.path, self.metadata)
        return next((one for one in (each.service(details) for each in self._handlers) if one is not None), None)

    async def unary(self, request: bytes, decode: Callable[[bytes], Any] | None) -> Any:
        """Makes a unary call."""
        try:
            async with asyncio.timeout_at(self.deadline):
                handler = await self.open()
                self._serve(handler.unary_unary, request, None, None)
                await self.over
                await _until(self.world, self.arrival())
        except TimeoutError:
            self._give_up(request)
            raise self.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        except asyncio.CancelledError:
            self._give_up(request)
            raise
        finally:
            self.finish()
        if not self.client.alive or not self.world.hook(self.client, f"after call {short(self.path)}"):
            raise asyncio.CancelledError
        if self.error is not None:
            raise self.error
        if self.status is not None:
            code, text, trailing = self.status
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, text)  # type: ignore[arg-type] # pairs do
        assert self.result is not None
        return self.result if decode is None else decode(self.result)

    # ------------------------------------------------------------ a request that its caller gave up

    def _give_up(self, request: bytes) -> None:
        """The caller wants nothing more; on a network that is late the server may not hear of that, or only of this."""
        if not self.network.late or self.world.random.random() < _NEVER:
            return
        if self._on_its_way:
            left = Call(self.network, self.client, self.server_name, self.path, self.metadata, self.timeout)
            # Nobody's any more: it ends with its server and with nothing else.
            self.network.end(left)
            when = self.arrival() + self.world.random.uniform(0.0, _LATEST_S)
            self.world.loop.create_task(left.arrive(request, when), context=contextvars.Context())
        else:
            # What runs goes on to its end.
            self._task = None

    async def arrive(self, request: bytes, when: float) -> None:
        """Reaches the server at a time, if one listens then, with as much time left as the caller once gave."""
        await _until(self.world, when)
        handler = self._method() if self._finds_server() else None
        if handler is not None:
            self.deadline = None if self.timeout is None else self.world.loop.time() + self.timeout
            self.network.arrived_late += 1
            self._serve(handler.unary_unary, request, None, None)

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
                self.world.hook(self.server, f"answer {short(self.path)}")
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


async def _until(world: World, when: float) -> None:
    pause = when - world.loop.time()
    if pause > 0:
        await asyncio.sleep(pause)

"""gRPC without a network: which processes listen, and channels to them, with the surface that the code uses.

What one call does on its way is in `calls`, what its ends look like in `ends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from tests.simulation.calls import Call
from tests.simulation.ends import ClientStream, Metadata
from tests.simulation.world import Host, World, current


class Network:
    """Which servers listen, and the calls that are open.

    Attributes:
        world: the machines.
        servers: who listens, by the name of the process.
        late: unary requests whose callers gave up arrive all the same, and are answered to nobody.
        arrived_late: so many did.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.late = False
        self.arrived_late = 0
        self.servers: dict[str, tuple[Host, Sequence[Any]]] = {}
        self._open: dict[Call, None] = {}
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

    def begin(self, call: Call) -> None:
        """Notes an open call."""
        self._open[call] = None

    def end(self, call: Call) -> None:
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
            made = Call(self.network, self._host, self._target, path, tuple(metadata or ()), timeout)
            raw = request if request_serializer is None else request_serializer(request)
            return await made.unary(raw, response_deserializer)

        return call

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: object) -> Any:
        """Returns what opens a stream."""

        def call(metadata: Metadata = (), **_: object) -> ClientStream:
            made = Call(self.network, self._host, self._target, path, tuple(metadata or ()), None)
            return ClientStream(made, response_deserializer)

        return call

    def unary_stream(self, *_: object, **__: object) -> None:
        """Nothing that is simulated uses such calls; stubs ask for them all the same."""

    def stream_unary(self, *_: object, **__: object) -> None:
        """See `unary_stream`."""

    async def close(self, grace: float | None = None) -> None:
        """Nothing is kept open between calls."""

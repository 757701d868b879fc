"""The gRPC server of a service: one listener on a Unix socket, guarded methods, health, reflection and channelz.

Path step: where every call enters a service. Must not offer a method that the guard does not stand before: services
are registered through `Server.add` only, and the gRPC server itself is not handed out.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import msgspec
from google.protobuf.descriptor import ServiceDescriptor
from grpc_channelz.v1 import channelz, channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from mesh import options
from mesh.access import Access
from mesh.clock import Clock
from mesh.errors import StartError, Unavailable
from mesh.guard import Guard
from mesh.identity import Identifier
from mesh.sockets import claim, owner_only
from mesh.telemetry import Telemetry
from mesh.tokens import TokenVerifier

S = TypeVar("S")


class CallCount(msgspec.Struct, frozen=True):
    """Calls of one server since its start, those included that wait in gRPC for somebody to take them up."""

    arrived: int
    ended: int


# Any: methods of every request and response type.
Methods = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]

# Long enough for calls that are on their way when a server begins to stop.
_LAST_CALLS_S = 0.25


class Server:
    """A guarded gRPC server; see `mesh.guard` for what happens around a call.

    Args:
        name: the service's name.
        socket: path of the Unix socket; made with mode 0600.
        access: who may call which method; a method that it does not name is refused to everybody.
        direct: no sidecar stands in front: callers name themselves in a header.
        trust_domain: of the identities that count.
        tokens: checks bearer tokens; None refuses calls that bring one.
        telemetry: where metrics are registered.
        clock: what deadlines are measured with.
        max_receive_bytes: largest message taken.
        default_deadline: seconds a unary call without a deadline gets.
        by_wall_clock: calls go by the wall clock, and are refused once it was set; health and reflection never are.
        marker: what `mesh.streams.accept` tells its callers by default; a process that is called by name says it here.
    """

    def __init__(
        self,
        *,
        name: str,
        socket: Path,
        access: Access,
        direct: bool,
        trust_domain: str,
        tokens: TokenVerifier | None,
        telemetry: Telemetry,
        clock: Clock,
        max_receive_bytes: int = options.MAX_MESSAGE_BYTES,
        default_deadline: float = 10.0,
        by_wall_clock: bool = True,
        marker: str = "",
    ) -> None:
        self.marker = marker or name
        self._socket = socket
        self._guard = Guard(
            access=access,
            direct=direct,
            identifier=Identifier(direct=direct, trust_domain=trust_domain, tokens=tokens),
            telemetry=telemetry,
            clock=clock,
            default_deadline=default_deadline,
        )
        self._max_receive_bytes = max_receive_bytes
        self._by_wall_clock = by_wall_clock
        self._registered: list[grpc.GenericRpcHandler] = []
        # Made by `start`: gRPC binds a server to the running loop, and wiring may happen before there is one.
        self._server: grpc.aio.Server | None = None
        self._channelz_id = 0
        self._calls = CallCount(0, 0)
        self._health = health.aio.HealthServicer()
        self._services: list[str] = []
        self._states: dict[str, int] = {}
        self._stopping = asyncio.Event()
        self._announcements: set[asyncio.Task[None]] = set()

    def add(
        self,
        add_function: Callable[[S, grpc.aio.Server], None],
        servicer: S,
        service: ServiceDescriptor,
        *,
        raw: Collection[str] = (),
    ) -> None:
        """Registers a servicer; before `start` only.

        Args:
            add_function: the generated `add_XServicer_to_server`.
            servicer: what serves it; streams in coroutine style.
            service: the service's descriptor; its name is offered to health and reflection.
            raw: streams, by name, whose servicer reads and writes serialised messages: what goes to many is serialised
                once, and what cannot be read is the servicer's to judge.

        Raises:
            TypeError: a method is a generator or a plain function.
            ValueError: the servicer was registered under another name or lacks a method.
        """
        methods = dict(_methods(add_function, servicer).get(service.full_name, {}))
        missing = [method.name for method in service.methods if method.name not in methods]
        if missing or not methods:
            raise ValueError(f"{service.full_name}: not registered: {', '.join(missing) or 'any method'}")
        for name in raw:
            methods[name] = _without_codec(methods[name])
        self._register(service.full_name, methods, by_wall_clock=self._by_wall_clock)
        self._services.append(service.full_name)

    async def start(self) -> None:
        """Binds the socket and serves; health says NOT_SERVING until `set_serving`.

        Raises:
            StartError: the socket cannot be had; one line with the reason.
        """
        await self._announce(False, "", *self._services)
        await self._announce(True, "clock")
        self._add_standard_services()
        claim(self._socket)
        known = _server_ids()
        server = grpc.aio.server(handlers=self._registered, options=options.server_options(self._max_receive_bytes))
        try:
            with owner_only():
                server.add_insecure_port(f"unix:{self._socket}")
        except RuntimeError:
            raise StartError(f"{self._socket}: cannot bind this socket; check the folder's permissions") from None
        await server.start()
        self._server = server
        (self._channelz_id,) = _server_ids() - known

    def count_calls(self) -> CallCount:
        """Returns how many calls arrived and ended: what gRPC holds back while the loop is busy shows only here."""
        for one in _servers(self._channelz_id).server:
            if one.ref.server_id == self._channelz_id:
                self._calls = CallCount(one.data.calls_started, one.data.calls_succeeded + one.data.calls_failed)
        return self._calls

    def set_serving(self, serving: bool) -> None:
        """Tells the health service whether this process takes work.

        The empty name and every service's name follow alike: load balancers ask by either, and both mean readiness. A
        process that lives and is not ready is restarted by nobody for it.
        """
        self._tell(self._announce(serving, "", *self._services))

    def set_dependency(self, name: str, here: bool) -> None:
        """Tells the health service whether something outside the process is there, under `dependency/<name>`.

        Readiness does not follow: what is gone for this process is gone for its twins as well, and taking all of them
        out would replace their precise refusals, and whatever they can still do, by none at all.
        """
        self._tell(self._announce(here, f"dependency/{name}"))

    def set_clock(self, agrees: bool) -> None:
        """Tells the health service, under `clock`, whether the machine's clock shows the time this process goes by."""
        self._tell(self._announce(agrees, "clock"))

    async def stop(self, grace: float) -> None:
        """Takes no new calls, waits up to `grace` seconds for those that run, then cancels them.

        Streams of our own that are still open use up the whole grace: end them first. Health watches and reflection
        end by themselves.
        """
        self._stopping.set()
        self._guard.close()
        for told in tuple(self._announcements):
            await told
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            if grace > _LAST_CALLS_S:
                # What is on its way to a server that stops is cancelled by gRPC; here it is refused with a reason.
                await asyncio.sleep(_LAST_CALLS_S)
            await self._server.stop(grace)

    def _tell(self, announcement: Coroutine[Any, Any, None]) -> None:
        told = asyncio.get_running_loop().create_task(announcement)
        self._announcements.add(told)
        told.add_done_callback(self._announcements.discard)

    async def _announce(self, serving: bool, *names: str) -> None:
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if serving else states.NOT_SERVING
        for name in names:
            self._states[name] = state
            await self._health.set(name, state)

    async def _list_health(self, request: object, context: object) -> object:
        # Any: the package's types are older than its code and lack what belongs to List.
        response = cast(Any, health_pb2).HealthListResponse()
        for name, state in self._states.items():
            response.statuses[name].status = state
        return response

    def _register(self, name: str, methods: Methods, *, by_wall_clock: bool = False) -> None:
        wrap = functools.partial(self._guard.wrap, by_wall_clock=by_wall_clock)
        guarded = {method: wrap(f"/{name}/{method}", served) for method, served in methods.items()}
        # One generic registration: registered methods cost the server's loop a pending request each, on every call.
        self._registered.append(grpc.method_handlers_generic_handler(name, guarded))

    def _add_standard_services(self) -> None:
        health_name = health.SERVICE_NAME
        reflection_name = reflection.SERVICE_NAME
        channelz_name = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name
        names = (*self._services, health_name, reflection_name, channelz_name)
        watching = _methods(health_pb2_grpc.add_HealthServicer_to_server, self._health)[health_name]
        # The library's own List only says that it is not there.
        listing = cast(Any, watching["List"])._replace(unary_unary=self._list_health)
        watched = self._endable(watching["Watch"])
        self._register(health_name, {"Check": watching["Check"], "List": listing, "Watch": watched})
        reflecting = _methods(
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server, reflection.aio.ReflectionServicer(names)
        )[reflection_name]
        self._register(reflection_name, {name: self._endable(method) for name, method in reflecting.items()})
        counting = _methods(channelz_pb2_grpc.add_ChannelzServicer_to_server, channelz.aio.ChannelzServicer())
        self._register(channelz_name, counting[channelz_name])

    def _endable(self, method: Any) -> Any:
        """Returns a stream of a library's servicer that ends when the server stops, instead of using up the grace."""
        behaviour = method.unary_stream or method.stream_stream
        if inspect.isasyncgenfunction(behaviour):
            behaviour = _coroutine_style(behaviour)

        async def serve(request: Any, context: Any) -> None:
            running = asyncio.ensure_future(behaviour(request, context))
            stopping = asyncio.ensure_future(self._stopping.wait())
            try:
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    raise Unavailable("the server is stopping", reason="DRAINING")
                running.result()
            finally:
                running.cancel()
                stopping.cancel()

        return method._replace(
            unary_stream=None if method.request_streaming else serve,
            stream_stream=serve if method.request_streaming else None,
        )


def _servers(first: int) -> channelz_pb2.GetServersResponse:
    """Returns what gRPC knows of this process's servers, by number, from this one on; not all in one answer."""
    # The library asks nothing of the context here.
    context = cast(grpc.ServicerContext, None)
    return channelz.ChannelzServicer.GetServers(channelz_pb2.GetServersRequest(start_server_id=first), context)


def _server_ids() -> set[int]:
    found: set[int] = set()
    while True:
        page = _servers(max(found, default=0) + 1)
        found.update(server.ref.server_id for server in page.server)
        if page.end or not page.server:
            return found


class _Registrar:
    """Stands in for a server while a generated function registers a servicer, and keeps what it was given."""

    def __init__(self) -> None:
        self.methods: dict[str, Methods] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: object) -> None:
        """Takes no notice: the same methods come again, readable, through the other function."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Methods) -> None:
        self.methods[service_name] = method_handlers


def _methods(add_function: Callable[[S, grpc.aio.Server], None], servicer: S) -> dict[str, Methods]:
    registrar = _Registrar()
    # Generated registration functions call two methods of a server, and the registrar has both.
    add_function(servicer, cast(grpc.aio.Server, registrar))
    return registrar.methods


def _without_codec(method: Any) -> Any:
    return grpc.stream_stream_rpc_method_handler(method.stream_stream, None, None)


def _coroutine_style(generator: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[[Any, Any], Any]:
    async def serve(requests: Any, context: Any) -> None:
        async for response in generator(requests, context):
            await context.write(response)

    return serve

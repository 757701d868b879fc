"""A tiny gRPC service built at run time, and a server and channels around it; for tests of the mesh package itself.

It must not know a contract of ours: its descriptor is made here, of well-known types.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.wrappers_pb2 import StringValue

from mesh.channel import Channels
from mesh.clock import Clock, SystemClock
from mesh.server import Server
from mesh.telemetry import Telemetry
from mesh.tokens import TokenVerifier

SERVICE = "mesh.test.v1.EchoService"
SAY = f"/{SERVICE}/Say"
TALK = f"/{SERVICE}/Talk"
EVERYBODY = frozenset({"fanout", "edge", "producer", "recipient", "operator"})

Context: TypeAlias = "grpc.aio.ServicerContext[StringValue, StringValue]"
Say = Callable[[StringValue, Context], Awaitable[StringValue]]
Talk = Callable[[Any, Context], Awaitable[None]]


@lru_cache(maxsize=1)
def service_descriptor() -> ServiceDescriptor:
    """Returns the descriptor of the service: Say is unary, Talk a stream both ways."""
    file = FileDescriptorProto(name="mesh/test/v1/echo_service.proto", package="mesh.test.v1", syntax="proto3")
    file.dependency.append("google/protobuf/wrappers.proto")
    service = file.service.add(name="EchoService")
    text = ".google.protobuf.StringValue"
    service.method.add(name="Say", input_type=text, output_type=text)
    service.method.add(name="Talk", input_type=text, output_type=text, client_streaming=True, server_streaming=True)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindServiceByName(SERVICE)


async def echo(request: StringValue, context: Context) -> StringValue:
    """Answers with the request."""
    return request


async def no_talk(requests: object, context: Context) -> None:
    """Ends the stream at once."""


class EchoServicer:
    """Serves with the functions it is given."""

    def __init__(self, say: Say = echo, talk: Talk = no_talk) -> None:
        self._say = say
        self._talk = talk

    async def Say(self, request: StringValue, context: Context) -> StringValue:
        """Unary."""
        return await self._say(request, context)

    async def Talk(self, requests: object, context: Context) -> None:
        """A stream both ways."""
        await self._talk(requests, context)


def add_echo_to_server(servicer: Any, server: grpc.aio.Server) -> None:
    """Registers as generated code does."""
    codec = (StringValue.FromString, StringValue.SerializeToString)
    methods: dict[str, Any] = {
        "Say": grpc.unary_unary_rpc_method_handler(servicer.Say, *codec),
        "Talk": grpc.stream_stream_rpc_method_handler(servicer.Talk, *codec),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_registered_method_handlers(SERVICE, methods)


def say_of(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[StringValue, StringValue]:
    """Returns the client's side of Say."""
    return channel.unary_unary(SAY, StringValue.SerializeToString, StringValue.FromString)


def talk_of(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[StringValue, StringValue]:
    """Returns the client's side of Talk."""
    return channel.stream_stream(TALK, StringValue.SerializeToString, StringValue.FromString)


def raw_say_of(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """Returns Say for bytes that need not be a message."""
    return channel.unary_unary(SAY)


def raw_talk_of(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    """Returns Talk for bytes that need not be frames."""
    return channel.stream_stream(TALK)


class Echo:
    """A running server with channels to it."""

    def __init__(self, server: Server, channels: Channels, telemetry: Telemetry) -> None:
        self.server = server
        self.channels = channels
        self.telemetry = telemetry

    @property
    def say(self) -> grpc.aio.UnaryUnaryMultiCallable[StringValue, StringValue]:
        """The client's side of Say."""
        return say_of(self.channels.unary("echo"))

    @property
    def talk(self) -> grpc.aio.StreamStreamMultiCallable[StringValue, StringValue]:
        """The client's side of Talk."""
        return talk_of(self.channels.stream("echo"))

    def count(self, method: str, code: str) -> float:
        """Returns how many calls the server has counted."""
        labels = {"method": method, "code": code}
        return self.telemetry.registry.get_sample_value("heliograph_echo_rpc_total", labels) or 0.0


@asynccontextmanager
async def serving(
    run_dir: Path,
    *,
    say: Say = echo,
    talk: Talk = no_talk,
    access: Mapping[str, frozenset[str]] | None = None,
    direct: bool = True,
    service: str = "fanout",
    tokens: TokenVerifier | None = None,
    clock: Clock | None = None,
    default_deadline: float = 10.0,
) -> AsyncIterator[Echo]:
    """Runs the service on `echo.sock`; the client's channels are direct ones that call as `service`."""
    telemetry = Telemetry("echo")
    server = Server(
        name="echo",
        socket=run_dir / "echo.sock",
        access={SAY: EVERYBODY, TALK: EVERYBODY} if access is None else access,
        direct=direct,
        trust_domain="heliograph.local",
        tokens=tokens,
        telemetry=telemetry,
        clock=clock or SystemClock(),
        default_deadline=default_deadline,
    )
    server.add(add_echo_to_server, EchoServicer(say, talk), service_descriptor())
    channels = Channels(service=service, process=service, run_dir=run_dir, direct=True)
    await server.start()
    try:
        yield Echo(server, channels, telemetry)
    finally:
        await channels.close()
        await server.stop(0.0)

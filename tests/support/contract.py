"""The contract as tests see it: every service of it, the access table, and a servicer that answers any method.

It reads the generated code; it must not repeat what the contract says.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping, Set
from functools import lru_cache
from importlib import resources
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

import heliograph
from heliograph.access.v1 import access_pb2
from mesh import context as calls
from mesh.access import Access, read_access
from mesh.errors import Unavailable

CALLER_HEADER = "x-test-caller"
PROCESS_HEADER = "x-test-process"


def descriptors() -> bytes:
    """Returns the contract's descriptor set, imports included."""
    return (resources.files("heliograph") / "descriptors.binpb").read_bytes()


@lru_cache(maxsize=1)
def services() -> Mapping[str, ServiceDescriptor]:
    """Returns every service of the contract by its full name."""
    found: dict[str, ServiceDescriptor] = {}
    for module in pkgutil.walk_packages(heliograph.__path__, "heliograph."):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(module.name).DESCRIPTOR
            found |= {service.full_name: service for service in file.services_by_name.values()}
    return found


def access_of(full_names: tuple[str, ...]) -> Access:
    """Returns who may call each method of some services."""
    return read_access([services()[name] for name in full_names], access_pb2.callers)


class Answers:
    """Answers every method of a service with an empty response, and says in the headers whom it saw.

    Streams answer after the client's last frame, so a test can hold one open.

    Args:
        process: whose answers these are.
        service: which methods.
        seen: gets the path of each call.
        refused: paths of the unary methods that answer "unavailable" for the time being.
    """

    def __init__(self, process: str, service: ServiceDescriptor, seen: list[str], refused: Set[str]) -> None:
        self._process = process
        self._service = service
        self._seen = seen
        self._refused = refused

    def register(self, _: object, server: grpc.aio.Server) -> None:
        """Registers all methods as a generated function would."""
        methods = {method.name: self._serve(method) for method in self._service.methods}
        name = self._service.full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
        server.add_registered_method_handlers(name, methods)

    def _serve(self, method: MethodDescriptor) -> Any:
        # Any: one servicer for methods of all types.
        request: Any = message_factory.GetMessageClass(method.input_type)
        response: Any = message_factory.GetMessageClass(method.output_type)
        codec = (request.FromString, response.SerializeToString)
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(response), *codec)
        return grpc.unary_unary_rpc_method_handler(self._unary(response), *codec)

    def _unary(self, response: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def unary(_: Any, context: Any) -> Any:
            self._refuse()
            await self._introduce(context)
            return response()

        return unary

    def _stream(self, response: Any) -> Any:
        async def stream(_: Any, context: Any) -> None:
            await self._introduce(context)
            while await context.read() is not grpc.aio.EOF:
                await context.write(response())

        return stream

    def _refuse(self) -> None:
        """Refuses before anything is answered, which is when a proxy may try again."""
        method = calls.current().method
        if method in self._refused:
            self._seen.append(method)
            raise Unavailable("refused by the test", reason="TEST")

    async def _introduce(self, context: Any) -> None:
        call = calls.current()
        self._seen.append(call.method)
        caller = "/".join(part for part in (call.caller.role, call.caller.tenant, call.caller.name) if part)
        await context.send_initial_metadata(
            ((CALLER_HEADER, caller), (PROCESS_HEADER, self._process), ("x-heliograph-stream", self._process))
        )

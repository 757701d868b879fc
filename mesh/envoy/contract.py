"""What Envoy must know of the contract: methods, who may call them, which are streams and which have a REST form.

Read from the descriptor set alone, in a pool of its own, so that no generated code is needed. Must not name a service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from mesh.access import OUTSIDE_ROLES, roles_of
from mesh.envoy.topology import EDGE, GATEWAY, Topology
from mesh.errors import StartError

_HTTP_OPTION = "google.api.http"


class Method(msgspec.Struct, frozen=True):
    """One method: "/package.Service/Method", the roles that may call it, and how it is called."""

    path: str
    service: str
    roles: frozenset[str]
    streaming: bool
    rest: bool


class Contract(msgspec.Struct, frozen=True):
    """The methods of every service of the contract, by the service's full name."""

    services: Mapping[str, tuple[Method, ...]]

    def methods(self, full_names: Iterable[str]) -> tuple[Method, ...]:
        """Returns the methods of some services, in the contract's order."""
        return tuple(method for name in full_names for method in self.services[name])


def read_contract(descriptors: bytes, access_option: str) -> Contract:
    """Reads a serialised FileDescriptorSet that includes all its imports.

    Raises:
        StartError: the set is broken or incomplete, lacks the option, or a method lacks it.
    """
    # Any: messages of a pool made at run time have no static type.
    try:
        known = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        pool = descriptor_pool.DescriptorPool()
        for file in known.file:
            pool.AddSerializedFile(file.SerializeToString())
        access: Any = pool.FindExtensionByName(access_option)
        http: Any = pool.FindExtensionByName(_HTTP_OPTION)
        message_factory.GetMessageClassesForFiles([file.name for file in known.file], pool)
        set_name = descriptor_pb2.FileDescriptorSet.DESCRIPTOR.full_name
        # In this pool's own classes the options are fields; in the default pool's they would be unknown bytes.
        parsed: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(set_name)).FromString(descriptors)
    except (DecodeError, KeyError, TypeError) as error:
        text = " ".join(str(error).split())
        raise StartError(f"the contract's descriptors cannot be used: {text}; generate them again") from None
    services: dict[str, tuple[Method, ...]] = {}
    try:
        for file in parsed.file:
            for service in file.service:
                name = f"{file.package}.{service.name}"
                services[name] = tuple(_read_method(name, method, access, http) for method in service.method)
    except ValueError as error:
        raise StartError(f"the contract's descriptors: {error}") from None
    return Contract(services)


def check_contract(contract: Contract, topology: Topology) -> None:
    """Checks that topology and contract speak of the same services.

    Raises:
        StartError: one line that names the service.
    """
    served = {full_name for serves in topology.serving().values() for full_name in serves}
    for full_name in sorted(served - set(contract.services)):
        raise StartError(f"topology: {full_name} is not in the contract; correct the key serves")
    for full_name in sorted(set(contract.services) - served):
        raise StartError(f"topology: nobody serves {full_name} of the contract; add it to the key serves of a service")
    known = {*topology.service_names(), *OUTSIDE_ROLES}
    for method in contract.methods(contract.services):
        for role in sorted(method.roles - known):
            raise StartError(
                f"topology: {method.path} may be called by {role}, which is no service; add services.{role}"
            )


def peers_of(service: str, contract: Contract, topology: Topology) -> tuple[str, ...]:
    """Returns the services that a service may call, the gateway among them where it may."""
    return tuple(
        peer
        for peer, serves in topology.serving().items()
        if any(_may_call(service, method) for method in contract.methods(serves))
    )


def callers_of(roles: frozenset[str], topology: Topology) -> tuple[str, ...]:
    """Returns the services of the mesh among some roles, in the topology's order.

    Producers and recipients without a certificate of their own come through the edge.
    """
    outside = bool(roles & {"producer", "recipient"})
    return tuple(name for name in topology.service_names() if name in roles or (name == EDGE and outside))


def _may_call(service: str, method: Method) -> bool:
    if service == EDGE:
        return bool(method.roles & {EDGE, "producer", "recipient"})
    return service in method.roles


def addressed(service: str) -> bool:
    """Says whether nodes of this service are called by name."""
    return service == GATEWAY


def _read_method(service: str, method: Any, access: Any, http: Any) -> Method:
    numbers = method.options.Extensions[access]
    return Method(
        path=f"/{service}/{method.name}",
        service=service,
        roles=roles_of(numbers, access.enum_type, f"{service}.{method.name}"),
        streaming=method.client_streaming or method.server_streaming,
        rest=method.options.HasExtension(http),
    )

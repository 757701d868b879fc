"""The access table: read from method options, and the rules of the standard services."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from google.protobuf import descriptor_pool, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, MethodOptions

from mesh.access import HEALTH_CHECK, HEALTH_LIST, allowed_roles, read_access

# Importing it is what puts the file into the pool.
_TEXT = f".{wrappers_pb2.StringValue.DESCRIPTOR.full_name}"


@lru_cache(maxsize=1)
def _extension() -> FieldDescriptor:
    file = FileDescriptorProto(name="mesh/test/access.proto", package="mesh.test.access", syntax="proto3")
    file.dependency.append("google/protobuf/descriptor.proto")
    enum = file.enum_type.add(name="CallerRole")
    for number, name in enumerate(("UNSPECIFIED", "PRODUCER", "FANOUT", "OPERATOR")):
        enum.value.add(name=f"CALLER_ROLE_{name}", number=number)
    file.extension.add(
        name="roles",
        number=51_999,
        label=FieldDescriptorProto.LABEL_REPEATED,
        type=FieldDescriptorProto.TYPE_ENUM,
        type_name=".mesh.test.access.CallerRole",
        extendee=".google.protobuf.MethodOptions",
    )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindExtensionByName("mesh.test.access.roles")


def _service(name: str, roles: dict[str, list[int]]) -> ServiceDescriptor:
    # Any: a descriptor found at run time carries no type parameters.
    extension: Any = _extension()
    file = FileDescriptorProto(name=f"mesh/test/{name}.proto", package="mesh.test.access", syntax="proto3")
    file.dependency.extend(["google/protobuf/wrappers.proto", "mesh/test/access.proto"])
    service = file.service.add(name=name)
    for method, numbers in roles.items():
        options = MethodOptions()
        options.Extensions[extension].extend(numbers)
        service.method.add(name=method, input_type=_TEXT, output_type=_TEXT, options=options)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindServiceByName(f"mesh.test.access.{name}")


def test_the_table_comes_from_the_option() -> None:
    """Each method's path maps to its callers in lower case, without the enum's prefix."""
    table = read_access([_service("Full", {"Put": [1, 3], "Get": [2]})], _extension())
    assert table == {
        "/mesh.test.access.Full/Put": frozenset({"producer", "operator"}),
        "/mesh.test.access.Full/Get": frozenset({"fanout"}),
    }


def test_a_method_without_the_option_is_named() -> None:
    """A forgotten option stops the start and says where."""
    service = _service("Forgotten", {"Put": [1], "Open": []})
    with pytest.raises(ValueError, match=r"mesh\.test\.access\.Forgotten\.Open: the access option is missing"):
        read_access([service], _extension())


def test_an_unspecified_caller_is_no_caller() -> None:
    """The zero value, and a number the enum does not have, allow nobody silently."""
    for number, name in ((0, "Zero"), (77, "Strange")):
        with pytest.raises(ValueError, match=rf"{name}\.Put: .*value {number}"):
            read_access([_service(name, {"Put": [number]})], _extension())


def test_an_unknown_method_is_open_to_nobody() -> None:
    """What the table does not name is refused to everybody."""
    roles = allowed_roles({"/a.B/C": frozenset({"fanout"})}, "/a.B/D", direct=True)
    assert not any(role in roles for role in ("fanout", "operator", "edge", ""))


@pytest.mark.parametrize("role", ["operator", "edge", "fanout", "gateway", "some-later-service"])
def test_health_is_open_to_the_mesh(role: str) -> None:
    """The operator and every service may ask for health, check, list and watch."""
    for method in ("Check", "List", "Watch"):
        assert role in allowed_roles({}, f"/grpc.health.v1.Health/{method}", direct=True)


@pytest.mark.parametrize("role", ["producer", "recipient"])
def test_health_is_closed_to_the_outside(role: str) -> None:
    """Nobody from outside may ask."""
    assert role not in allowed_roles({}, HEALTH_CHECK, direct=False)


def test_only_a_sidecars_probe_needs_no_identity() -> None:
    """A nameless check or list passes behind a sidecar; not in direct mode, and never for a watch."""
    for method in (HEALTH_CHECK, HEALTH_LIST):
        assert "" in allowed_roles({}, method, direct=False)
        assert "" not in allowed_roles({}, method, direct=True)
    assert "" not in allowed_roles({}, "/grpc.health.v1.Health/Watch", direct=False)


@pytest.mark.parametrize(
    "path", ["/grpc.reflection.v1alpha.ServerReflection/X", "/grpc.channelz.v1.Channelz/GetSocket"]
)
def test_inspection_is_the_operators(path: str) -> None:
    """Reflection and channelz are for the operator only."""
    roles = allowed_roles({}, path, direct=False)
    assert "operator" in roles
    assert not any(role in roles for role in ("fanout", "edge", "producer", ""))

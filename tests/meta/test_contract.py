"""Rules of the contract that buf does not know."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorSet, MethodDescriptorProto

from heliograph.access.v1 import access_pb2
from tests.meta.tree import ROOT


def _contract() -> FileDescriptorSet:
    return FileDescriptorSet.FromString((ROOT / "gen" / "heliograph" / "descriptors.binpb").read_bytes())


def _methods() -> dict[str, MethodDescriptorProto]:
    return {
        f"/{file.package}.{service.name}/{method.name}": method
        for file in _contract().file
        if file.package.startswith("heliograph.")
        for service in file.service
        for method in service.method
    }


def test_every_method_says_who_may_call_it() -> None:
    """A method without the access option would be open to nobody at run time, and to a reader's guess before."""
    methods = _methods()
    assert methods
    lacking = [
        name
        for name, method in methods.items()
        if not (callers := method.options.Extensions[access_pb2.callers]) or access_pb2.CALLER_UNSPECIFIED in callers
    ]
    assert lacking == []


def test_services_have_a_file_of_their_own() -> None:
    """A service's file ends in _service.proto and holds one service, so that a reader finds it by its name."""
    for file in _contract().file:
        if file.package.startswith("heliograph."):
            assert len(file.service) == (1 if file.name.endswith("_service.proto") else 0), file.name


def test_numbers_are_signed() -> None:
    """Counts and sizes are signed integers: several languages have no other."""
    unsigned = [
        f"{file.name}: {message.name}.{field.name}"
        for file in _contract().file
        if file.package.startswith("heliograph.")
        for message in file.message_type
        for field in message.field
        if field.type in (field.TYPE_UINT32, field.TYPE_UINT64, field.TYPE_FIXED32, field.TYPE_FIXED64)
    ]
    assert unsigned == []


def test_the_descriptors_hold_what_an_error_travels_in() -> None:
    """The edge prints a refused call as JSON, for which it needs the types of its details."""
    names = {file.name for file in _contract().file}
    assert {"google/rpc/status.proto", "google/rpc/error_details.proto", "google/api/http.proto"} <= names

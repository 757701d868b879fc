"""The contract as the generated pages read it: its services, messages and enums, each with its comment.

Structure comes from the generated code, comments from the protos. Must not hold text of its own.
"""

from __future__ import annotations

import importlib
import pkgutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    SourceCodeInfo,
)

import heliograph
from proto import generate

# Numbers of the fields of FileDescriptorProto and below: a comment is found by the way that leads to its element.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS, _ONEOFS = 2, 3, 4, 8
_VALUES = _METHODS = 2
_Path = tuple[int, ...]


@lru_cache(maxsize=1)
def services() -> Mapping[str, ServiceDescriptor]:
    """Returns every service by its full name, in the order of packages and files."""
    found: dict[str, ServiceDescriptor] = {}
    for module in pkgutil.walk_packages(heliograph.__path__, "heliograph."):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(module.name).DESCRIPTOR
            found |= {service.full_name: service for service in file.services_by_name.values()}
    return found


@lru_cache(maxsize=1)
def comments() -> Mapping[str, str]:
    """Returns the comment of every element by its full name, each in one line; of a oneof too."""
    with tempfile.TemporaryDirectory(prefix="heliograph-contract-") as folder:
        path = Path(folder) / "contract.binpb"
        generate.descriptor_set(path, comments=True)
        files = FileDescriptorSet.FromString(path.read_bytes()).file
    return {name: text for file in files for name, text in _of_file(file)}


def comment(full_name: str) -> str:
    """Returns an element's comment; empty where there is none."""
    return comments().get(full_name, "")


def _of_file(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    located = {tuple(one.path): _text(one) for one in file.source_code_info.location if one.leading_comments}
    for path, name in _elements(file):
        if path in located:
            yield name, located[path]


def _text(location: SourceCodeInfo.Location) -> str:
    return " ".join(location.leading_comments.split())


def _elements(file: FileDescriptorProto) -> Iterator[tuple[_Path, str]]:
    for number, message in enumerate(file.message_type):
        yield from _of_message((_MESSAGES, number), f"{file.package}.{message.name}", message)
    yield from _of_enums((_ENUMS,), file.package, file.enum_type)
    for number, service in enumerate(file.service):
        name = f"{file.package}.{service.name}"
        yield (_SERVICES, number), name
        for index, method in enumerate(service.method):
            yield (_SERVICES, number, _METHODS, index), f"{name}.{method.name}"


def _of_message(path: _Path, name: str, message: DescriptorProto) -> Iterator[tuple[_Path, str]]:
    yield path, name
    for number, field in enumerate(message.field):
        yield (*path, _FIELDS, number), f"{name}.{field.name}"
    for number, choice in enumerate(message.oneof_decl):
        yield (*path, _ONEOFS, number), f"{name}.{choice.name}"
    for number, nested in enumerate(message.nested_type):
        yield from _of_message((*path, _NESTED, number), f"{name}.{nested.name}", nested)
    yield from _of_enums((*path, _NESTED_ENUMS), name, message.enum_type)


def _of_enums(path: _Path, scope: str, enums: Sequence[EnumDescriptorProto]) -> Iterator[tuple[_Path, str]]:
    for number, enum in enumerate(enums):
        yield (*path, number), f"{scope}.{enum.name}"
        for index, value in enumerate(enum.value):
            # Beside the enum, as in C++; the enum's own name keeps two enums of one scope apart here.
            yield (*path, number, _VALUES, index), f"{scope}.{enum.name}.{value.name}"

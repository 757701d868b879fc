"""Messages of any type with something wrong in one place, and what no reply may show of the inside.

The places come from descriptors; it must not know a field by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

# What a careless reply would carry: code, files, sockets and hosts, statements, libraries, addresses of memory.
_INSIDE: Final = (
    r"traceback|\.py\b|file \"|\bline \d|\w(?:error|exception)\b|object at|0x[0-9a-f]{6,}",
    r"/(?:tmp|home|usr|var|root|run|work|proc)/|\.sock\b|\.db\b|unix:|127\.0\.0\.\d|localhost|\[::",
    r"sqlite|cassandra|kafka|redis|postgres|\bselect .+ from|\binsert into|\bupdate \w+ set|no such (?:table|column)",
    r"svc_|asyncio|grpcio|google\.protobuf|descriptor|errno",
)
INSIDE: Final = re.compile("|".join(_INSIDE), re.IGNORECASE)

_DEEPEST: Final = 4
_TEXTS: Final = ("' OR 1=1; --", "a\x00b", "%s%n{0.__class__}", "..\\..\\secret", "\u202eecila", "x" * 20_000)
_NUMBERS: Final = (-1, 2**31 - 1, -(2**31))
_BYTES: Final = (b"\xff\xfe\x00", b"x" * 20_000)


def spoiled(kind: Descriptor, depth: int = 0) -> Iterator[Message]:
    """Yields messages of a type, each empty but for one field that makes no sense."""
    for field in kind.fields:
        for value in _values(field, depth):
            message: Any = message_factory.GetMessageClass(kind)()
            _put(message, field, value)
            yield message


def _values(field: FieldDescriptor, depth: int) -> Iterator[object]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            yield from _BYTES if field.type == FieldDescriptor.TYPE_BYTES else _TEXTS
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
            yield from _NUMBERS
        case FieldDescriptor.CPPTYPE_ENUM:
            yield 99
        case FieldDescriptor.CPPTYPE_MESSAGE if depth < _DEEPEST and field.message_type is not None:
            yield from spoiled(field.message_type, depth + 1)
        case _:
            return


def _put(message: Any, field: FieldDescriptor, value: object) -> None:
    if isinstance(value, Message):
        place = getattr(message, field.name)
        (place.add() if field.is_repeated else place).CopyFrom(value)
    elif field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)

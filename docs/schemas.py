"""JSON Schemas (2020-12) of the contract's messages in proto3 JSON, as the edge and the sessions write it.

Names are lowerCamelCase, 64-bit numbers are texts, fields at their default are left out. Bounds come from the code that
enforces them (`constraints.py`), descriptions from the protos. Must not describe an endpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from docs.constraints import CONSTRAINTS, ITEMS, REQUIRED
from docs.contract import comment

# Any: JSON, of every shape.
Schema: TypeAlias = dict[str, Any]

PREFIX = "#/components/schemas/"

_WELL_KNOWN: Mapping[str, Schema] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$", "examples": ["10s"]},
    "google.protobuf.FieldMask": {"type": "string", "examples": ["categories,mutes"]},
}
_WHOLE = {"type": "integer", "format": "int32"}
_LONG = {"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"}
_SCALARS: Mapping[int, Schema] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_INT32: _WHOLE,
    FieldDescriptor.TYPE_INT64: _LONG,
}


def schemas_of(messages: Iterable[Descriptor]) -> dict[str, Schema]:
    """Returns the schema of each message and of everything that it refers to, by its short name.

    Raises:
        ValueError: two of them share a short name.
    """
    found: dict[str, Descriptor | EnumDescriptor] = {}
    waiting: list[Descriptor | EnumDescriptor] = list(messages)
    while waiting:
        one = waiting.pop()
        if found.setdefault(one.name, one) is not one:
            raise ValueError(f"{one.full_name} and {found[one.name].full_name} have one name")
        if isinstance(one, Descriptor):
            waiting += [kind for field in one.fields if (kind := _referred(field)) and found.get(kind.name) is not kind]
    return {name: _message(one) if isinstance(one, Descriptor) else _enum(one) for name, one in sorted(found.items())}


def reference(kind: Descriptor | EnumDescriptor) -> Schema:
    """Returns what stands where a message or an enum is used."""
    return {"$ref": f"{PREFIX}{kind.name}"}


def field_schema(field: FieldDescriptor) -> Schema:
    """Returns the schema of one field, with its bounds and its comment."""
    described = {"description": text} if (text := comment(field.full_name)) else {}
    if _is_map(field):
        assert field.message_type is not None
        return {
            "type": "object",
            "additionalProperties": _plain(field.message_type.fields_by_name["value"]),
            **described,
        }
    bounds = CONSTRAINTS.get(field.full_name, {})
    if field.is_repeated:
        items = {**_plain(field), **ITEMS.get(field.full_name, {})}
        return {"type": "array", "items": items, **bounds, **described}
    return {**_plain(field), **bounds, **described}


def _message(message: Descriptor) -> Schema:
    schema: Schema = {"type": "object"}
    if text := comment(message.full_name):
        schema["description"] = text
    if message.fields:
        schema["properties"] = {field.json_name: field_schema(field) for field in message.fields}
    if required := [field.json_name for field in message.fields if field.full_name in REQUIRED]:
        schema["required"] = required
    pairs = [
        {"not": {"required": [one.json_name, other.json_name]}}
        for choice in message.oneofs
        for one, other in itertools.combinations(choice.fields, 2)
    ]
    return {**schema, **({"allOf": pairs} if pairs else {})}


def _enum(enum: EnumDescriptor) -> Schema:
    lines = [comment(enum.full_name)]
    lines += [f"- `{value.name}`: {comment(f'{enum.full_name}.{value.name}')}" for value in enum.values]
    return {"type": "string", "enum": [value.name for value in enum.values], "description": "\n".join(lines)}


def _plain(field: FieldDescriptor) -> Schema:
    if field.message_type is not None and field.message_type.full_name in _WELL_KNOWN:
        return dict(_WELL_KNOWN[field.message_type.full_name])
    kind = field.message_type or field.enum_type
    return reference(kind) if kind is not None else dict(_SCALARS[field.type])


def _referred(field: FieldDescriptor) -> Descriptor | EnumDescriptor | None:
    if _is_map(field):
        assert field.message_type is not None
        return _referred(field.message_type.fields_by_name["value"])
    kind = field.message_type or field.enum_type
    return None if kind is None or kind.full_name in _WELL_KNOWN else kind


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return field.is_repeated and kind is not None and kind.GetOptions().map_entry

"""The installation's categories and producers, as ingest needs them.

Must not read files: `main` does, and hands the bytes in. What is wrong ends in one line that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from heliograph.type.v1 import notification_pb2

PRIORITIES: Mapping[str, notification_pb2.Priority.ValueType] = {
    "high": notification_pb2.PRIORITY_HIGH,
    "normal": notification_pb2.PRIORITY_NORMAL,
    "bulk": notification_pb2.PRIORITY_BULK,
}
EVERY_CATEGORY = "*"

M = TypeVar("M")

_CATEGORY = re.compile(r"[a-z0-9_.-]{1,64}")
_PRODUCER = re.compile(r"[a-z0-9-]{1,64}/[a-z0-9-]{1,64}")

_PriorityName = Literal["high", "normal", "bulk"]


class Grant(msgspec.Struct, frozen=True):
    """What one producer may publish."""

    categories: frozenset[str]
    priorities: frozenset[int]


class Registries(msgspec.Struct, frozen=True):
    """Everything core looks up.

    Attributes:
        default_priorities: every known category with its default priority.
        grants: every known producer, by (tenant, producer).
    """

    default_priorities: Mapping[str, notification_pb2.Priority.ValueType]
    grants: Mapping[tuple[str, str], Grant]


class RegistryError(ValueError):
    """A registry file that cannot be used: one line with the key."""


class _Category(msgspec.Struct, frozen=True):
    # Other keys belong to prefs.
    priority: _PriorityName


class _Categories(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    categories: dict[str, _Category]


class _Producer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    categories: list[str]
    priorities: list[_PriorityName]


class _Producers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    producers: dict[str, _Producer]


def read_categories(content: bytes) -> Mapping[str, notification_pb2.Priority.ValueType]:
    """Returns every category with its default priority.

    Raises:
        RegistryError: one line that names the key.
    """
    found = _decode(content, _Categories).categories
    for name in found:
        if _CATEGORY.fullmatch(name) is None:
            raise RegistryError(f"categories.{name}: a category's name is 1 to 64 of a-z 0-9 _ - .")
    return {name: PRIORITIES[category.priority] for name, category in found.items()}


def read_producers(content: bytes, categories: Mapping[str, object]) -> Mapping[tuple[str, str], Grant]:
    """Returns what each producer may publish.

    Args:
        content: the file.
        categories: the known categories; a grant for another one is a mistake.

    Raises:
        RegistryError: one line that names the key.
    """
    grants: dict[tuple[str, str], Grant] = {}
    for name, producer in _decode(content, _Producers).producers.items():
        if _PRODUCER.fullmatch(name) is None:
            raise RegistryError(f'producers."{name}": write "tenant/producer", each 1 to 64 of a-z 0-9 -')
        granted = frozenset(categories if EVERY_CATEGORY in producer.categories else producer.categories)
        unknown = sorted(granted.difference(categories))
        if unknown:
            raise RegistryError(f'producers."{name}".categories: {unknown[0]!r} is no known category')
        tenant_id, _, producer_id = name.partition("/")
        grants[tenant_id, producer_id] = Grant(granted, frozenset(PRIORITIES[name] for name in producer.priorities))
    return grants


def _decode(content: bytes, model: type[M]) -> M:
    try:
        return msgspec.toml.decode(content, type=model)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise RegistryError(" ".join(str(error).split())) from None

"""The installation's categories and producers, as ingest needs them.

Must not read files: `main` does, and hands the bytes in. What is wrong ends in one line that names the key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from heliograph.type.v1 import notification_pb2
from svc_ingest.quota import Quota, Quotas

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
        quotas: how much of it.
    """

    default_priorities: Mapping[str, notification_pb2.Priority.ValueType]
    grants: Mapping[tuple[str, str], Grant]
    quotas: Quotas = Quotas()


class RegistryError(ValueError):
    """A registry file that cannot be used: one line with the key."""


class _Category(msgspec.Struct, frozen=True):
    # Other keys belong to prefs.
    priority: _PriorityName


class _Categories(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    categories: dict[str, _Category]


class _Quota(Quota, frozen=True, forbid_unknown_fields=True):
    pass


class _Producer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    categories: list[str]
    priorities: list[_PriorityName]
    quota: _Quota = _Quota()


class _Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quota: _Quota


class _Producers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    producers: dict[str, _Producer]
    tenants: dict[str, _Tenant] = {}


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


def read_quotas(content: bytes) -> Quotas:
    """Returns how much each producer and each tenant may publish.

    Args:
        content: the file of producers, one that `read_producers` takes.

    Raises:
        RegistryError: one line that names the key.
    """
    found = _decode(content, _Producers)
    producers: dict[tuple[str, str], Quota] = {}
    for name, producer in found.producers.items():
        tenant_id, _, producer_id = name.partition("/")
        producers[tenant_id, producer_id] = _check_quota(f'producers."{name}".quota', producer.quota)
    known = {tenant_id for tenant_id, _ in producers}
    for name in found.tenants:
        if name not in known:
            raise RegistryError(f"tenants.{name}: no producer belongs to this tenant")
    tenants = {name: _check_quota(f"tenants.{name}.quota", tenant.quota) for name, tenant in found.tenants.items()}
    return Quotas(producers, tenants)


def _check_quota(key: str, quota: Quota) -> Quota:
    for name in quota.__struct_fields__:
        value = getattr(quota, name)
        if value is not None and not 0 <= value < math.inf:
            raise RegistryError(f"{key}.{name}: must be 0 or more, and finite")
    for burst, rate in (("burst", "events_per_second"), ("recipients_burst", "recipients_per_second")):
        if getattr(quota, burst) is not None:
            if getattr(quota, rate) is None:
                raise RegistryError(f"{key}.{burst}: needs {rate}")
            if getattr(quota, burst) < 1:
                raise RegistryError(f"{key}.{burst}: must be at least 1; a rate of 0 lets nothing through")
    return quota


def _decode(content: bytes, model: type[M]) -> M:
    try:
        return msgspec.toml.decode(content, type=model)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise RegistryError(" ".join(str(error).split())) from None

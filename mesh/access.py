"""Who may call which method: the table read from the contract's access option, and the rules of the standard services.

The same table is enforced in every service and rendered into the sidecars. Must not name a service or method of any
contract: all of it comes from descriptors.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor, ServiceDescriptor

Access = Mapping[str, frozenset[str]]

PRODUCER = "producer"
RECIPIENT = "recipient"
OPERATOR = "operator"
# Roles that are no service of the mesh; no certificate `svc/<name>` may claim one of them.
OUTSIDE_ROLES = frozenset({PRODUCER, RECIPIENT, OPERATOR, ""})

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_LIST = "/grpc.health.v1.Health/List"
_HEALTH_PREFIX = "/grpc.health.v1.Health/"
_OPERATOR_PREFIXES = ("/grpc.reflection.", "/grpc.channelz.")

_NOBODY: frozenset[str] = frozenset()


class _HealthRoles(Container[str]):
    """The operator and every service, whatever its name; the nameless caller only where `anonymous`."""

    def __init__(self, *, anonymous: bool) -> None:
        self._anonymous = anonymous

    def __contains__(self, role: object) -> bool:
        if role == "":
            return self._anonymous
        return role == OPERATOR or role not in OUTSIDE_ROLES


def allowed_roles(access: Access, path: str, *, direct: bool) -> Container[str]:
    """Returns the roles that may call a method; empty for a method that the table does not know.

    A health check, or list, without any identity is let through behind a sidecar only: the service's socket has mode
    0600, so whoever speaks there without a forwarded certificate is the own sidecar with its probe, or our command.

    Args:
        access: the table of the contract's own services.
        path: full method path, "/package.Service/Method".
        direct: no sidecar stands in front of this service.
    """
    if path.startswith(_HEALTH_PREFIX):
        return _HealthRoles(anonymous=not direct and path in (HEALTH_CHECK, HEALTH_LIST))
    if path.startswith(_OPERATOR_PREFIXES):
        return frozenset({OPERATOR})
    return access.get(path, _NOBODY)


def read_access(services: Sequence[ServiceDescriptor], extension: FieldDescriptor) -> Access:
    """Reads who may call each method of these services.

    Args:
        services: descriptors of every service that a process offers.
        extension: the method option, a repeated enum; `CALLER_FANOUT` of enum `Caller` is the role "fanout".

    Raises:
        ValueError: a method carries no access option, or an unspecified value; the text names it.
    """
    enum = extension.enum_type
    if enum is None:
        raise ValueError(f"option {extension.full_name}: not an enum")
    # Any: a descriptor found at run time carries no type parameters.
    key: Any = extension
    return {
        f"/{service.full_name}/{method.name}": roles_of(
            method.GetOptions().Extensions[key], enum, f"{service.full_name}.{method.name}"
        )
        for service in services
        for method in service.methods
    }


def roles_of(numbers: Sequence[int], enum: EnumDescriptor, method: str) -> frozenset[str]:
    """Returns the role names that an access option's values stand for.

    Args:
        numbers: the option's values.
        enum: their enum.
        method: what the failure's text calls the method.

    Raises:
        ValueError: no value, or one that names no caller.
    """
    if not numbers:
        raise ValueError(f"{method}: the access option is missing; say in the proto who may call it")
    prefix = _upper_snake(enum.name) + "_"
    roles = set()
    for number in numbers:
        value = enum.values_by_number.get(number)
        if value is None or number == 0:
            raise ValueError(f"{method}: the access option names no caller (value {number})")
        roles.add(value.name.removeprefix(prefix).lower())
    return frozenset(roles)


def _upper_snake(name: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() and place else letter for place, letter in enumerate(name)).upper()

"""The rules of wishes: defaults, choices, masks, decisions.

Pure: no I/O, no clock. A decision is made of the category's defaults in the registry and of what the recipient chose.
Path step 4: fanout asks, one call a page.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.errors import Aborted, InvalidArgument, PermissionDenied, StartError, Violation
from svc_prefs.ports import Stored

LARGEST_BATCH_ITEMS = 50
LARGEST_BATCH_RECIPIENTS = 10_000

_CHANNELS: Mapping[str, notification_pb2.Channel.ValueType] = {
    "inbox": notification_pb2.CHANNEL_INBOX,
    "live": notification_pb2.CHANNEL_LIVE,
}


class Category(msgspec.Struct, frozen=True):
    """What the registry says of a category, as far as wishes are concerned."""

    channels: tuple[Literal["inbox", "live"], ...] = ("inbox", "live")
    enabled: bool = True


class _Registry(msgspec.Struct, frozen=True):
    categories: dict[str, Category]


Registry = Mapping[str, Category]

# A category that ingest knows and this process does not (registries are rolled out one by one) is delivered.
_UNKNOWN = Category()


def invalid(violations: Sequence[Violation], *, reason: str = "FIELD_INVALID") -> InvalidArgument:
    """The request breaks rules; all of them are named."""
    text = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
    return InvalidArgument(text, reason=reason, violations=violations)


def not_allowed(recipient_id: str) -> PermissionDenied:
    """The caller may not act for this recipient."""
    return PermissionDenied(
        f"the caller may not act for recipient {recipient_id!r}",
        reason="CALLER_NOT_ALLOWED",
        metadata={"recipient_id": recipient_id},
    )


def etag_mismatch(given: str, stored: str) -> Aborted:
    """The preferences were changed since the caller read them."""
    return Aborted(
        f"etag {given!r} is not the stored one: read the preferences again and repeat the change on them",
        reason="ETAG_MISMATCH",
        metadata={"etag": given, "stored_etag": stored},
    )


def parse_registry(text: str, source: str) -> Registry:
    """Reads the registry of categories.

    Args:
        text: TOML with a table `categories`.
        source: where it is from, for the error.

    Raises:
        StartError: it is not TOML or breaks the shape; one line with file and key.
    """
    try:
        registry = msgspec.convert(tomllib.loads(text), _Registry).categories
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise StartError(f"categories file {source}: {error}; correct it") from None
    if not registry:
        raise StartError(f"categories file {source}: has no category; add [categories.<name>]")
    for name, category in registry.items():
        if category.channels[:1] != ("inbox",) or len(set(category.channels)) != len(category.channels):
            raise StartError(
                f"categories file {source}: categories.{name}.channels must start with inbox and name each channel once"
            )
    return registry


def acting_for(*, role: str, caller: tuple[str, str], recipient_id: str, tenant_id: str) -> tuple[str, str]:
    """Returns the tenant and recipient that a call is about.

    Args:
        role: "recipient" or "operator".
        caller: tenant and name of the caller.
        recipient_id: from the request; empty from a recipient: itself.
        tenant_id: from the request; operators name it.

    Raises:
        PermissionDenied: a recipient names another one, or another tenant.
        InvalidArgument: an operator does not say whom it means.
    """
    if role == "operator":
        missing = [
            Violation(field, "operators must name it")
            for field, value in (("tenant_id", tenant_id), ("recipient_id", recipient_id))
            if not value
        ]
        if missing:
            raise invalid(missing)
        return tenant_id, recipient_id
    tenant, name = caller
    if recipient_id not in ("", name) or tenant_id not in ("", tenant):
        raise not_allowed(recipient_id or name)
    return tenant, name


def owned(stored: Iterable[Stored], tenant_id: str, recipient_ids: Iterable[str]) -> dict[str, Stored]:
    """Returns what a store answered by recipient, without anything that nobody asked for.

    A store or pool that mixes answers up must never decide for another recipient; the caller counts what is missing.
    """
    asked = set(recipient_ids)
    return {one.recipient_id: one for one in stored if one.tenant_id == tenant_id and one.recipient_id in asked}


def chosen(stored: Stored | None) -> dict[str, pb.CategoryPreference]:
    """Returns a recipient's choices by category; empty for one who never chose."""
    if stored is None:
        return {}
    return {choice.category: choice for choice in pb.Preferences.FromString(stored.preferences).categories}


def show(registry: Registry, recipient_id: str, stored: Stored | None) -> pb.Preferences:
    """Returns the preferences as their recipient sees them: every category of the registry, chosen or default."""
    choices = chosen(stored)
    shown = pb.Preferences(recipient_id=recipient_id, etag=etag_of(stored))
    for name, category in registry.items():
        shown.categories.append(choices.get(name) or pb.CategoryPreference(category=name, enabled=category.enabled))
    return shown


def etag_of(stored: Stored | None) -> str:
    """Returns the etag of stored preferences."""
    return str(0 if stored is None else stored.version)


def change(
    registry: Registry, request: pb.UpdatePreferencesRequest, tenant_id: str, recipient_id: str, stored: Stored | None
) -> Stored:
    """Returns the preferences after an update, with the next version.

    A category that the mask names and the request does not goes back to its default.

    Raises:
        InvalidArgument: an unknown category, channel or mask path; every violation is named.
        Aborted: the request's etag is not the stored one.
    """
    given = _check_choices(registry, request.preferences)
    names = _masked(registry, request.update_mask.paths, given)
    if request.preferences.etag and request.preferences.etag != etag_of(stored):
        raise etag_mismatch(request.preferences.etag, etag_of(stored))
    choices = chosen(stored)
    for name in names:
        if name in given:
            choices[name] = given[name]
        else:
            choices.pop(name, None)
    after = pb.Preferences(categories=[choices[name] for name in sorted(choices)])
    return Stored(
        tenant_id,
        recipient_id,
        (0 if stored is None else stored.version) + 1,
        after.SerializeToString(deterministic=True),
    )


def _check_choices(registry: Registry, preferences: pb.Preferences) -> dict[str, pb.CategoryPreference]:
    given: dict[str, pb.CategoryPreference] = {}
    violations = []
    for index, choice in enumerate(preferences.categories):
        where = f"preferences.categories[{index}]"
        if choice.category not in registry:
            violations.append(Violation(f"{where}.category", f"unknown category {choice.category!r}"))
        elif choice.category in given:
            violations.append(Violation(f"{where}.category", f"{choice.category!r} is named twice"))
        if notification_pb2.CHANNEL_INBOX in choice.disabled_channels:
            violations.append(Violation(f"{where}.disabled_channels", "INBOX cannot be switched off; use enabled"))
        if any(channel not in _CHANNELS.values() for channel in choice.disabled_channels):
            violations.append(Violation(f"{where}.disabled_channels", "unknown channel"))
        given[choice.category] = choice
    if violations:
        raise invalid(violations)
    return given


def _masked(registry: Registry, paths: Sequence[str], given: Mapping[str, pb.CategoryPreference]) -> Sequence[str]:
    if not paths:
        return list(given)
    names: list[str] = []
    violations = []
    for path in paths:
        head, dot, name = path.partition(".")
        if path in ("*", "categories"):
            names += registry
        elif head == "categories" and dot and name in registry:
            names.append(name)
        else:
            violations.append(Violation("update_mask", f"unknown path {path!r}; use *, categories, categories.<name>"))
    if violations:
        raise invalid(violations, reason="MASK_INVALID")
    return names


def check_batch(request: pb.BatchResolveRequest) -> None:
    """Checks a batch's size; raises InvalidArgument naming each violation."""
    violations = []
    if not request.tenant_id:
        violations.append(Violation("tenant_id", "must be given"))
    if not 1 <= len(request.items) <= LARGEST_BATCH_ITEMS:
        violations.append(Violation("items", f"must be 1 to {LARGEST_BATCH_ITEMS}, not {len(request.items)}"))
    count = sum(len(item.recipient_ids) for item in request.items)
    if count > LARGEST_BATCH_RECIPIENTS:
        violations.append(Violation("items", f"at most {LARGEST_BATCH_RECIPIENTS} recipients in all, not {count}"))
    if any(not item.recipient_ids for item in request.items):
        violations.append(Violation("items.recipient_ids", "must not be empty"))
    if violations:
        raise invalid(violations)


def resolve(registry: Registry, item: pb.ResolveItem, stored: Mapping[str, Stored]) -> pb.ItemResolution:
    """Decides for the recipients of one item; only who differs from the default is named."""
    category = registry.get(item.category, _UNKNOWN)
    default = _decide(category, None)
    answer = pb.ItemResolution(default_resolution=default)
    if not stored:
        return answer
    differing: dict[bytes, pb.ResolutionGroup] = {}
    for recipient_id in item.recipient_ids:
        one = stored.get(recipient_id)
        choice = chosen(one).get(item.category) if one is not None else None
        if choice is None:
            continue
        decision = _decide(category, choice)
        if decision != default:
            key = decision.SerializeToString(deterministic=True)
            group = differing.get(key)
            if group is None:
                group = differing[key] = answer.groups.add(resolution=decision)
            group.recipient_ids.append(recipient_id)
    return answer


def _decide(category: Category, choice: pb.CategoryPreference | None) -> pb.Resolution:
    enabled = category.enabled if choice is None else choice.enabled
    if not enabled:
        return pb.Resolution(suppress_reason=plan_pb2.SUPPRESS_REASON_OPTED_OUT)
    disabled = () if choice is None else choice.disabled_channels
    return pb.Resolution(channels=[_CHANNELS[name] for name in category.channels if _CHANNELS[name] not in disabled])

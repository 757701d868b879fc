"""The rules of wishes: defaults, choices, masks, decisions, and whose wishes changed.

Pure: no I/O, time is an argument. A decision is made of the category's defaults in the registry and of what the
recipient chose. Path step 4: fanout asks, one call a page. The rules of mutes are in `mutes`, those of subscriptions in
`topics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.errors import Aborted, InvalidArgument, PermissionDenied, Violation
from mesh.ids import join_key
from svc_prefs import mutes
from svc_prefs.ports import Changes, Stored
from svc_prefs.registry import UNKNOWN, Category, Registry

LARGEST_BATCH_ITEMS: Final = 50
LARGEST_BATCH_RECIPIENTS: Final = 10_000
LARGEST_CHANGE_PAGE: Final = 1_000
# Named in one refusal; trailers are small.
_LARGEST_ANSWER: Final = 20
_LONGEST_NAME: Final = 64

_CHANNELS: Mapping[str, notification_pb2.Channel.ValueType] = {
    "inbox": notification_pb2.CHANNEL_INBOX,
    "live": notification_pb2.CHANNEL_LIVE,
}
_CHANNEL_NAMES: Mapping[int, str] = {channel: name for name, channel in _CHANNELS.items()}


class Wishes(msgspec.Struct, frozen=True, gc=False):
    """What one recipient chose, ready to decide with."""

    version: int
    choices: Mapping[str, pb.CategoryPreference]
    mutes: mutes.Mutes


class _Decision(msgspec.Struct, frozen=True, gc=False):
    """Channels in order, or why not, and until when; without the version that it was made of."""

    channels: tuple[notification_pb2.Channel.ValueType, ...]
    suppress_reason: plan_pb2.SuppressReason.ValueType = plan_pb2.SUPPRESS_REASON_UNSPECIFIED
    end_us: int = mutes.NEVER


_NO_WISHES = Wishes(0, {}, {})


def invalid(violations: Sequence[Violation], *, reason: str = "FIELD_INVALID") -> InvalidArgument:
    """The request breaks rules; all of them are named, up to a limit."""
    named = violations[:_LARGEST_ANSWER]
    text = "; ".join(f"{violation.field}: {violation.description}" for violation in named)
    return InvalidArgument(text, reason=reason, violations=named)


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


def acting_for(*, role: str, caller: tuple[str, str], recipient_id: str, tenant_id: str) -> tuple[str, str]:
    """Returns the tenant and recipient that a call is about.

    Args:
        role: "recipient", or "operator" or "gateway", who act for others.
        caller: tenant and name of the caller.
        recipient_id: from the request; empty from a recipient: itself.
        tenant_id: from the request; operators and gateways name it.

    Raises:
        PermissionDenied: a recipient names another one, or another tenant.
        InvalidArgument: an operator or a gateway does not say whom it means.
    """
    if role != "recipient":
        missing = [
            Violation(field, "must be given by operators and gateways")
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


def wishes_of(stored: Stored | None) -> Wishes:
    """Returns what a recipient chose; nothing of one who never did."""
    if stored is None:
        return _NO_WISHES
    chosen = pb.Preferences.FromString(stored.preferences)
    return Wishes(stored.version, {choice.category: choice for choice in chosen.categories}, mutes.read(chosen.mutes))


def show(registry: Registry, recipient_id: str, stored: Stored | None, now_us: int) -> pb.Preferences:
    """Returns the preferences as their recipient sees them: every category of the registry, and the mutes in force."""
    wishes = wishes_of(stored)
    shown = pb.Preferences(recipient_id=recipient_id, etag=str(wishes.version))
    for name, category in registry.items():
        choice = wishes.choices.get(name)
        shown.categories.append(
            pb.CategoryPreference(
                category=name,
                enabled=_is_enabled(category, choice),
                disabled_channels=sorted(_disabled(category, choice)),
            )
        )
    shown.mutes.extend(mutes.write(mutes.visible(registry, wishes.mutes, now_us)))
    return shown


def change(
    registry: Registry,
    request: pb.UpdatePreferencesRequest,
    tenant_id: str,
    recipient_id: str,
    stored: Stored | None,
    now_us: int,
) -> Stored:
    """Returns the preferences after an update, with the next version.

    A category that the mask names and the request does not goes back to its default. A mute that is over is dropped, so
    a mute is also taken back by naming it with an end that has passed.

    Raises:
        InvalidArgument: an unknown category, channel or mask path, or what the registry does not leave to the
            recipient; every violation is named.
        Aborted: the request's etag is not the stored one.
    """
    given = request.preferences
    violations = [*_check_choices(registry, given.categories), *mutes.check(registry, given.mutes)]
    if violations:
        raise invalid(violations)
    named = {choice.category: choice for choice in given.categories}
    names = _masked(registry, request.update_mask.paths, named)
    wishes = wishes_of(stored)
    if given.etag and given.etag != str(wishes.version):
        raise etag_mismatch(given.etag, str(wishes.version))
    choices = dict(wishes.choices)
    for name in names:
        if name in named:
            choices[name] = named[name]
        else:
            choices.pop(name, None)
    after = pb.Preferences(
        categories=[choices[name] for name in sorted(choices)],
        mutes=mutes.write(_change_mutes(request, wishes.mutes, now_us)),
    )
    return Stored(tenant_id, recipient_id, wishes.version + 1, after.SerializeToString(deterministic=True))


def _change_mutes(request: pb.UpdatePreferencesRequest, before: mutes.Mutes, now_us: int) -> mutes.Mutes:
    paths, given = request.update_mask.paths, mutes.read(request.preferences.mutes)
    if not paths:
        given = {**before, **given}
    elif not {"*", "mutes"} & set(paths):
        given = dict(before)
    after = mutes.active(given, now_us)
    if len(after) > mutes.LARGEST_MUTES:
        rule = f"at most {mutes.LARGEST_MUTES} in all, not {len(after)}"
        raise invalid([Violation("preferences.mutes", rule)])
    return after


def _check_choices(registry: Registry, choices: Sequence[pb.CategoryPreference]) -> list[Violation]:
    violations = []
    seen: set[str] = set()
    for index, choice in enumerate(choices):
        where = f"preferences.categories[{index}]"
        disabled = f"{where}.disabled_channels"
        category = registry.get(choice.category, UNKNOWN)
        if choice.category not in registry:
            violations.append(Violation(f"{where}.category", f"unknown category {_short(choice.category)}"))
        elif choice.category in seen:
            violations.append(Violation(f"{where}.category", f"{choice.category!r} is named twice"))
        if category.mandatory and not choice.enabled:
            rule = f"{choice.category!r} is mandatory: it cannot be switched off"
            violations.append(Violation(f"{where}.enabled", rule))
        if notification_pb2.CHANNEL_INBOX in choice.disabled_channels:
            violations.append(Violation(disabled, "INBOX cannot be switched off; use enabled"))
        if any(channel not in _CHANNEL_NAMES for channel in choice.disabled_channels):
            violations.append(Violation(disabled, "unknown channel"))
        fixed = {name for name in category.fixed_channels if name != "inbox"}
        if fixed & {_CHANNEL_NAMES.get(channel) for channel in choice.disabled_channels}:
            rule = f"{choice.category!r} is mandatory on {', '.join(sorted(fixed))}"
            violations.append(Violation(disabled, f"{rule}: these channels cannot be switched off"))
        seen.add(choice.category)
    return violations


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
        elif path != "mutes":
            rule = f"unknown path {_short(path)}; use *, categories, categories.<name>, mutes"
            violations.append(Violation("update_mask", rule))
    if violations:
        raise invalid(violations, reason="MASK_INVALID")
    return names


def _short(name: str) -> str:
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")


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
    if any(item.topic_id and not mutes.is_topic(item.topic_id) for item in request.items):
        violations.append(Violation("items.topic_id", f"{mutes.TOPIC_RULE}, or empty"))
    if violations:
        raise invalid(violations)


def resolve(registry: Registry, item: pb.ResolveItem, wishes: Mapping[str, Wishes], now_us: int) -> pb.ItemResolution:
    """Decides for the recipients of one item; only who differs from the default is named."""
    category = registry.get(item.category, UNKNOWN)
    default = _decide(category, None, 0)
    answer = pb.ItemResolution(default_resolution=_resolution(default, 0))
    if not wishes:
        return answer
    differing: dict[tuple[_Decision, int], pb.ResolutionGroup] = {}
    for recipient_id in item.recipient_ids:
        one = wishes.get(recipient_id)
        if one is None:
            continue
        choice = one.choices.get(item.category)
        muted_us = mutes.end_of(one.mutes, item.category, item.topic_id, now_us)
        if choice is None and not muted_us:
            continue
        decision = _decide(category, choice, muted_us)
        if decision != default:
            group = differing.get((decision, one.version))
            if group is None:
                group = answer.groups.add(resolution=_resolution(decision, one.version))
                differing[decision, one.version] = group
            group.recipient_ids.append(recipient_id)
    return answer


def _decide(category: Category, choice: pb.CategoryPreference | None, muted_us: int) -> _Decision:
    if not _is_enabled(category, choice):
        return _Decision((), plan_pb2.SUPPRESS_REASON_OPTED_OUT)
    if muted_us and not category.mandatory:
        return _Decision((), plan_pb2.SUPPRESS_REASON_MUTED, muted_us)
    disabled = _disabled(category, choice)
    return _Decision(tuple(_CHANNELS[name] for name in category.channels if _CHANNELS[name] not in disabled))


def _resolution(decision: _Decision, version: int) -> pb.Resolution:
    resolution = pb.Resolution(channels=decision.channels, suppress_reason=decision.suppress_reason, version=version)
    mutes.set_end(resolution.end_time, decision.end_us)
    return resolution


def _is_enabled(category: Category, choice: pb.CategoryPreference | None) -> bool:
    # Whoever switched it off before it became mandatory gets it all the same.
    return category.mandatory or (category.enabled if choice is None else choice.enabled)


def _disabled(category: Category, choice: pb.CategoryPreference | None) -> set[notification_pb2.Channel.ValueType]:
    if choice is None:
        return set()
    return set(choice.disabled_channels).difference(_CHANNELS[name] for name in category.fixed_channels)


def change_page(request: pb.ListWishChangesRequest) -> int:
    """Returns how many changes to list.

    Raises:
        InvalidArgument: a number is negative.
    """
    numbers = (("change_number", request.change_number), ("page_size", request.page_size))
    if wrong := [Violation(field, "must not be negative") for field, number in numbers if number < 0]:
        raise invalid(wrong)
    return min(request.page_size or LARGEST_CHANGE_PAGE, LARGEST_CHANGE_PAGE)


def list_changes(changes: Changes) -> pb.ListWishChangesResponse:
    """Returns whose wishes changed, as it is answered."""
    return pb.ListWishChangesResponse(
        recipient_keys=[join_key(*owner) for owner in changes.owners],
        change_number=changes.change_number,
        more=changes.more,
        reset=changes.reset,
    )

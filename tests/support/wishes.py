"""Wishes for tests: a registry, updates, and what alice then gets and sees."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import notification_pb2
from mesh.times import timestamp_of
from svc_prefs import core
from svc_prefs.ports import Stored
from svc_prefs.registry import parse_registry

NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
REGISTRY = parse_registry(
    """
    [categories.billing]
    [categories.newsletter]
    enabled = false
    [categories.quiet]
    channels = ["inbox"]
    [categories.security]
    mandatory = true
    [categories.alarm]
    mandatory = true
    fixed_channels = ["live"]
    """,
    "test",
)
INBOX, LIVE = notification_pb2.CHANNEL_INBOX, notification_pb2.CHANNEL_LIVE


def update(
    *choices: pb.CategoryPreference, paths: tuple[str, ...] = (), etag: str = "", muted: Sequence[pb.Mute] = ()
) -> pb.UpdatePreferencesRequest:
    """An update of some choices and mutes."""
    request = pb.UpdatePreferencesRequest(preferences=pb.Preferences(categories=choices, etag=etag, mutes=muted))
    request.update_mask.paths.extend(paths)
    return request


def choice(category: str, enabled: bool = True, *disabled: notification_pb2.Channel.ValueType) -> pb.CategoryPreference:
    """One choice."""
    return pb.CategoryPreference(category=category, enabled=enabled, disabled_channels=disabled)


def mute(category: str = "", topic_id: str = "", hours: float | None = None) -> pb.Mute:
    """A mute that ends so many hours from now, or never."""
    end = None if hours is None else timestamp_of(NOW_US + round(hours * HOUR_US))
    return pb.Mute(category=category, topic_id=topic_id, expire_time=end)


def changed(request: pb.UpdatePreferencesRequest, stored: Stored | None = None, now_us: int = NOW_US) -> Stored:
    """Alice's preferences after an update."""
    return core.change(REGISTRY, request, "acme", "alice", stored, now_us)


def shown(stored: Stored | None, now_us: int = NOW_US) -> pb.Preferences:
    """What alice sees."""
    return core.show(REGISTRY, "alice", stored, now_us)


def switched_on(stored: Stored | None) -> dict[str, bool]:
    """Which categories alice gets, as she sees it."""
    return {one.category: one.enabled for one in shown(stored).categories}


def muted_of(stored: Stored | None, now_us: int = NOW_US) -> list[tuple[str, str]]:
    """What alice sees muted."""
    return [(one.category, one.topic_id) for one in shown(stored, now_us).mutes]


def choices_of(stored: Stored) -> set[str]:
    """The categories that alice chose about."""
    return set(core.wishes_of(stored).choices)


def resolve(
    category: str, *recipient_ids: str, topic_id: str = "", now_us: int = NOW_US, **stored: Stored
) -> pb.ItemResolution:
    """The decision for some recipients."""
    item = pb.ResolveItem(category=category, recipient_ids=recipient_ids, topic_id=topic_id)
    wishes = {recipient_id: core.wishes_of(one) for recipient_id, one in stored.items()}
    return core.resolve(REGISTRY, item, wishes, now_us)


def decision(category: str, stored: Stored | None, topic_id: str = "", now_us: int = NOW_US) -> pb.Resolution:
    """The decision for alice."""
    known = {} if stored is None else {"alice": stored}
    answer = resolve(category, "alice", topic_id=topic_id, now_us=now_us, **known)
    return answer.groups[0].resolution if answer.groups else answer.default_resolution

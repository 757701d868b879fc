"""One request and one answer of each method that has a REST form, in proto3 JSON, by the method's full name.

The generated pages show them, and scenarios send them: a request here is accepted by a development installation, sent
as recipient `ann` or as producer `acme/demo`. A route without an example makes no page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Example(NamedTuple):
    """A request, what answers it, and a request that the service refuses with INVALID_ARGUMENT or PERMISSION_DENIED."""

    # Any: JSON.
    request: Mapping[str, Any]
    response: Mapping[str, Any]
    refused: Mapping[str, Any]


# Whoever asks as a recipient in these requests.
RECIPIENT: Final = "ann"

_EVENT = {
    "category": "general",
    "audience": {"recipientIds": ["ann"], "topicIds": ["builds/main"]},
    "content": {"title": "Build 4711 has passed", "body": "3 min 12 s", "link": "/builds/4711"},
    "ttl": "86400s",
}
_UNTITLED = {**_EVENT, "content": {"title": "", "body": "3 min 12 s"}}
_UNKNOWN = {**_EVENT, "category": "weather"}
_ID = "019ad0c2-5f00-8a11-9c3d-0a1b2c3d4e50"
_RECEIPT = {"eventId": _ID, "acceptTime": "2026-11-29T17:23:20.123456Z"}
_ITEM = {
    "notification": {
        "notificationId": _ID,
        "revision": 1,
        "category": "general",
        "priority": "PRIORITY_NORMAL",
        "eventTime": "2026-11-29T17:23:20.123Z",
        "expireTime": "2026-11-30T17:23:20.123Z",
        "content": _EVENT["content"],
        "producerId": "demo",
        "topicId": "builds/main",
    },
    "state": "NOTIFICATION_STATE_NEW",
}
_UNREAD = {"unreadCount": 1, "headTime": "2026-11-29T17:23:20.250Z"}
_PREFERENCES = {
    "categories": [{"category": "billing", "enabled": True, "disabledChannels": ["CHANNEL_LIVE"]}],
    "mutes": [{"topicId": "builds/main"}],
}
_STORED = {
    "preferences": {
        "recipientId": "ann",
        "categories": [
            {"category": "general", "enabled": True},
            {"category": "billing", "enabled": True, "disabledChannels": ["CHANNEL_LIVE"]},
        ],
        "etag": "1",
        "mutes": [{"topicId": "builds/main"}],
    }
}
_SUBSCRIPTION = {"topicId": "builds/main", "createTime": "2026-11-29T17:20:00.000001Z"}

EXAMPLES: Final[Mapping[str, Example]] = {
    "heliograph.ingest.v1.IngestService.Publish": Example(
        {"event": _EVENT, "requestId": "7f0c1bde-52a4-4a3e-8f5e-2f6f2f1f9a01"}, _RECEIPT, {"event": _UNTITLED}
    ),
    "heliograph.ingest.v1.IngestService.BatchPublish": Example(
        {"requests": [{"event": _EVENT, "requestId": "7f0c1bde-52a4-4a3e-8f5e-2f6f2f1f9a02"}, {"event": _UNKNOWN}]},
        {
            "results": [
                {"accepted": _RECEIPT},
                {
                    "refused": {
                        "code": 3,
                        "reason": "CATEGORY_UNKNOWN",
                        "message": "event.category: is not a known category",
                        "metadata": {"category": "weather"},
                        "violations": [{"field": "event.category", "description": "is not a known category"}],
                    }
                },
            ]
        },
        {"requests": []},
    ),
    "heliograph.delivery.v1.InboxService.ListInbox": Example(
        {"pageSize": 20, "unreadOnly": True},
        {"items": [_ITEM], "unread": _UNREAD},
        {"pageSize": -1},
    ),
    "heliograph.delivery.v1.InboxService.GetUnread": Example({}, {"unread": _UNREAD}, {"recipientId": "ben"}),
    "heliograph.delivery.v1.InboxService.BatchMark": Example(
        {"marks": [{"kind": "MARK_KIND_READ", "refs": [{"notificationId": _ID, "revision": 1}]}]},
        {"unknownRefs": [{"notificationId": _ID, "revision": 1}]},
        {"marks": []},
    ),
    "heliograph.delivery.v1.InboxService.MarkAllRead": Example(
        {}, {"unread": {"headTime": _UNREAD["headTime"]}}, {"recipientId": "ben"}
    ),
    "heliograph.prefs.v1.PrefsService.GetPreferences": Example({}, _STORED, {"recipientId": "ben"}),
    "heliograph.prefs.v1.PrefsService.UpdatePreferences": Example(
        {"preferences": _PREFERENCES, "updateMask": "categories.billing,mutes"},
        _STORED,
        {"preferences": _PREFERENCES, "updateMask": "colours"},
    ),
    "heliograph.prefs.v1.TopicService.Subscribe": Example(
        {"topicIds": ["builds/main"]}, {"subscriptions": [_SUBSCRIPTION]}, {"topicIds": ["no spaces"]}
    ),
    "heliograph.prefs.v1.TopicService.Unsubscribe": Example(
        {"topicIds": ["builds/main"]}, {}, {"topicIds": ["no spaces"]}
    ),
    "heliograph.prefs.v1.TopicService.ListSubscriptions": Example(
        {"pageSize": 50}, {"subscriptions": [_SUBSCRIPTION]}, {"pageSize": -1}
    ),
}

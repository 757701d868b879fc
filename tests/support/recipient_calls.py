"""Every call of a recipient's app, with whatever request and credentials a test gives it."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb2
from heliograph.delivery.v1 import inbox_service_pb2_grpc as inbox_grpc
from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb2
from heliograph.prefs.v1 import prefs_service_pb2_grpc as prefs_grpc
from heliograph.type.v1 import notification_pb2
from tests.support.site import Metadata, Site


class RecipientCalls:
    """The methods that the contract opens to recipients, with the same credentials; each raises its `Failure`."""

    def __init__(self, site: Site, credentials: Metadata) -> None:
        self._site = site
        self._credentials = credentials

    async def list_inbox(self, request: inbox_pb2.ListInboxRequest) -> inbox_pb2.ListInboxResponse:
        """Lists an inbox."""
        return await self._site.call(
            "delivery", lambda door: inbox_grpc.InboxServiceStub(door).ListInbox, request, self._credentials
        )

    async def get_unread(self, request: inbox_pb2.GetUnreadRequest) -> inbox_pb2.GetUnreadResponse:
        """Counts what is unread."""
        return await self._site.call(
            "delivery", lambda door: inbox_grpc.InboxServiceStub(door).GetUnread, request, self._credentials
        )

    async def mark(self, marks: Sequence[notification_pb2.Mark]) -> inbox_pb2.BatchMarkResponse:
        """Marks notifications."""
        return await self._site.call(
            "delivery",
            lambda door: inbox_grpc.InboxServiceStub(door).BatchMark,
            inbox_pb2.BatchMarkRequest(marks=marks),
            self._credentials,
        )

    async def mark_all_read(self, request: inbox_pb2.MarkAllReadRequest) -> inbox_pb2.MarkAllReadResponse:
        """Marks the whole window read."""
        return await self._site.call(
            "delivery", lambda door: inbox_grpc.InboxServiceStub(door).MarkAllRead, request, self._credentials
        )

    async def get_preferences(self, request: prefs_pb2.GetPreferencesRequest) -> prefs_pb2.GetPreferencesResponse:
        """Reads preferences."""
        return await self._site.call(
            "prefs", lambda door: prefs_grpc.PrefsServiceStub(door).GetPreferences, request, self._credentials
        )

    async def update_preferences(
        self, request: prefs_pb2.UpdatePreferencesRequest
    ) -> prefs_pb2.UpdatePreferencesResponse:
        """Changes preferences."""
        return await self._site.call(
            "prefs", lambda door: prefs_grpc.PrefsServiceStub(door).UpdatePreferences, request, self._credentials
        )


def calls_of(site: Site, recipient: str, tenant: str = "acme") -> RecipientCalls:
    """Returns the calls of a recipient with a good token."""
    return RecipientCalls(site, site.bearer("recipient", recipient, tenant))


def mark_of(key: str, kind: notification_pb2.MarkKind.ValueType, *ids: str) -> notification_pb2.Mark:
    """Returns a mark for an inbox; an empty key means one's own."""
    refs = [notification_pb2.NotificationRef(notification_id=id_) for id_ in ids]
    return notification_pb2.Mark(recipient_key=key, kind=kind, refs=refs)

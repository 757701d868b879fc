"""What the gateway needs of other services.

Must not know how they are reached. Steps 6, 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from heliograph.delivery.v1.inbox_service_pb2 import ReplayInboxRequest, ReplayInboxResponse
from heliograph.presence.v1.presence_service_pb2 import (
    Node,
    RenewNodeResponse,
    ReportSessionsRequest,
    ReportSessionsResponse,
)
from heliograph.type.v1.notification_pb2 import Mark
from mesh.errors import InvalidArgument


class Presence(Protocol):
    """Where this node reports its sessions."""

    async def renew(self, node: Node) -> RenewNodeResponse:
        """Renews the node's lease.

        Raises:
            FailedPrecondition: LEASE_STALE, a newer epoch of the node is known.
            Failure: presence does not answer.
        """
        ...

    async def report(self, request: ReportSessionsRequest) -> ReportSessionsResponse:
        """Writes sessions.

        Raises:
            FailedPrecondition: LEASE_STALE, the node has no lease with this epoch.
            Failure: presence does not answer.
        """
        ...


class Inbox(Protocol):
    """Where rows are read and marks are stored."""

    async def replay(self, requests: Sequence[ReplayInboxRequest]) -> Sequence[ReplayInboxResponse | InvalidArgument]:
        """Returns a page of changes for each of up to 100 requests, or for the first of them only.

        A page is refused when its cursor (CURSOR_INVALID) or its token cannot be used.

        Raises:
            Failure: the inbox does not answer.
        """
        ...

    async def heads(self, recipient_keys: Sequence[str]) -> Sequence[int]:
        """Returns the newest stamps of up to 1,000 inboxes in µs, 0 for one without rows; raises Failure."""
        ...

    async def mark(self, marks: Sequence[Mark]) -> None:
        """Stores up to 500 marks with 5,000 ids; they are durable when it returns.

        Raises:
            InvalidArgument: one of them will never be stored.
            Failure: it is not known what is stored; repeating is harmless.
        """
        ...


class Topics(Protocol):
    """Where standing interests are kept."""

    async def change(self, recipient_key: str, topic_ids: Sequence[str], *, begin: bool) -> None:
        """Begins or ends a recipient's subscriptions; they are durable when it returns.

        Raises:
            InvalidArgument: a topic is malformed, or the recipient would have too many.
            Failure: it is not known what is stored; repeating is harmless.
        """
        ...

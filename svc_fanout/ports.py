"""What svc_fanout needs from other services."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.prefs.v1 import prefs_service_pb2, topic_service_pb2

# Done when delivery answered a batch: what it refused.
Answer: TypeAlias = asyncio.Future[Sequence[delivery_service_pb2.DispatchRefusal]]


class Prefs(Protocol):
    """Wishes, already decided, and topics. Raises `mesh.errors.Failure`, Unavailable when prefs does not answer."""

    async def resolve(self, request: prefs_service_pb2.BatchResolveRequest) -> prefs_service_pb2.BatchResolveResponse:
        """Decides for a page of recipients."""
        ...

    async def list_changes(
        self, request: prefs_service_pb2.ListWishChangesRequest
    ) -> prefs_service_pb2.ListWishChangesResponse:
        """Lists whose wishes changed since a number."""
        ...

    async def list_subscribers(
        self, request: topic_service_pb2.ListSubscribersRequest
    ) -> topic_service_pb2.ListSubscribersResponse:
        """Lists a page of a topic's subscribers, by recipient id; fewer than asked for: the end.

        Finds every subscription that was answered before the call.
        """
        ...


class Delivery(Protocol):
    """The way to delivery for one priority."""

    async def send(self, batch: delivery_service_pb2.DispatchBatch) -> Answer:
        """Sends a batch once the window has room for it; the batch's sequence is set here.

        The future is done when delivery answered: everything that the refusals do not name is durable. It raises
        Unavailable when the stream broke before; sending the batch again is harmless.
        """
        ...

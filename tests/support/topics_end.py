"""Prefs' keeper of topics as a gateway sees it: a real servicer that a test can make refuse or wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import grpc.aio

from heliograph.prefs.v1 import topic_service_pb2 as pb
from heliograph.prefs.v1 import topic_service_pb2_grpc as pb_grpc
from mesh.errors import Failure, Unimplemented
from mesh.telemetry import Telemetry
from tests.support.far_ends import serving

# Any: methods get their requests from the server.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_NOT_HERE = Unimplemented("this end serves gateways only", reason="")


class TopicsEnd(pb_grpc.TopicServiceServicer):
    """Keeps subscriptions in memory.

    Attributes:
        topics: by tenant and recipient.
        said: every change in the order of its arrival: "+" or "-", then the topics.
        refused: raised instead of an answer.
        open: changes are answered while it is set.
        running: calls that are not answered yet.
        most: the largest number of those so far.
    """

    def __init__(self) -> None:
        self.topics: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self.said: list[str] = []
        self.refused: Failure | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.running = self.most = 0

    async def Subscribe(self, request: pb.SubscribeRequest, context: _Context) -> pb.SubscribeResponse:
        """Keeps them."""
        await self._take("+", request.topic_ids)
        self.topics[request.tenant_id, request.recipient_id].update(request.topic_ids)
        return pb.SubscribeResponse(subscriptions=[pb.Subscription(topic_id=topic) for topic in request.topic_ids])

    async def Unsubscribe(self, request: pb.UnsubscribeRequest, context: _Context) -> pb.UnsubscribeResponse:
        """Drops them."""
        await self._take("-", request.topic_ids)
        self.topics[request.tenant_id, request.recipient_id].difference_update(request.topic_ids)
        return pb.UnsubscribeResponse()

    async def ListSubscriptions(self, request: object, context: _Context) -> NoReturn:
        """Is for recipients."""
        raise _NOT_HERE

    async def ListSubscribers(self, request: object, context: _Context) -> NoReturn:
        """Is for fanout."""
        raise _NOT_HERE

    async def _take(self, sign: str, topic_ids: Sequence[str]) -> None:
        self.said.append(sign + ",".join(topic_ids))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.open.wait()
        finally:
            self.running -= 1
        if self.refused is not None:
            raise self.refused

    def serving(self, run_dir: Path) -> contextlib.AbstractAsyncContextManager[Telemetry]:
        """Serves it as the process of prefs would."""
        service = pb.DESCRIPTOR.services_by_name["TopicService"]
        return serving(run_dir, "prefs", service, pb_grpc.add_TopicServiceServicer_to_server, self)

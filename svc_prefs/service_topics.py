"""TopicService: reads requests, asks core and the store, answers. No rules here: they are in `topics`."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc.aio

from heliograph.prefs.v1 import topic_service_pb2 as pb
from heliograph.prefs.v1 import topic_service_pb2_grpc as pb_grpc
from mesh.clock import Clock
from mesh.context import current
from svc_prefs import core, topics
from svc_prefs.metrics import Metrics
from svc_prefs.ports import TopicStore

# Any: no method reads requests or writes answers through its context.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_MICROS = 1_000_000


class TopicService(pb_grpc.TopicServiceServicer):
    """Serves recipients and gateways (their subscriptions) and fanout (a topic's subscribers)."""

    def __init__(self, *, store: TopicStore, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics

    async def Subscribe(self, request: pb.SubscribeRequest, context: _Context) -> pb.SubscribeResponse:
        """Subscribes a recipient to topics."""
        tenant_id, recipient_id = _acting_for(request.recipient_id, request.tenant_id)
        topics.check_owner(tenant_id, recipient_id)
        topic_ids = topics.check_topics(request.topic_ids)
        most = topics.LARGEST_SUBSCRIPTIONS
        now_us = round(self._clock.wall() * _MICROS)
        subscribed = await self._store.subscribe(tenant_id, recipient_id, topic_ids, now_us=now_us, most=most)
        if subscribed is None:
            raise topics.too_many(most)
        self._metrics.subscribed.inc(len(subscribed))
        return pb.SubscribeResponse(subscriptions=[topics.show(one) for one in subscribed])

    async def Unsubscribe(self, request: pb.UnsubscribeRequest, context: _Context) -> pb.UnsubscribeResponse:
        """Ends subscriptions."""
        tenant_id, recipient_id = _acting_for(request.recipient_id, request.tenant_id)
        topic_ids = topics.check_topics(request.topic_ids)
        self._metrics.unsubscribed.inc(await self._store.unsubscribe(tenant_id, recipient_id, topic_ids))
        return pb.UnsubscribeResponse()

    async def ListSubscriptions(
        self, request: pb.ListSubscriptionsRequest, context: _Context
    ) -> pb.ListSubscriptionsResponse:
        """Lists a recipient's subscriptions."""
        tenant_id, recipient_id = _acting_for(request.recipient_id, request.tenant_id)
        after, page_size = topics.subscription_page(request)
        found = await self._store.list_subscriptions(tenant_id, recipient_id, after=after, limit=page_size + 1)
        return topics.list_page(found, page_size)

    async def ListSubscribers(
        self, request: pb.ListSubscribersRequest, context: _Context
    ) -> pb.ListSubscribersResponse:
        """Lists a topic's subscribers."""
        page_size = topics.subscriber_page(request)
        recipient_ids = await self._store.list_subscribers(
            request.tenant_id, request.topic_id, after=request.after_recipient_id, limit=page_size
        )
        self._metrics.subscribers.inc(len(recipient_ids))
        return pb.ListSubscribersResponse(recipient_ids=recipient_ids)


def _acting_for(recipient_id: str, tenant_id: str) -> tuple[str, str]:
    caller = current().caller
    return core.acting_for(
        role=caller.role, caller=(caller.tenant, caller.name), recipient_id=recipient_id, tenant_id=tenant_id
    )

"""The demo's wishes: topics that listeners subscribe to, the mute of one of them, and what Explain says of it.

Must not decide who follows what (`demo_events.py` does).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import httpx2

from bench.demo_events import Audience, Mute, topic_of
from bench.demo_listeners import Listener
from heliograph.delivery.v1 import delivery_service_pb2, delivery_service_pb2_grpc
from heliograph.type.v1 import plan_pb2
from heliograph_cli.connection import OPERATOR, Actor, Connection
from mesh.errors import NotFound

BY_SESSION, BY_REST = "through their sessions", "over REST"
AS_OPERATOR = Actor("operator", OPERATOR)

_EXPLAIN_LIMIT_S = 10.0
_POLL_S = 0.1


def follows_by_topic(index: int) -> bool:
    """Returns whether listener number so is subscribed to topics: every second pair of neighbours is."""
    return index % 4 in (0, 3)


def way_of(index: int) -> str:
    """Returns how a listener subscribes."""
    return BY_SESSION if index % 8 in (0, 3) else BY_REST


async def subscribe(listeners: Sequence[Listener], audience: Audience, rest: httpx2.AsyncClient) -> dict[str, int]:
    """Subscribes those who follow by topic; returns how many did it in which way.

    Raises:
        Failure: one through a session is not confirmed.
        httpx2.HTTPError: one over REST was refused.
    """
    found = {BY_SESSION: 0, BY_REST: 0}
    async with asyncio.TaskGroup() as group:
        for index, listener in enumerate(listeners):
            if listener.name not in audience.by_topic:
                continue
            topics = [topic_of(folder) for folder in audience.folders[listener.name]]
            found[way_of(index)] += 1
            if way_of(index) == BY_SESSION:
                group.create_task(listener.subscribe(topics))
            else:
                group.create_task(_subscribe_over_rest(rest, listener.token, topics))
    return found


async def set_mute(mute: Mute, token: str, rest: httpx2.AsyncClient) -> None:
    """Mutes a category until it is taken back.

    Raises:
        httpx2.HTTPError: it was refused.
    """
    body = {"preferences": {"mutes": [{"category": mute.category}]}}
    response = await rest.patch("/v1/preferences", json=body, headers={"authorization": f"Bearer {token}"})
    response.raise_for_status()


async def explain(connection: Connection, tenant: str, recipient: str, event_id: str) -> str:
    """Returns why a recipient got nothing of an event, as delivery tells an operator; "" when it was not kept back.

    Raises:
        Failure: the question is refused.
    """
    request = delivery_service_pb2.ExplainRequest(event_id=event_id, tenant_id=tenant, recipient_id=recipient)
    end = time.monotonic() + _EXPLAIN_LIMIT_S
    while True:
        try:
            answer = await connection.call(
                "delivery",
                lambda channel: delivery_service_pb2_grpc.DeliveryServiceStub(channel).Explain,
                request,
                AS_OPERATOR,
            )
        except NotFound:
            # It is accepted, and its turn may still come.
            if time.monotonic() > end:
                return ""
            await asyncio.sleep(_POLL_S)
            continue
        if not answer.suppress_reason:
            return ""
        return plan_pb2.SuppressReason.Name(answer.suppress_reason).removeprefix("SUPPRESS_REASON_").lower()


async def _subscribe_over_rest(rest: httpx2.AsyncClient, token: str, topics: Sequence[str]) -> None:
    response = await rest.post(
        "/v1/topics:subscribe", json={"topicIds": topics}, headers={"authorization": f"Bearer {token}"}
    )
    response.raise_for_status()

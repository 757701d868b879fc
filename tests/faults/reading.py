"""Reads what is there when all is quiet: every inbox, and what became of everything that was accepted.

It must not judge, and reads only what recipients and operators may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import grpc.aio

from heliograph.delivery.v1 import (
    delivery_service_pb2,
    delivery_service_pb2_grpc,
    inbox_service_pb2,
    inbox_service_pb2_grpc,
)
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.type.v1.notification_pb2 import NotificationState
from heliograph.type.v1.plan_pb2 import SuppressReason
from heliograph_cli.connection import Actor
from mesh.errors import NotFound
from tests.faults import canary, history
from tests.faults.history import Recorder

Req = TypeVar("Req")
Res = TypeVar("Res")

OPERATOR = Actor("operator", "checker")
_CALLS_AT_ONCE = 32


class Calls(Protocol):
    """The way into a cluster."""

    async def call(
        self,
        service: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Req, Res]],
        request: Req,
        actor: Actor,
    ) -> Res:
        """Makes a call as somebody; raises the `Failure` that it ends with."""
        ...


async def read_inboxes(
    calls: Calls,
    recipients: Sequence[str],
    accepted: Mapping[str, Sequence[str]],
    *,
    tenant: str,
    recorder: Recorder,
    clock: Callable[[], float],
) -> None:
    """Writes down every row, every count, and the terminal state of everything accepted.

    Args:
        calls: the way in.
        recipients: whose inboxes.
        accepted: event id → recipients.
        tenant: whose they all are.
        recorder: where it is written down.
        clock: of the history.
    """
    gate = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def one(recipient: str) -> None:
        async with gate:
            await _Inbox(calls, tenant, recipient, recorder, clock).read(accepted)

    await asyncio.gather(*(one(recipient) for recipient in recipients))


async def read_aside(calls: Calls, *, recorder: Recorder, clock: Callable[[], float]) -> None:
    """Writes down the records that fan-out could not read."""
    answer: fanout_service_pb2.ListParkedResponse = await calls.call(
        "fanout",
        lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).ListParked,
        fanout_service_pb2.ListParkedRequest(page_size=100),
        OPERATOR,
    )
    for record in answer.records:
        source = f"{record.lane}/{record.partition}/{record.offset}"
        recorder.add(
            history.Letter(
                at=clock(),
                tenant="",
                recipient="",
                notification_id="",
                reason=record.reason,
                size=record.size,
                source=source,
            )
        )


class _Inbox:
    def __init__(
        self, calls: Calls, tenant: str, recipient: str, recorder: Recorder, clock: Callable[[], float]
    ) -> None:
        self._calls = calls
        self._tenant = tenant
        self._recipient = recipient
        self._recorder = recorder
        self._now = clock

    async def read(self, accepted: Mapping[str, Sequence[str]]) -> None:
        answer: inbox_service_pb2.ListInboxResponse = await self._calls.call(
            "delivery",
            lambda channel: inbox_service_pb2_grpc.InboxServiceStub(channel).ListInbox,
            inbox_service_pb2.ListInboxRequest(page_size=200),
            Actor("recipient", self._recipient, self._tenant),
        )
        listed = set()
        for item in answer.items:
            id_ = item.notification.notification_id
            listed.add(id_)
            self._recorder.add(
                history.Row(
                    at=self._now(),
                    tenant=self._tenant,
                    recipient=self._recipient,
                    notification_id=id_,
                    nonce=canary.nonce_of(item.notification.content.body),
                    read=item.state == NotificationState.NOTIFICATION_STATE_READ,
                    new=item.state == NotificationState.NOTIFICATION_STATE_NEW,
                )
            )
            self._end(id_, "inboxed")
        self._recorder.add(
            history.Unread(
                at=self._now(),
                tenant=self._tenant,
                recipient=self._recipient,
                number=answer.unread.unread_count,
            )
        )
        for event_id, recipients in accepted.items():
            if self._recipient in recipients and event_id not in listed:
                self._end(event_id, *await self._explain(event_id))

    async def _explain(self, event_id: str) -> tuple[str, str]:
        request = delivery_service_pb2.ExplainRequest(
            event_id=event_id, tenant_id=self._tenant, recipient_id=self._recipient
        )
        try:
            answer: delivery_service_pb2.ExplainResponse = await self._calls.call(
                "delivery",
                lambda channel: delivery_service_pb2_grpc.DeliveryServiceStub(channel).Explain,
                request,
                OPERATOR,
            )
        except NotFound:
            # A row goes when twice as many newer ones are there; the checker looks whether they are.
            return "trimmed", ""
        if answer.suppress_reason == SuppressReason.SUPPRESS_REASON_EXPIRED:
            return "expired", ""
        if answer.suppress_reason:
            return "suppressed", str(answer.suppress_reason)
        steps = {step.decision for step in answer.steps}
        if "dead letter" in steps:
            return "dead", "dead letter"
        # There and not in the list: newer ones have pushed it out, or its time is over.
        return ("expired" if "expired" in steps else "trimmed") if "inboxed" in steps else "under way", ""

    def _end(self, notification_id: str, state: str, reason: str = "") -> None:
        self._recorder.add(
            history.Terminal(
                at=self._now(),
                tenant=self._tenant,
                recipient=self._recipient,
                notification_id=notification_id,
                state=state,
                reason=reason,
            )
        )

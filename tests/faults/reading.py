"""Reads what is there when all is quiet: every inbox, and what became of everything that was accepted.

It must not judge, and reads only what recipients and operators may.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import grpc.aio
import msgspec

from heliograph.delivery.v1 import (
    dead_letter_service_pb2,
    dead_letter_service_pb2_grpc,
    delivery_service_pb2,
    delivery_service_pb2_grpc,
    inbox_service_pb2,
    inbox_service_pb2_grpc,
)
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.presence.v1 import presence_service_pb2, presence_service_pb2_grpc
from heliograph.type.v1.notification_pb2 import Channel, NotificationState
from heliograph.type.v1.plan_pb2 import SuppressReason
from heliograph_cli.connection import Actor
from mesh.channel import Channels
from mesh.errors import NotFound
from mesh.ids import join_key
from tests.faults import canary, history
from tests.faults.actors import Screen
from tests.faults.history import Recorder

Req = TypeVar("Req")
Res = TypeVar("Res")

OPERATOR = Actor("operator", "checker")
_CALLS_AT_ONCE = 32
_CALL_LIMIT_S = 10.0
_PAGE = 500


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
    may_be_gone: Callable[[str, str], bool] = lambda _recipient, _event_id: True,
) -> None:
    """Writes down every row, every count, and the terminal state of everything accepted.

    Args:
        calls: the way in.
        recipients: whose inboxes.
        accepted: event id → recipients.
        tenant: whose they all are.
        recorder: where it is written down.
        clock: of the history.
        may_be_gone: whether newer rows may have pushed out this recipient's row of this event.
    """
    gate = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def one(recipient: str) -> None:
        async with gate:
            await _Inbox(calls, tenant, recipient, recorder, clock, may_be_gone).read(accepted)

    await asyncio.gather(*(one(recipient) for recipient in recipients))


async def read_aside(calls: Calls, *, recorder: Recorder, clock: Callable[[], float], since: float = 0.0) -> None:
    """Writes down the records that fan-out has put aside since a time, by the wall clock."""
    answer: fanout_service_pb2.ListParkedResponse = await calls.call(
        "fanout",
        lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).ListParked,
        fanout_service_pb2.ListParkedRequest(page_size=100),
        OPERATOR,
    )
    for record in answer.records:
        if record.park_time.ToNanoseconds() / 1e9 < since:
            continue
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


async def read_letters(
    calls: Calls,
    recipients: Iterable[str],
    *,
    tenant: str,
    recorder: Recorder,
    clock: Callable[[], float],
    wall: Callable[[], float] = time.time,
    redriven: Callable[[str], float | None] = lambda _id: None,
    left: bool = True,
) -> list[str]:
    """Writes down the dead letters of these recipients, and those of nobody; returns their ids.

    Args:
        calls: the way in.
        recipients: whose letters.
        tenant: whose they all are.
        recorder: where it is written down.
        clock: of the history.
        wall: what the clocks say by which letters are buried.
        redriven: when a letter was sent again by hand; None: never.
        left: nothing goes on any more.
    """
    found: list[str] = []
    own = {join_key(tenant, recipient): recipient for recipient in recipients}
    token = ""
    while True:
        answer: dead_letter_service_pb2.ListDeadLettersResponse = await calls.call(
            "delivery",
            lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).ListDeadLetters,
            dead_letter_service_pb2.ListDeadLettersRequest(page_size=_PAGE, page_token=token),
            OPERATOR,
        )
        for letter in answer.dead_letters:
            if not letter.recipient_key or letter.recipient_key in own:
                recipient = own.get(letter.recipient_key, "")
                age = max(0.0, wall() - letter.bury_time.ToNanoseconds() / 1e9)
                said = await _read_letter(calls, letter.dead_letter_id, tenant, recipient, clock() - age)
                redrive = redriven(letter.dead_letter_id)
                recorder.add(msgspec.structs.replace(said, redriven=redrive is not None, redrive=redrive, left=left))
                found.append(letter.dead_letter_id)
        token = answer.next_page_token
        if not token:
            return found


async def _read_letter(calls: Calls, letter_id: str, tenant: str, recipient: str, at: float) -> history.Letter:
    """Returns a letter that was buried at a time: what comes after that must not come."""
    answer: dead_letter_service_pb2.GetDeadLetterResponse = await calls.call(
        "delivery",
        lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).GetDeadLetter,
        dead_letter_service_pb2.GetDeadLetterRequest(dead_letter_id=letter_id),
        OPERATOR,
    )
    letter = answer.dead_letter
    is_row = letter.channel in (Channel.CHANNEL_UNSPECIFIED, Channel.CHANNEL_INBOX)
    return history.Letter(
        at=at,
        tenant=tenant if recipient else "",
        recipient=recipient,
        notification_id=letter.envelope.notification_id,
        reason=dead_letter_service_pb2.DeadLetterReason.Name(letter.reason),
        size=len(letter.original) or letter.left_out.size_bytes,
        # What has a name needs no place: its record was made for the letter.
        source=letter.lane_position or letter.recipient_key,
        channel=0 if is_row else int(letter.channel),
    )


async def lanes(calls: Calls) -> Sequence[fanout_service_pb2.LaneLag]:
    """Returns how far behind the reader of each lane is."""
    answer: fanout_service_pb2.GetLagResponse = await calls.call(
        "fanout",
        lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).GetLag,
        fanout_service_pb2.GetLagRequest(),
        OPERATOR,
    )
    return answer.lanes


async def read_lanes(calls: Calls, *, recorder: Recorder, clock: Callable[[], float]) -> None:
    """Writes down what is left in the lanes when all is quiet; the position itself is fan-out's own."""
    for lane in await lanes(calls):
        name = f"{lane.lane}/{lane.partition}"
        recorder.add(history.Position(at=clock(), lane=name, committed=0, first_unfinished=None, lag=lane.record_count))


async def registry(channels: Channels, screens: Sequence[Screen], *, clock: Callable[[], float]) -> history.Registry:
    """Returns who is connected, by presence as delivery sees it, and by the devices themselves.

    Args:
        channels: delivery's.
        screens: all devices.
        clock: of the history.
    """
    devices = [screen.device for screen in screens]
    keys = dict.fromkeys(join_key(device.tenant, device.recipient) for device in devices)
    answer = await presence_service_pb2_grpc.PresenceServiceStub(channels.unary("presence")).BatchGetPresence(
        presence_service_pb2.BatchGetPresenceRequest(recipient_keys=keys, with_sessions=True),
        timeout=_CALL_LIMIT_S,
        metadata=channels.metadata(),
    )
    known = [f"{one.recipient_key} {one.device_id}" for one in answer.sessions]
    real = [
        f"{join_key(screen.device.tenant, screen.device.recipient)} {screen.device.name}"
        for screen in screens
        if screen.subscriber.connected
    ]
    return history.Registry(at=clock(), by_presence=tuple(sorted(known)), by_sockets=tuple(sorted(real)))


class _Inbox:
    def __init__(
        self,
        calls: Calls,
        tenant: str,
        recipient: str,
        recorder: Recorder,
        clock: Callable[[], float],
        may_be_gone: Callable[[str, str], bool],
    ) -> None:
        self._calls = calls
        self._tenant = tenant
        self._recipient = recipient
        self._recorder = recorder
        self._now = clock
        self._may_be_gone = may_be_gone

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
            return self._pushed_out(event_id), ""
        if answer.suppress_reason == SuppressReason.SUPPRESS_REASON_EXPIRED:
            return "expired", ""
        if answer.suppress_reason:
            return "suppressed", str(answer.suppress_reason)
        steps = {step.decision for step in answer.steps}
        if "dead letter" in steps:
            return "dead", "dead letter"
        if "inboxed" not in steps:
            return "under way", ""
        # There and not in the list: newer ones have pushed it out, or its time is over.
        return "expired" if "expired" in steps else self._pushed_out(event_id), ""

    def _pushed_out(self, event_id: str) -> str:
        """A row goes when twice as many newer ones are there; the checker looks whether they are."""
        return "trimmed" if self._may_be_gone(self._recipient, event_id) else "gone, and nothing pushed it out"

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

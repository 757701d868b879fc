"""Events, wishes and a delivery for tests of fan-out: in-process adapters of its ports. Must not assert anything."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.ingest.v1 import event_record_pb2
from heliograph.prefs.v1 import prefs_service_pb2, topic_service_pb2
from heliograph.type.v1 import envelope_pb2, event_pb2, notification_pb2, plan_pb2, refusal_pb2
from mesh.errors import Failure, describe
from mesh.ids import derive_id, join_key, to_text
from mesh.lanes import Record
from mesh.times import set_micros
from svc_fanout.ports import Answer

BASE_MS = 1_700_000_000_000
LIVE = prefs_service_pb2.Resolution(channels=[notification_pb2.CHANNEL_INBOX, notification_pb2.CHANNEL_LIVE])
QUIET = prefs_service_pb2.Resolution(channels=[notification_pb2.CHANNEL_INBOX])
NOTHING = prefs_service_pb2.Resolution(suppress_reason=plan_pb2.SUPPRESS_REASON_OPTED_OUT)
MUTED = prefs_service_pb2.Resolution(suppress_reason=plan_pb2.SUPPRESS_REASON_MUTED)


def id_of(number: int) -> str:
    """The id of event `number`."""
    return to_text(derive_id(BASE_MS + number, [number.to_bytes(8, "big")], False))


def make_envelope(
    number: int,
    *,
    tenant_id: str = "acme",
    category: str = "general",
    content: bytes | None = None,
    expire_us: int | None = None,
) -> envelope_pb2.Envelope:
    """The envelope of event `number`."""
    envelope = envelope_pb2.Envelope(
        kind=envelope_pb2.ENVELOPE_KIND_NOTIFY,
        notification_id=id_of(number),
        event_id=id_of(number),
        revision=1,
        tenant_id=tenant_id,
        producer_id="demo",
        category=category,
        priority=notification_pb2.PRIORITY_NORMAL,
        notification=b"content %d" % number if content is None else content,
    )
    if expire_us is not None:
        set_micros(envelope.expire_time, expire_us)
    return envelope


def make_record(
    envelope: envelope_pb2.Envelope,
    recipient_ids: Sequence[str] = (),
    *,
    topic_ids: Sequence[str] = (),
    excluded: Sequence[str] = (),
) -> Record:
    """The envelope as it lies in a lane."""
    audience = event_pb2.Audience(recipient_ids=recipient_ids, topic_ids=topic_ids, excluded_recipient_ids=excluded)
    value = event_record_pb2.EventRecord(envelope=envelope, audience=audience).SerializeToString()
    return Record(envelope.event_id.encode(), value)


def refusal(index: int, failure: Failure) -> delivery_service_pb2.DispatchRefusal:
    """A refusal of one dispatch."""
    described = describe(failure, refusal_pb2.Refusal())
    return delivery_service_pb2.DispatchRefusal(dispatch_index=index, refusal=described)


class InProcessPrefs:
    """Implements `ports.Prefs`: one decision for all, and those who differ; subscribers; changes; or a failure.

    Attributes:
        others: decisions of recipients who differ, whatever leads to them.
        topics: subscribers by topic, of any tenant.
        muted: (topic, recipient) pairs that are muted.
        change_number: of the newest change; `change` makes one.
        requests: what it was asked to resolve.
        pages: which pages of subscribers it was asked for.
        polls: which changes it was asked for.
        failure: raised instead of any answer, until it is taken away.
    """

    def __init__(self, default: prefs_service_pb2.Resolution = LIVE) -> None:
        self.default = default
        self.others: dict[str, prefs_service_pb2.Resolution] = {}
        self.topics: dict[str, list[str]] = {}
        self.muted: set[tuple[str, str]] = set()
        self.change_number = 7
        self.reset = False
        self.requests: list[prefs_service_pb2.BatchResolveRequest] = []
        self.pages: list[topic_service_pb2.ListSubscribersRequest] = []
        self.polls: list[prefs_service_pb2.ListWishChangesRequest] = []
        self.failure: Failure | None = None
        self._changes: list[tuple[int, str]] = []

    def change(self, recipient_id: str, wish: prefs_service_pb2.Resolution, tenant_id: str = "acme") -> None:
        """Sets what a recipient wishes, as a change that can be listed."""
        self.others[recipient_id] = wish
        self.change_number += 1
        self._changes.append((self.change_number, join_key(tenant_id, recipient_id)))

    async def list_changes(
        self, request: prefs_service_pb2.ListWishChangesRequest
    ) -> prefs_service_pb2.ListWishChangesResponse:
        """See the port."""
        self.polls.append(request)
        if self.failure is not None:
            raise self.failure
        if self.reset:
            return prefs_service_pb2.ListWishChangesResponse(change_number=self.change_number, reset=True)
        size = request.page_size or 1_000
        found = [change for change in self._changes if change[0] > request.change_number]
        last = found[size - 1][0] if len(found) > size else self.change_number
        keys = list(dict.fromkeys(key for _, key in found[:size]))
        return prefs_service_pb2.ListWishChangesResponse(
            recipient_keys=keys, change_number=last, more=len(found) > size
        )

    async def list_subscribers(
        self, request: topic_service_pb2.ListSubscribersRequest
    ) -> topic_service_pb2.ListSubscribersResponse:
        """See the port."""
        self.pages.append(request)
        if self.failure is not None:
            raise self.failure
        subscribers = sorted(self.topics.get(request.topic_id, ()))
        start = bisect_right(subscribers, request.after_recipient_id)
        return topic_service_pb2.ListSubscribersResponse(recipient_ids=subscribers[start : start + request.page_size])

    async def resolve(self, request: prefs_service_pb2.BatchResolveRequest) -> prefs_service_pb2.BatchResolveResponse:
        """See the port."""
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        return self.decide(request)

    def decide(self, request: prefs_service_pb2.BatchResolveRequest) -> prefs_service_pb2.BatchResolveResponse:
        """Answers without keeping the question."""
        response = prefs_service_pb2.BatchResolveResponse(change_number=self.change_number)
        for item in request.items:
            resolved = response.items.add(default_resolution=self.default)
            groups: dict[bytes, list[str]] = {}
            for recipient_id in item.recipient_ids:
                if (item.topic_id, recipient_id) in self.muted:
                    groups.setdefault(MUTED.SerializeToString(), []).append(recipient_id)
                elif recipient_id in self.others:
                    groups.setdefault(self.others[recipient_id].SerializeToString(), []).append(recipient_id)
            for key, recipient_ids in groups.items():
                resolution = prefs_service_pb2.Resolution.FromString(key)
                resolved.groups.add(resolution=resolution, recipient_ids=recipient_ids)
        return response


class InProcessDelivery:
    """Implements `ports.Delivery`: keeps batches until a test answers them, or answers at once.

    Attributes:
        batches: what was sent, as it was when it was sent.
        reply: what a batch is answered with at once; None leaves that to the test.
    """

    def __init__(self) -> None:
        self.batches: list[delivery_service_pb2.DispatchBatch] = []
        self.reply: (
            Callable[[delivery_service_pb2.DispatchBatch], Sequence[delivery_service_pb2.DispatchRefusal]] | None
        ) = None
        self._answers: list[Answer] = []

    async def send(self, batch: delivery_service_pb2.DispatchBatch) -> Answer:
        """See the port."""
        batch.sequence = len(self.batches) + 1
        copy = delivery_service_pb2.DispatchBatch()
        copy.CopyFrom(batch)
        answer: Answer = asyncio.get_running_loop().create_future()
        self.batches.append(copy)
        self._answers.append(answer)
        if self.reply is not None:
            answer.set_result(self.reply(copy))
        return answer

    def answer(self, index: int, *refusals: delivery_service_pb2.DispatchRefusal) -> None:
        """Answers the batch that was sent as number `index`, from 0."""
        self._answers[index].set_result(refusals)

    def fail(self, index: int, failure: Failure) -> None:
        """Fails the batch that was sent as number `index`, as a broken stream does."""
        self._answers[index].set_exception(failure)

    def event_ids(self, index: int) -> list[str]:
        """The events of batch number `index`."""
        return [dispatch.envelope.event_id for dispatch in self.batches[index].dispatches]


def everything(batch: delivery_service_pb2.DispatchBatch) -> Sequence[delivery_service_pb2.DispatchRefusal]:
    """Takes a batch as it is."""
    return ()

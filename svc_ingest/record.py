"""The durable record of an accepted event, and the answer to its producer: each built and serialised once.

Path steps 1 and 3: what people see becomes bytes here and is passed on unread. Pure. Must not decide whether an event
is accepted, and copies known fields only: what this version does not know does not travel on.
"""

from __future__ import annotations

from typing import Final

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.ingest.v1 import event_record_pb2, ingest_service_pb2
from heliograph.type.v1 import envelope_pb2, notification_pb2
from mesh import ids
from mesh.lanes import Record
from mesh.times import set_micros
from svc_ingest.core import Draft
from svc_ingest.digest import DIGEST_VERSION
from svc_ingest.repeats import VALIDATED, Receipt

LANES: Final = {
    notification_pb2.PRIORITY_HIGH: "high",
    notification_pb2.PRIORITY_NORMAL: "normal",
    notification_pb2.PRIORITY_BULK: "bulk",
}
REVISION: Final = 1

_SECOND: Final = 1_000_000_000
_MILLI: Final = 1_000_000


class Origin(msgspec.Struct, frozen=True, gc=False):
    """What the call says about all of its events.

    Attributes:
        tenant_id: of the caller.
        producer_id: of the caller.
        traceparent: of the call.
        accept_time: ingest's clock.
    """

    tenant_id: str
    producer_id: str
    traceparent: str
    accept_time: Timestamp


def build_record(draft: Draft, origin: Origin, event_id: bytes, id_time_ms: int) -> Record:
    """Returns what is appended for an accepted event.

    Args:
        draft: the request.
        origin: where it comes from.
        event_id: its id.
        id_time_ms: the time that the id carries; the event's own time when the request has none.
    """
    event = draft.request.event
    event_text = ids.to_text(event_id)
    event_ns = id_time_ms * _MILLI if draft.event_ns is None else draft.event_ns
    expire_ns = event_ns + draft.ttl_ns if draft.expire_ns is None and draft.ttl_ns else draft.expire_ns
    event_time = _timestamp(event_ns)
    expire_time = None if expire_ns is None else _timestamp(expire_ns)
    # Repeated ids count once.
    recipient_ids = list(dict.fromkeys(event.audience.recipient_ids))
    topic_ids = list(dict.fromkeys(event.audience.topic_ids))
    notification = notification_pb2.Notification(
        notification_id=event_text,
        revision=REVISION,
        category=event.category,
        priority=draft.priority,
        event_time=event_time,
        expire_time=expire_time,
        producer_id=origin.producer_id,
        topic_id=topic_ids[0] if len(topic_ids) == 1 else "",
    )
    notification.content.CopyFrom(event.content)
    notification.content.DiscardUnknownFields()
    envelope = envelope_pb2.Envelope(
        kind=envelope_pb2.ENVELOPE_KIND_NOTIFY,
        notification_id=event_text,
        revision=REVISION,
        tenant_id=origin.tenant_id,
        producer_id=origin.producer_id,
        category=event.category,
        priority=draft.priority,
        event_time=event_time,
        expire_time=expire_time,
        notification=notification.SerializeToString(),
        traceparent=origin.traceparent,
        event_id=event_text,
        ordering_key=event.ordering_key,
        accept_time=origin.accept_time,
    )
    record = event_record_pb2.EventRecord(request_digest=draft.digest, digest_version=DIGEST_VERSION)
    record.envelope.CopyFrom(envelope)
    record.audience.recipient_ids.extend(recipient_ids)
    record.audience.topic_ids.extend(topic_ids)
    record.audience.excluded_recipient_ids.extend(dict.fromkeys(event.audience.excluded_recipient_ids))
    sole_recipient_id = recipient_ids[0] if len(recipient_ids) == 1 and not topic_ids else ""
    key = lane_key(origin.tenant_id, event.ordering_key, sole_recipient_id, event_text)
    return Record(key, record.SerializeToString())


def lane_key(tenant_id: str, ordering_key: str, sole_recipient_id: str, event_text: str) -> bytes:
    """Returns the key whose records keep their order: ordering key, else the sole recipient's, else the event's own.

    Keys of two tenants never meet.
    """
    own = ordering_key or sole_recipient_id
    return (ids.join_key(tenant_id, own) if own else event_text).encode()


def fill_answer(answer: ingest_service_pb2.PublishResponse, receipt: Receipt) -> None:
    """Fills in what the producer of an accepted event is told; of one that was only judged, nothing."""
    if receipt is VALIDATED:
        return
    answer.event_id = ids.to_text(receipt.event_id)
    set_micros(answer.accept_time, receipt.accept_micros)
    answer.replayed = receipt.replayed


def _timestamp(time_ns: int) -> Timestamp:
    seconds, nanos = divmod(time_ns, _SECOND)
    return Timestamp(seconds=seconds, nanos=nanos)

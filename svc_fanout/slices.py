"""A large audience in slices: what is written for one, what is sent for it, and where planning goes on after a crash.

Pure. Path step 4. A slice names its recipients with their plans, so whoever reads it decides nothing again, but that an
event's time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec
from google.protobuf.message import DecodeError

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.fanout.v1 import slice_record_pb2
from heliograph.type.v1 import plan_pb2
from mesh.errors import DataLoss
from mesh.times import set_micros
from svc_fanout import core
from svc_fanout.batching import Batch, batches
from svc_fanout.core import Event, Planned


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """How far the planning of one event has come.

    Attributes:
        event_id: the event, so that a mark never belongs to another one.
        slice_index: the first slice that is not written.
        after: the last recipient in the slices before it.
    """

    event_id: str
    slice_index: int
    after: str


def mark_of(notes: Mapping[int, bytes], event: Event) -> Mark | None:
    """Returns where the planning of an event goes on; None where it begins."""
    note = notes.get(event.position)
    if note is None:
        return None
    try:
        mark = msgspec.msgpack.decode(note, type=Mark)
    except msgspec.MsgspecError:
        return None
    return mark if mark.event_id == event.envelope.event_id else None


def note_of(mark: Mark) -> bytes:
    """Returns a mark as it is kept."""
    return msgspec.msgpack.encode(mark)


def cut(planned: Planned, first_index: int, redrive_us: int | None = None) -> list[slice_record_pb2.SliceRecord]:
    """Returns a decided part of an audience as slices; each of them makes one batch.

    Args:
        planned: the part.
        first_index: of its first slice.
        redrive_us: when an operator tried the event again.
    """
    records = []
    for index, batch in enumerate(batches([planned]), start=first_index):
        (dispatch,) = batch.message.dispatches
        records.append(
            slice_record_pb2.SliceRecord(
                envelope=dispatch.envelope, plans=batch.message.plans, groups=dispatch.groups, slice_index=index
            )
        )
        if redrive_us is not None:
            set_micros(records[-1].redrive_time, redrive_us)
    return records


def decode(value: bytes) -> slice_record_pb2.SliceRecord:
    """Returns the slice of a record.

    Raises:
        DataLoss: it is no slice, or of an event that this version cannot deliver.
    """
    try:
        record = slice_record_pb2.SliceRecord.FromString(value)
    except DecodeError as error:
        raise core.undecodable(str(error)) from None
    core.check_envelope(record.envelope)
    if not record.groups or any(not 0 <= group.plan_index < len(record.plans) for group in record.groups):
        raise DataLoss("slice record cannot be read: groups or plans are missing", reason="RECORD_UNDECODABLE")
    return record


def batch_of(position: int, record: slice_record_pb2.SliceRecord, now_us: int) -> Batch:
    """Returns what is sent for a slice."""
    message = delivery_service_pb2.DispatchBatch(plans=record.plans)
    message.dispatches.add(envelope=record.envelope, groups=record.groups)
    if core.is_expired(record.envelope, now_us):
        for plan in message.plans:
            if not plan.suppress_reason:
                plan.CopyFrom(plan_pb2.Plan(suppress_reason=plan_pb2.SUPPRESS_REASON_EXPIRED))
    return Batch(message, [position])


class Seen:
    """Slices that were sent in this life, so that one that was written twice is not sent twice.

    Told apart by their bytes: the same number may have other recipients where planning began again after a crash, and
    then both must go out.
    """

    def __init__(self, most: int = 1_000) -> None:
        self._most = most
        self._digests: dict[bytes, None] = {}

    def add(self, value: bytes) -> bool:
        """Notes a slice; says whether it is new."""
        digest = blake2b(value, digest_size=16).digest()
        if digest in self._digests:
            return False
        self._digests[digest] = None
        if len(self._digests) > self._most:
            del self._digests[next(iter(self._digests))]
        return True

"""What a delivery that is given up becomes: a dead letter with a derived id, its bytes and its history.

Path step 9. The original is the record that would bring the delivery back: the row that could not be written, or the
step that failed. Pure: time is an argument, no I/O.
"""

from __future__ import annotations

import hashlib
import struct
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from typing import Final

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from heliograph.delivery.v1 import lane_record_pb2
from heliograph.type.v1 import envelope_pb2, notification_pb2, plan_pb2
from mesh.errors import InvalidArgument, NotFound, Violation
from mesh.ids import derive_id, from_text, id_time_ms, join_key, split_key, to_text
from mesh.times import set_micros, timestamp_of
from svc_delivery import core, steps
from svc_delivery.ports import FollowUpRecord, RowKey
from svc_delivery.ports_channels import StepCell
from svc_delivery.ports_dead_letters import DeadLetterRecord, PageStart

LETTERS_A_PAGE: Final = 50
LARGEST_PAGE: Final = 500
LETTERS_A_CALL: Final = 500
# Every store takes so much in one write, and every call carries it: a letter that is larger would be buried for ever.
LARGEST_LETTER: Final = 1 << 20
# What is kept of each outcome where even the history is too large.
_LARGEST_OUTCOME: Final = 200
_LAST_ATTEMPTS: Final = 20

# version, time, id
_TOKEN: Final = struct.Struct(">BQ16s")
_VERSION: Final = 1

# ---------------------------------------------------------------- failures


def unknown(letter_id: str) -> NotFound:
    """There is no such dead letter, or it is gone."""
    return NotFound(f"no dead letter {letter_id}", reason="DEAD_LETTER_UNKNOWN", metadata={"dead_letter_id": letter_id})


def left_out(letter: pb.DeadLetter) -> str:
    """Says in one line why a letter without its bytes cannot be redriven."""
    known = letter.left_out
    return (
        f"its {known.size_bytes} bytes were too large to be kept (SHA-256 {known.sha256.hex()}): it cannot be redriven"
    )


def _bad_token() -> InvalidArgument:
    return core.invalid([Violation("page_token", "must be the token of the page before")])


# ---------------------------------------------------------------- burying


def store_refused(
    envelope: envelope_pb2.Envelope,
    recipient_id: str,
    plan: plan_pb2.Plan,
    attempts: Iterable[pb.Attempt],
    now_us: int,
) -> DeadLetterRecord:
    """A row that a healthy store kept refusing; the original writes it again."""
    record = lane_record_pb2.LaneRecord()
    record.row.envelope.CopyFrom(envelope)
    record.row.recipient_ids.append(recipient_id)
    record.row.plan.CopyFrom(plan)
    record.row.attempts.extend(attempts)
    key = RowKey(join_key(envelope.tenant_id, recipient_id), from_text(envelope.notification_id))
    letter = pb.DeadLetter(channel=notification_pb2.CHANNEL_INBOX, envelope=envelope, attempts=record.row.attempts)
    return _of_step(pb.DEAD_LETTER_REASON_STORE_REFUSED, key, letter, step_index=0, record=record, now_us=now_us)


def exhausted(
    follow_up: lane_record_pb2.FollowUp,
    plan: plan_pb2.Plan,
    step_index: int,
    *,
    cells: Sequence[StepCell],
    envelope: envelope_pb2.Envelope,
    now_us: int,
) -> DeadLetterRecord:
    """A step whose last try failed, or whose channel refused; the original takes the step anew."""
    record = lane_record_pb2.LaneRecord()
    record.follow_ups.plans.append(plan)
    record.follow_ups.items.append(follow_up)
    item = record.follow_ups.items[0]
    item.plan_index, item.step_index, item.try_count = 0, step_index, 0
    key = RowKey(follow_up.recipient_key, from_text(follow_up.ref.notification_id))
    of_step = [cell for cell in cells if cell.step_index == step_index]
    orders = [cell.time_us for cell in of_step if cell.attempt_number == steps.AGAIN]
    letter = pb.DeadLetter(
        channel=plan.steps[step_index].channel,
        envelope=envelope,
        attempts=[attempt_of(cell) for cell in of_step if cell.attempt_number != steps.AGAIN],
    )
    reason = pb.DEAD_LETTER_REASON_TRIES_EXHAUSTED
    return _of_step(reason, key, letter, step_index=step_index, record=record, now_us=now_us, orders=orders)


def unreadable(
    record: FollowUpRecord, why: str, *, reason: pb.DeadLetterReason.ValueType, epoch: str, now_us: int
) -> DeadLetterRecord:
    """A record of the retry lane that cannot be read, or that killed the process.

    Args:
        record: as the store has it.
        why: in one line for people.
        reason: UNDECODABLE or POISON.
        epoch: of the store: another store counts its records anew.
        now_us: wall clock.
    """
    place = record.origin or f"follow_ups/{record.record_id}"
    letter = pb.DeadLetter(lane_position=place)
    letter.attempts.add(attempt_number=1, outcome=why, attempt_time=timestamp_of(now_us))
    parts = [epoch.encode(), place.encode(), record.record]
    id_ = derive_id(record.due_us // 1_000, parts, False)
    return DeadLetterRecord(id_, reason, "", "", b"", now_us, *_bounded(letter, record.record))


def attempt_of(cell: StepCell) -> pb.Attempt:
    """What a cell says, as an operator sees it."""
    outcome = cell.outcome or "nobody answered"
    if cell.detail:
        outcome = f"{outcome}: {cell.detail}"
    return pb.Attempt(attempt_number=cell.attempt_number, attempt_time=timestamp_of(cell.time_us), outcome=outcome)


def _of_step(
    reason: pb.DeadLetterReason.ValueType,
    key: RowKey,
    letter: pb.DeadLetter,
    *,
    step_index: int,
    record: lane_record_pb2.LaneRecord,
    now_us: int,
    orders: Sequence[int] = (),
) -> DeadLetterRecord:
    said, original = _bounded(letter, record.SerializeToString(deterministic=True))
    parts = [key.recipient_key.encode(), key.notification_id, b"%d" % letter.channel, b"%d" % step_index]
    # After an order to take the step anew it is given up anew.
    parts += [b"%d" % time_us for time_us in orders]
    return DeadLetterRecord(
        letter_id=derive_id(id_time_ms(key.notification_id), parts, False),
        reason=reason,
        tenant_id=split_key(key.recipient_key)[0],
        recipient_key=key.recipient_key,
        notification_id=key.notification_id,
        bury_us=now_us,
        letter=said,
        original=original,
    )


def _bounded(letter: pb.DeadLetter, original: bytes) -> tuple[bytes, bytes]:
    """Returns what is kept of a letter and of its bytes: of those that are too large, how many and their hash."""
    if letter.ByteSize() + len(original) <= LARGEST_LETTER:
        return letter.SerializeToString(), original
    kept = pb.DeadLetter.FromString(letter.SerializeToString())
    kept.left_out.size_bytes, kept.left_out.sha256 = len(original), hashlib.sha256(original).digest()
    if kept.ByteSize() > LARGEST_LETTER:
        kept.envelope.ClearField("notification")
    if kept.ByteSize() > LARGEST_LETTER:
        names = letter.envelope
        kept.envelope.CopyFrom(
            envelope_pb2.Envelope(
                event_id=names.event_id, tenant_id=names.tenant_id, notification_id=names.notification_id
            )
        )
        del kept.attempts[:-_LAST_ATTEMPTS]
        for attempt in kept.attempts:
            attempt.outcome = attempt.outcome[:_LARGEST_OUTCOME]
    return kept.SerializeToString(), b""


# ---------------------------------------------------------------- showing


def show(record: DeadLetterRecord, *, whole: bool) -> pb.DeadLetter:
    """Returns a letter for operators; with its bytes and the event's only as a whole."""
    letter = pb.DeadLetter.FromString(record.letter)
    letter.dead_letter_id = to_text(record.letter_id)
    letter.reason = pb.DeadLetterReason.ValueType(record.reason)
    letter.recipient_key = record.recipient_key
    set_micros(letter.bury_time, record.bury_us)
    if whole:
        letter.original = record.original
    elif letter.HasField("envelope"):
        letter.envelope.ClearField("notification")
    return letter


def ids_of(texts: Sequence[str]) -> tuple[list[bytes], list[str]]:
    """Returns the ids that a call names, each once, and the texts that are no id: such letters are unknown.

    Raises:
        InvalidArgument: there are none or too many.
    """
    if not 1 <= len(texts) <= LETTERS_A_CALL:
        raise core.invalid([Violation("dead_letter_ids", f"must be 1 to {LETTERS_A_CALL}")])
    read = {text: id_of(text) for text in texts}
    return [id_ for id_ in read.values() if id_ is not None], [text for text, id_ in read.items() if id_ is None]


def id_of(text: str) -> bytes | None:
    """Returns the id of a text; None when it is none."""
    try:
        return from_text(text)
    except ValueError:
        return None


def page_size_of(asked: int) -> int:
    """Returns how many letters a page has.

    Raises:
        InvalidArgument: it is negative.
    """
    if asked < 0:
        raise core.invalid([Violation("page_size", "must not be negative")])
    return min(asked or LETTERS_A_PAGE, LARGEST_PAGE)


def read_token(token: str) -> PageStart | None:
    """Returns where a page begins.

    Raises:
        InvalidArgument: it is not a token of ours.
    """
    if not token:
        return None
    try:
        version, bury_us, letter_id = _TOKEN.unpack(b64decode(token.encode("ascii"), b"-_", validate=True))
    except (ValueError, struct.error):
        raise _bad_token() from None
    if version != _VERSION or bury_us >= 1 << 63:
        raise _bad_token()
    return PageStart(bury_us, letter_id)


def write_token(last: DeadLetterRecord) -> str:
    """Returns the token of the page behind a letter."""
    return urlsafe_b64encode(_TOKEN.pack(_VERSION, last.bury_us, last.letter_id)).decode("ascii")

"""Tells why a recipient got an event or did not: from the row, its steps, decisions, the retry lane and dead letters.

Path steps 5 to 9, as they are kept. For operators: it reads more than a delivery would. Must not guess: what is not
kept is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from heliograph.delivery.v1 import dead_letter_service_pb2, delivery_service_pb2, lane_record_pb2
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.errors import NotFound, Violation
from mesh.ids import from_text, join_key
from mesh.times import micros_of, set_micros
from svc_delivery import core, letters, records, steps
from svc_delivery.ports import AckLevel, DecisionWrite, FollowUpRecord, FollowUps, Inbox, RowKey, RowState
from svc_delivery.ports_channels import StepCell, Steps
from svc_delivery.ports_dead_letters import DeadLetterRecord, DeadLetters

# Records of the retry lane that are looked into for one question.
_RECORDS: Final = 200
_ACKS: Final = {AckLevel.RECEIVED: "received", AckLevel.FOREGROUND: "received in the foreground", AckLevel.SEEN: "seen"}


def unknown(event_id: str, recipient_key: str) -> NotFound:
    """Nothing is known of this event for this recipient."""
    return NotFound(
        f"nothing is known of {event_id} for {recipient_key}: not accepted, not planned yet, trimmed, or too old",
        reason="NOTIFICATION_UNKNOWN",
        metadata={"event_id": event_id, "recipient_key": recipient_key},
    )


class Known(msgspec.Struct, frozen=True):
    """Everything that is kept of one delivery."""

    row: RowState | None
    cells: Sequence[StepCell]
    decisions: Sequence[DecisionWrite]
    waiting: Sequence[tuple[int, records.Member | lane_record_pb2.RetryRow]]
    letters: Sequence[DeadLetterRecord]

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is known at all."""
        return self.row is None and not (self.decisions or self.waiting or self.letters)


class Explainer:
    """Answers operators."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        cells: Steps,
        follow_ups: FollowUps,
        dead_letters: DeadLetters,
        now_us: Callable[[], int],
    ) -> None:
        self._inbox = inbox
        self._cells = cells
        self._follow_ups = follow_ups
        self._dead_letters = dead_letters
        self._now_us = now_us

    async def explain(self, request: delivery_service_pb2.ExplainRequest) -> delivery_service_pb2.ExplainResponse:
        """Tells what is known.

        Raises:
            InvalidArgument: something is not named, or the id is malformed.
            NotFound: nothing is known.
            Unavailable: the store does not answer.
        """
        key = _key_of(request)
        # In the direction in which a delivery moves on, so that one which is written meanwhile is met where it goes.
        due = await self._follow_ups.containing(request.event_id.encode(), _RECORDS)
        buried = await self._dead_letters.about(key.recipient_key, key.notification_id)
        decisions = await self._inbox.decisions(request.tenant_id, key.notification_id)
        (cells,) = await self._cells.cells([key])
        (row,) = await self._inbox.states([key])
        known = Known(
            row=row,
            cells=cells,
            decisions=[one for one in decisions if request.recipient_id in one.recipient_ids],
            waiting=_waiting_for(key, request.recipient_id, due),
            letters=buried,
        )
        if known.is_nothing:
            raise unknown(request.event_id, key.recipient_key)
        return tell(known, self._now_us())


def tell(known: Known, now_us: int) -> delivery_service_pb2.ExplainResponse:
    """Puts what is known in order, oldest first; what has no time stays behind what it follows from."""
    found = [_Step(_accept_us(known), "accepted", "")]
    if known.row is not None:
        found += _of_row(known.row, now_us)
    found += [_Step(one.decide_us, "suppressed", _reason(one.suppress_reason)) for one in known.decisions]
    found += [_of_cell(cell) for cell in known.cells]
    found += [_of_waiting(due_us, one) for due_us, one in known.waiting]
    found += [_of_letter(letter) for letter in known.letters]
    response = delivery_service_pb2.ExplainResponse()
    if known.row is not None:
        response.state = core.state_of(known.row)
    elif known.decisions:
        response.suppress_reason = plan_pb2.SuppressReason.ValueType(known.decisions[-1].suppress_reason)
    for step in _in_order(found):
        told = response.steps.add(decision=step.decision, detail=step.detail)
        if step.time_us:
            set_micros(told.step_time, step.time_us)
    return response


class _Step(msgspec.Struct, frozen=True):
    """One thing that happened; 0 when its time is not kept."""

    time_us: int
    decision: str
    detail: str


def _in_order(found: Sequence[_Step]) -> list[_Step]:
    times: list[int] = []
    for step in found:
        times.append(step.time_us or (times[-1] if times else 0))
    return [step for _, _, step in sorted(zip(times, range(len(found)), found, strict=True), key=lambda one: one[:2])]


def _accept_us(known: Known) -> int:
    """When ingest accepted the event, where an envelope is kept; 0 where none is."""
    envelopes = [letters.show(letter, whole=False).envelope for letter in known.letters]
    envelopes += [one.envelope for _, one in known.waiting if isinstance(one, lane_record_pb2.RetryRow)]
    return next((micros_of(one.accept_time) for one in envelopes if one.HasField("accept_time")), 0)


def _of_row(row: RowState, now_us: int) -> list[_Step]:
    # A visible mark lifts the stamp: then the time of the write is not kept.
    written_us = row.stamp if row.stamp != row.mark_stamp else 0
    found = [_Step(written_us, "inboxed", f"revision {row.revision}")]
    if row.ack:
        found.append(_Step(0, "acked", _ACKS[AckLevel(row.ack)]))
    if row.read:
        found.append(_Step(row.mark_stamp, "read", ""))
    if row.hidden:
        found.append(_Step(row.mark_stamp, "hidden", ""))
    if row.expire_us <= now_us:
        found.append(_Step(row.expire_us, "expired", "it left the list"))
    return found


def _of_cell(cell: StepCell) -> _Step:
    if cell.attempt_number == steps.AGAIN:
        return _Step(cell.time_us, "redriven", f"step {cell.step_index}: {cell.detail}")
    attempt = letters.attempt_of(cell)
    decision = "retry" if cell.outcome == "retry" else "follow-up"
    return _Step(cell.time_us, decision, f"step {cell.step_index}, attempt {cell.attempt_number}: {attempt.outcome}")


def _of_waiting(due_us: int, waiting: records.Member | lane_record_pb2.RetryRow) -> _Step:
    if isinstance(waiting, lane_record_pb2.RetryRow):
        tried = waiting.attempts[-1].outcome if waiting.attempts else ""
        return _Step(due_us, "retry", f"the row is written again then; tries so far: {len(waiting.attempts)}; {tried}")
    step = waiting.plan.steps[waiting.follow_up.step_index]
    return _Step(
        due_us,
        "follow-up",
        f"looked at then; taken so far: step {waiting.follow_up.step_index} ({_channel(step.channel)}), "
        f"tries again: {waiting.follow_up.try_count}",
    )


def _of_letter(letter: DeadLetterRecord) -> _Step:
    shown = letters.show(letter, whole=False)
    reason = dead_letter_service_pb2.DeadLetterReason.Name(shown.reason).removeprefix("DEAD_LETTER_REASON_").lower()
    detail = f"{reason}, {_channel(shown.channel)}: {shown.dead_letter_id}"
    return _Step(letter.bury_us, "dead letter", detail)


def _waiting_for(
    key: RowKey, recipient_id: str, due: Sequence[FollowUpRecord]
) -> list[tuple[int, records.Member | lane_record_pb2.RetryRow]]:
    """Picks out of the retry lane what is about one delivery; what cannot be read is told by its dead letter."""
    found: list[tuple[int, records.Member | lane_record_pb2.RetryRow]] = []
    for record in due:
        try:
            read = records.read(record.record)
        except (DecodeError, ValueError):
            continue
        if isinstance(read, list):
            found += [(record.due_us, member) for member in read if member.key == key]
        elif recipient_id in read.recipient_ids and _key_of_row(read, recipient_id) == key:
            found.append((record.due_us, read))
    return found


def _key_of_row(row: lane_record_pb2.RetryRow, recipient_id: str) -> RowKey:
    return RowKey(join_key(row.envelope.tenant_id, recipient_id), from_text(row.envelope.notification_id))


def _key_of(request: delivery_service_pb2.ExplainRequest) -> RowKey:
    named = {"tenant_id": request.tenant_id, "recipient_id": request.recipient_id}
    wrong = [Violation(field, "must be given") for field, value in named.items() if not value]
    try:
        event_id = from_text(request.event_id)
    except ValueError:
        event_id = b""
        wrong.append(Violation("event_id", "must be lower-case UUID text"))
    if wrong:
        raise core.invalid(wrong)
    return RowKey(join_key(request.tenant_id, request.recipient_id), event_id)


def _reason(number: int) -> str:
    known = plan_pb2.SuppressReason.DESCRIPTOR.values_by_number.get(number)
    return f"reason {number}" if known is None else known.name.removeprefix("SUPPRESS_REASON_").lower()


def _channel(number: int) -> str:
    known = notification_pb2.Channel.DESCRIPTOR.values_by_number.get(number)
    return f"channel {number}" if known is None else known.name.removeprefix("CHANNEL_").lower()

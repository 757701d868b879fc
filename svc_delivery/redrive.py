"""Sends dead letters on their way again, judged under today's wishes and expiry.

Path step 9. A row that was refused is written again; a step that was given up is taken anew; a record that could not be
read goes back to the retry lane when this version can read it. Whatever cannot be delivered stays where it is.

Must not decide who may ask: the contract does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from google.protobuf.message import DecodeError

from heliograph.delivery.v1 import dead_letter_service_pb2, delivery_service_pb2, lane_record_pb2
from heliograph.type.v1 import envelope_pb2, plan_pb2
from mesh.ids import split_key, to_text
from mesh.telemetry import logger
from svc_delivery import intake, letters, records, retries, steps, wishes
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.ports import FollowUps, FollowUpWrite, Inbox, RowsRefused
from svc_delivery.ports_channels import Steps
from svc_delivery.ports_dead_letters import DeadLetterRecord, DeadLetters
from svc_delivery.records import Later, Member, envelope_of, notification_of
from svc_delivery.wishes import Question, Wishes
from svc_delivery.writes import FreshWriter

# Such records named nobody that could be judged; the retry lane judges them when it reads them.
_AS_THEY_ARE = frozenset(
    {dead_letter_service_pb2.DEAD_LETTER_REASON_UNDECODABLE, dead_letter_service_pb2.DEAD_LETTER_REASON_POISON}
)


class Refusal(msgspec.Struct, frozen=True):
    """A letter that is not sent on its way, and why."""

    letter_id: bytes
    why: str


class _Case(msgspec.Struct):
    """A letter that can be read, and whom it is for."""

    letter: DeadLetterRecord
    envelope: envelope_pb2.Envelope
    row: lane_record_pb2.RetryRow | None = None
    member: Member | None = None
    plan: plan_pb2.Plan | None = None

    @property
    def recipient_id(self) -> str:
        return split_key(self.letter.recipient_key)[1]


class Redriver:
    """Judges dead letters and brings those back that can be delivered."""

    def __init__(
        self,
        *,
        dead_letters: DeadLetters,
        follow_ups: FollowUps,
        inbox: Inbox,
        cells: Steps,
        writer: FreshWriter,
        wishes: Wishes,
        offers: Offers,
        metrics: Metrics,
        now_us: Callable[[], int],
    ) -> None:
        """Holds on to its parts.

        Args:
            dead_letters: where they lie.
            follow_ups: the retry lane.
            inbox: rows and contents.
            cells: the steps map of rows.
            writer: writes rows again.
            wishes: what recipients want today.
            offers: hears of rows that are durable.
            metrics: counts.
            now_us: the wall clock.
        """
        self._dead_letters = dead_letters
        self._follow_ups = follow_ups
        self._inbox = inbox
        self._cells = cells
        self._writer = writer
        self._wishes = wishes
        self._offers = offers
        self._metrics = metrics
        self._now_us = now_us
        self._log = logger()

    async def redrive(self, letter_ids: Sequence[bytes], *, validate_only: bool) -> list[Refusal]:
        """Sends letters on their way; returns those that do not go. Each letter goes or stays as a whole.

        Raises:
            Failure: store or prefs does not answer; what went is gone from the list, the rest may be tried again.
        """
        found = dict(zip(letter_ids, await self._dead_letters.get(letter_ids), strict=True))
        refusals = [Refusal(letter_id, "it is gone") for letter_id, letter in found.items() if letter is None]
        cases: list[_Case] = []
        raw: list[DeadLetterRecord] = []
        for letter in found.values():
            if letter is None:
                continue
            said = dead_letter_service_pb2.DeadLetter.FromString(letter.letter)
            if said.HasField("left_out"):
                refusals.append(Refusal(letter.letter_id, letters.left_out(said)))
                continue
            try:
                case = self._read(letter)
            except (DecodeError, ValueError) as error:
                refusals.append(Refusal(letter.letter_id, f"this version cannot read it: {error}"))
            else:
                cases += [case] if case is not None else []
                raw += [letter] if case is None else []
        kept, not_deliverable = await self._judge(cases)
        refusals += not_deliverable
        if not validate_only:
            for letter in raw:
                await self._go(letter, [FollowUpWrite(self._now_us(), letter.original)])
            for case in kept:
                refusals += await self._bring_back(case)
        self._tell(len(letter_ids), refusals, validate_only)
        return refusals

    def _read(self, letter: DeadLetterRecord) -> _Case | None:
        """Reads what a letter brings back; None for a record that goes back as it is."""
        read = records.read(letter.original)
        if letter.reason in _AS_THEY_ARE:
            return None
        if isinstance(read, lane_record_pb2.RetryRow):
            return _Case(letter, read.envelope, row=read)
        (member,) = read
        return _Case(letter, envelope_pb2.Envelope(), member=member)

    async def _judge(self, cases: Sequence[_Case]) -> tuple[list[_Case], list[Refusal]]:
        refusals: list[Refusal] = []
        present = await self._with_rows(cases, refusals)
        questions = [Question(case.envelope, _topic_of(case.envelope), [case.recipient_id]) for case in present]
        kept: list[_Case] = []
        for case, answer in zip(present, await self._wishes.ask(questions), strict=True):
            resolution = answer.of(case.recipient_id)
            if reason := wishes.suppressed(resolution):
                name = plan_pb2.SuppressReason.Name(reason).removeprefix("SUPPRESS_REASON_").lower()
                refusals.append(Refusal(case.letter.letter_id, f"the recipient does not want it now: {name}"))
                continue
            if case.row is not None:
                case.plan = retries.plan_today(case.row.plan, resolution)
            elif case.member is not None:
                step = case.member.plan.steps[case.member.follow_up.step_index]
                if step.channel not in resolution.channels:
                    refusals.append(Refusal(case.letter.letter_id, "the recipient switched this channel off"))
                    continue
            kept.append(case)
        return kept, refusals

    async def _with_rows(self, cases: Sequence[_Case], refusals: list[Refusal]) -> list[_Case]:
        """Leaves out what is over: expired events, and steps of rows that are gone or whose story has ended."""
        now_us = self._now_us()
        members = [case.member for case in cases if case.member is not None]
        keys = [member.key for member in members]
        states = dict(zip(keys, await self._inbox.states(keys) if keys else [], strict=True))
        bodies = await self._inbox.bodies(keys) if keys else {}
        kept: list[_Case] = []
        for case in cases:
            why = ""
            if case.member is not None:
                body, row = bodies.get(case.member.key), states[case.member.key]
                end = steps.end_of(row if body is not None else None, now_us)
                if end is not None:
                    why = f"nothing is left to do: {end.reason.lower()}"
                elif body is not None:
                    case.envelope = envelope_of(case.member, body)
            elif intake.is_expired(case.envelope, now_us):
                why = "its event is over: expired"
            if why:
                refusals.append(Refusal(case.letter.letter_id, why))
            else:
                kept.append(case)
        return kept

    async def _bring_back(self, case: _Case) -> list[Refusal]:
        now_us = self._now_us()
        if case.member is not None:
            step_index = case.member.follow_up.step_index
            # Without its cells the step has its turn again, from the first try.
            await self._cells.forget(case.member.key, step_index)
            # Given up again it is another letter: this one goes in a moment, and must not take that along.
            await self._cells.note([(case.member.key, steps.again(step_index, now_us))])
            again = list(records.write({now_us: [Later(case.member, step_index, 0)]}))
            await self._go(case.letter, again)
            return []
        batch = delivery_service_pb2.DispatchBatch(plans=[case.plan] if case.plan is not None else [])
        dispatch = batch.dispatches.add(envelope=case.envelope)
        dispatch.groups.add(recipient_ids=[case.recipient_id], plan_index=0)
        taken = intake.take(batch, now_us)
        if taken.refusals:
            return [Refusal(case.letter.letter_id, failure.message) for _, failure in taken.refusals]
        try:
            await self._writer.write(taken.rows, taken.follow_up, taken.decisions)
        except RowsRefused as refusal:
            return [Refusal(case.letter.letter_id, f"the store refuses it still: {refusal.reasons[0]}")]
        await self._go(case.letter, taken.later)
        self._offers.add(taken.offers)
        return []

    async def _go(self, letter: DeadLetterRecord, again: Sequence[FollowUpWrite]) -> None:
        if again:
            await self._follow_ups.finish([], again)
        await self._dead_letters.remove([letter.letter_id])
        self._metrics.redriven.inc()

    def _tell(self, count: int, refusals: Sequence[Refusal], validate_only: bool) -> None:
        for refusal in refusals:
            self._log.info("dead_letter_stays", dead_letter_id=to_text(refusal.letter_id), error=refusal.why)
        event = "dead_letters_judged" if validate_only else "dead_letters_redriven"
        self._log.info(event, redriven_count=count - len(refusals), refused_count=len(refusals))


def _topic_of(envelope: envelope_pb2.Envelope) -> str:
    notification = notification_of(envelope.notification)
    return "" if notification is None else notification.topic_id

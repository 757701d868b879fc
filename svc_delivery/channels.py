"""Walks plans over channels beyond inbox and live: asks wishes again, calls senders, keeps what came of it in cells.

Path steps 8 and 9. A cell is written before a call and after it: whoever takes a delivery over makes the same attempt
under the same id, or sees its outcome. What is due together waits for its slowest send, some seconds at most.

Must not decide which step comes next: that is in `steps`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from heliograph.type.v1 import envelope_pb2, plan_pb2
from mesh.errors import Failure
from mesh.ids import split_key
from mesh.telemetry import logger
from svc_delivery import core, letters, steps, wishes
from svc_delivery.metrics import Metrics
from svc_delivery.ports import DecisionWrite, Inbox, RowState
from svc_delivery.ports_channels import Outcome, Refused, Retry, Senders, StepCell, Steps
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.records import Later, Member, envelope_of, notification_of
from svc_delivery.wishes import Question, Wishes

_SENDS_AT_ONCE: Final = 64


class Walked(msgspec.Struct):
    """What became of deliveries.

    Attributes:
        waiting: what is to be looked at again, by its time.
        letters: steps that are given up, by the letter's id.
        done_count: deliveries that need nothing more.
    """

    waiting: dict[int, list[Later]]
    letters: dict[bytes, DeadLetterRecord]
    done_count: int = 0

    def wait(self, delivery: _Delivery, until: steps.Wait) -> None:
        """Keeps a delivery for later."""
        later = Later(delivery.member, until.step_index, until.try_count)
        self.waiting.setdefault(until.due_us, []).append(later)


class _Delivery(msgspec.Struct):
    """A delivery on its walk: what was read of it, and the cells as they are now."""

    member: Member
    row: RowState | None
    envelope: envelope_pb2.Envelope
    topic_id: str
    cells: dict[tuple[int, int], StepCell]

    def keep(self, cell: StepCell) -> None:
        """Takes over what an attempt came to."""
        self.cells[cell.step_index, cell.attempt_number] = cell

    @property
    def in_order(self) -> list[StepCell]:
        """The cells in the order of steps and attempts."""
        return [self.cells[place] for place in sorted(self.cells)]


class _Turn(msgspec.Struct, frozen=True):
    """A step that has its turn now."""

    delivery: _Delivery
    take: steps.Take

    @property
    def channel(self) -> int:
        return self.delivery.member.plan.steps[self.take.step_index].channel


class PlanWalker:
    """The machine of plans with channels beyond inbox and live."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        cells: Steps,
        wishes: Wishes,
        senders: Senders,
        metrics: Metrics,
        now_us: Callable[[], int],
        send_timeout: float = 10.0,
    ) -> None:
        """Holds on to its parts.

        Args:
            inbox: rows, contents and decisions.
            cells: the steps map of rows.
            wishes: asked again before a late send.
            senders: channel → the way out over it; a plan's channel without one is skipped.
            metrics: counts.
            now_us: the wall clock.
            send_timeout: seconds after which nobody answered.
        """
        self._inbox = inbox
        self._cells = cells
        self._wishes = wishes
        self._senders = senders
        self._metrics = metrics
        self._now_us = now_us
        self._send_timeout = send_timeout
        self._room = asyncio.Semaphore(_SENDS_AT_ONCE)
        self._log = logger()

    async def walk(self, members: Sequence[Member]) -> Walked:
        """Takes every step that has its turn.

        Raises:
            Unavailable: the store does not answer; what was done stands in the cells.
        """
        walked = Walked({}, {})
        left = await self._read(_once(members)) if members else []
        while turns := self._turns(left, walked):
            wanted = await self._judge(turns, walked)
            left = await self._take(wanted, walked)
        return walked

    async def _read(self, members: Sequence[Member]) -> list[_Delivery]:
        keys = [member.key for member in members]
        rows = await self._inbox.states(keys)
        bodies = await self._inbox.bodies(keys)
        cells = await self._cells.cells(keys)
        found: list[_Delivery] = []
        for member, row, kept in zip(members, rows, cells, strict=True):
            body = bodies.get(member.key)
            notification = None if body is None else notification_of(body.content)
            found.append(
                _Delivery(
                    member,
                    None if body is None else row,
                    envelope_pb2.Envelope() if body is None else envelope_of(member, body),
                    "" if notification is None else notification.topic_id,
                    {(cell.step_index, cell.attempt_number): cell for cell in kept},
                )
            )
        return found

    def _turns(self, deliveries: Sequence[_Delivery], walked: Walked) -> list[_Turn]:
        now_us = self._now_us()
        turns: list[_Turn] = []
        for delivery in deliveries:
            member = delivery.member
            walk = steps.next_step(
                plan=member.plan,
                step_index=member.follow_up.step_index,
                row=delivery.row,
                cells=delivery.in_order,
                now_us=now_us,
            )
            for step_index in walk.given_up:
                letter = letters.exhausted(
                    member.follow_up,
                    member.plan,
                    step_index,
                    cells=delivery.in_order,
                    envelope=delivery.envelope,
                    now_us=now_us,
                )
                walked.letters.setdefault(letter.letter_id, letter)
            match walk.next:
                case steps.Take():
                    turns.append(_Turn(delivery, walk.next))
                case steps.Wait():
                    walked.wait(delivery, walk.next)
                case core.Done():
                    walked.done_count += 1
        return turns

    async def _judge(self, turns: Sequence[_Turn], walked: Walked) -> list[_Turn]:
        """Asks wishes again where a send is late; returns the turns that may be taken, skipped ones included."""
        late = [turn for turn in turns if turn.take.late]
        if not late:
            return list(turns)
        questions = [
            Question(turn.delivery.envelope, turn.delivery.topic_id, [_recipient_of(turn.delivery)]) for turn in late
        ]
        try:
            answers = await self._wishes.ask(questions)
        except Failure as failure:
            self._log.warning("wishes_not_asked", reason=failure.reason, error=failure.message)
            self._wait_for_an_answer(late, walked)
            return [turn for turn in turns if not turn.take.late]
        decisions: list[DecisionWrite] = []
        wanted = [turn for turn in turns if not turn.take.late]
        now_us = self._now_us()
        for turn, answer in zip(late, answers, strict=True):
            resolution = answer.of(_recipient_of(turn.delivery))
            if reason := wishes.suppressed(resolution):
                decisions.append(_decision(turn.delivery, reason, now_us))
                continue
            if turn.channel not in resolution.channels:
                turn.delivery.keep(steps.skipped(turn.take, "the recipient switched this channel off", now_us))
            wanted.append(turn)
        if decisions:
            await self._inbox.write([], stamp=now_us, decisions=decisions)
            self._metrics.attempts["suppressed"].inc(len(decisions))
            walked.done_count += len(decisions)
        return wanted

    async def _take(self, turns: Sequence[_Turn], walked: Walked) -> list[_Delivery]:
        """Makes attempts; returns the deliveries that go on with what came of them."""
        now_us = self._now_us()
        sending: list[_Turn] = []
        for turn in turns:
            place = (turn.take.step_index, turn.take.attempt_number)
            if (cell := turn.delivery.cells.get(place)) is not None and cell.outcome:
                continue
            if turn.channel not in self._senders:
                turn.delivery.keep(steps.skipped(turn.take, f"channel {turn.channel} has no sender here", now_us))
                continue
            turn.delivery.keep(steps.begun(turn.take, now_us))
            sending.append(turn)
        if turns:
            await self._note(turns)
        outcomes = await asyncio.gather(*[self._send(turn) for turn in sending])
        unanswered = [turn for turn, outcome in zip(sending, outcomes, strict=True) if outcome is None]
        self._wait_for_an_answer(unanswered, walked)
        settled: list[_Turn] = []
        for turn, outcome in zip(sending, outcomes, strict=True):
            if outcome is not None:
                turn.delivery.keep(steps.settled(turn.take, outcome, self._now_us()))
                settled.append(turn)
        if settled:
            await self._note(settled)
        waiting = {id(turn.delivery) for turn in unanswered}
        return [turn.delivery for turn in turns if id(turn.delivery) not in waiting]

    async def _note(self, turns: Sequence[_Turn]) -> None:
        noted = [(turn, turn.delivery.cells[turn.take.step_index, turn.take.attempt_number]) for turn in turns]
        await self._cells.note([(turn.delivery.member.key, cell) for turn, cell in noted])
        for _, cell in noted:
            if cell.outcome:
                self._metrics.attempts[cell.outcome].inc()

    async def _send(self, turn: _Turn) -> Outcome | None:
        """Makes one attempt; None when nobody answered."""
        delivery = turn.delivery
        attempt = steps.attempt_of(delivery.member.key, turn.channel, turn.take)
        try:
            async with self._room, asyncio.timeout(self._send_timeout):
                return await self._senders[turn.channel].send(
                    delivery.envelope, delivery.member.key.recipient_key, attempt
                )
        except TimeoutError:
            self._log.warning("send_unanswered", channel=turn.channel, attempt_id=attempt.attempt_id)
        except Failure as failure:
            self._log.warning("send_failed", channel=turn.channel, reason=failure.reason, error=failure.message)
            if not failure.retriable:
                return Refused(f"{failure.reason}: {failure.message}")
        except Exception as error:
            # A sender that breaks at one notification must not stop the others, nor be tried for ever.
            self._log.exception("sender_broken", channel=turn.channel, attempt_id=attempt.attempt_id)
            return Retry(f"the sender broke: {type(error).__name__}")
        return None

    def _wait_for_an_answer(self, turns: Sequence[_Turn], walked: Walked) -> None:
        for turn in turns:
            follow_up = turn.delivery.member.follow_up
            walked.wait(
                turn.delivery,
                steps.unanswered(step_index=follow_up.step_index, try_count=follow_up.try_count, now_us=self._now_us()),
            )
        self._metrics.attempts["unanswered"].inc(len(turns))


def _once(members: Sequence[Member]) -> list[Member]:
    """Leaves out repeated follow-ups of one delivery: the one furthest in its plan knows the most."""
    furthest: dict[tuple[str, bytes], Member] = {}
    for member in members:
        key = (member.key.recipient_key, member.key.notification_id)
        known = furthest.get(key)
        if known is None or known.follow_up.step_index < member.follow_up.step_index:
            furthest[key] = member
    return list(furthest.values())


def _recipient_of(delivery: _Delivery) -> str:
    return split_key(delivery.member.key.recipient_key)[1]


def _decision(delivery: _Delivery, reason: plan_pb2.SuppressReason.ValueType, now_us: int) -> DecisionWrite:
    return DecisionWrite(
        delivery.envelope.tenant_id,
        delivery.member.key.notification_id,
        reason,
        (_recipient_of(delivery),),
        now_us,
    )

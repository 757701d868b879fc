"""The rules of a plan's channels beyond inbox and live: which step has its turn, when it is tried again, when it ends.

Path steps 8 and 9. Inbox and live are taken when the row is written; the channels behind them have their turn one after
the other, as long as no ack ends the story. What a step has done stands in its cells, so whoever takes a delivery over
goes on where it stands. Pure: time is an argument, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.ids import derive_id, id_time_ms, to_text
from svc_delivery import core
from svc_delivery.ports import AckLevel, RowKey, RowState
from svc_delivery.ports_channels import Attempt, Outcome, Refused, Retry, Sent, StepCell

# Outcomes of cells; an empty one means that the attempt was begun and nobody answered.
SENT: Final = "sent"
RETRY: Final = "retry"
REFUSED: Final = "refused"
EXHAUSTED: Final = "exhausted"
SKIPPED: Final = "skipped"
# The attempt that stands for an operator's order to take a step anew.
AGAIN: Final = 0
# These end a step with a dead letter.
GIVEN_UP: Final = frozenset({REFUSED, EXHAUSTED})
# A send that comes so long after the row is late: wishes and expiry are asked again.
LATE_US: Final = 5_000_000

_OWN_CHANNELS: Final = frozenset({notification_pb2.CHANNEL_INBOX, notification_pb2.CHANNEL_LIVE})
_SECOND_US: Final = 1_000_000


class Take(msgspec.Struct, frozen=True, gc=False):
    """This step has its turn, with this attempt; `late` says that wishes are to be asked again before."""

    step_index: int
    attempt_number: int
    late: bool


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Nothing to do before this time; `step_index` and `try_count` say where the plan stands."""

    due_us: int
    step_index: int
    try_count: int


class Walk(msgspec.Struct, frozen=True):
    """What a delivery needs.

    Attributes:
        next: its next step, a time to wait for, or the end.
        given_up: steps that ended on the way and become dead letters.
    """

    next: core.Done | Take | Wait
    given_up: Sequence[int] = ()


Cells: TypeAlias = Sequence[StepCell]


def has_channels(plan: plan_pb2.Plan) -> bool:
    """Says whether a plan has channels beyond inbox and live."""
    return any(step.channel not in _OWN_CHANNELS for step in plan.steps)


def first_look(now_us: int, plan: plan_pb2.Plan) -> tuple[int, int] | None:
    """Returns the step that is taken with the row, and when the delivery is to be looked at; None for never.

    Without live nothing is waited for: the first channel has its turn at once.
    """
    due_us = core.first_due(now_us, plan)
    for index, step in enumerate(plan.steps):
        if due_us is not None and step.channel == notification_pb2.CHANNEL_LIVE:
            return index, due_us
    return (0, now_us) if has_channels(plan) else None


def next_step(
    *,
    plan: plan_pb2.Plan,
    step_index: int,
    row: RowState | None,
    cells: Cells,
    now_us: int,
    delays: Sequence[float] = core.RETRY_DELAYS,
) -> Walk:
    """Walks a plan from the step that was last taken to the one that has its turn.

    Args:
        plan: the delivery's channels.
        step_index: the step that was last taken.
        row: its row; None when it is not there any more.
        cells: what its steps have done.
        now_us: wall clock.
        delays: seconds from one try to the next.
    """
    if (end := end_of(row, now_us)) is not None:
        return Walk(end)
    given_up: list[int] = []
    for index in _from(plan, step_index):
        tried = [cell for cell in cells if cell.step_index == index]
        last = tried[-1] if tried else StepCell(index, 0, 0, RETRY)
        if last.outcome in GIVEN_UP:
            given_up.append(index)
        elif last.outcome == SENT:
            due_us = last.time_us + _window_us(plan.steps[index], delays)
            if _behind(plan, index) and now_us < due_us:
                return Walk(Wait(due_us, index, last.attempt_number), given_up)
        elif last.outcome == RETRY and now_us < last.due_us:
            return Walk(Wait(last.due_us, index, last.attempt_number), given_up)
        elif last.outcome in (RETRY, ""):
            number = last.attempt_number + 1 if last.outcome == RETRY else last.attempt_number
            return Walk(Take(index, number, late=_is_late(plan, index, number, row, now_us)), given_up)
    return Walk(core.Done("RESTS"), given_up)


def unanswered(*, step_index: int, try_count: int, now_us: int) -> Wait:
    """Nobody said anything to an attempt: that is no try, the plan stands where it stood."""
    return Wait(now_us + round(core.RETRY_DELAYS[0] * _SECOND_US), step_index, try_count)


def attempt_of(key: RowKey, channel: int, take: Take) -> Attempt:
    """Names an attempt; the same one has the same name whoever makes it."""
    step = [key.recipient_key.encode(), key.notification_id, b"%d" % channel, b"%d" % take.step_index]
    time_ms = id_time_ms(key.notification_id)
    return Attempt(
        attempt_id=to_text(derive_id(time_ms, [*step, b"%d" % take.attempt_number], False)),
        collapse_id=to_text(derive_id(time_ms, step, False)),
        attempt_number=take.attempt_number,
        channel=channel,
    )


def begun(take: Take, now_us: int) -> StepCell:
    """The cell of an attempt before its call."""
    return StepCell(take.step_index, take.attempt_number, now_us)


def again(step_index: int, now_us: int) -> StepCell:
    """The cell of a step that is to be taken anew, before its first attempt; letters tell its turns apart by it."""
    return StepCell(step_index, AGAIN, now_us, RETRY, "an operator sent it again")


def skipped(take: Take, reason: str, now_us: int) -> StepCell:
    """The cell of a step that is not taken."""
    return StepCell(take.step_index, take.attempt_number, now_us, SKIPPED, reason)


def settled(take: Take, outcome: Outcome, now_us: int, delays: Sequence[float] = core.RETRY_DELAYS) -> StepCell:
    """The cell of an attempt after its call; the schedule and the channel's own delay say when the next one is."""
    index, number = take.step_index, take.attempt_number
    match outcome:
        case Sent():
            return StepCell(index, number, now_us, SENT)
        case Refused(reason):
            return StepCell(index, number, now_us, REFUSED, reason)
        case Retry(reason, delay):
            if number > len(delays):
                return StepCell(index, number, now_us, EXHAUSTED, reason)
            wait_us = round(max(delays[number - 1], delay) * _SECOND_US)
            return StepCell(index, number, now_us, RETRY, reason, now_us + wait_us)


def end_of(row: RowState | None, now_us: int) -> core.Done | None:
    """Returns the end of a story: an ack that says more than "a device has it", or a row that nobody is to hear of."""
    if row is None:
        return core.Done("TRIMMED")
    if row.hidden:
        return core.Done("HIDDEN")
    if row.read or row.ack >= AckLevel.FOREGROUND:
        return core.Done("ACKED")
    if row.expire_us <= now_us:
        return core.Done("EXPIRED")
    return None


def _from(plan: plan_pb2.Plan, step_index: int) -> Iterable[int]:
    """The steps beyond inbox and live from this one on."""
    return (index for index in range(step_index, len(plan.steps)) if plan.steps[index].channel not in _OWN_CHANNELS)


def _behind(plan: plan_pb2.Plan, index: int) -> bool:
    """Whether there is a channel behind a step."""
    return next(iter(_from(plan, index + 1)), None) is not None


def _window_us(step: plan_pb2.PlanStep, delays: Sequence[float]) -> int:
    if not step.HasField("ack_window"):
        return round(delays[0] * _SECOND_US)
    return step.ack_window.seconds * _SECOND_US + step.ack_window.nanos // 1_000


def _is_late(plan: plan_pb2.Plan, index: int, number: int, row: RowState | None, now_us: int) -> bool:
    # Marks lift the stamp, so it alone does not tell: only the first attempt at the first step can be in time.
    first = number == 1 and index == next(iter(_from(plan, 0)), None)
    return not first or row is None or now_us - row.stamp > LATE_US

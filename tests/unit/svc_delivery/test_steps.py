"""The walk over a plan's channels: whose turn it is, when, and when it ends."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from heliograph.type.v1 import notification_pb2, plan_pb2
from svc_delivery import core, steps
from svc_delivery.ports import AckLevel, RowState
from svc_delivery.ports_channels import Outcome, Refused, Retry, Sent, StepCell
from svc_delivery.steps import Take, Wait, Walk
from tests.support.inbox import NOW_US, make_id, make_key
from tests.support.retrying import FIRST, SECOND, plan_of

SECOND_US = 1_000_000
PLAN = plan_of(FIRST, SECOND)
LIVE_INDEX, FIRST_INDEX, SECOND_INDEX = 1, 2, 3


def row(
    *, ack: int = 0, read: bool = False, hidden: bool = False, expire_us: int = NOW_US * 2, stamp: int = NOW_US
) -> RowState:
    """A row written now."""
    return RowState(make_id(1), 1, stamp, 0, ack, read, hidden, expire_us)


def walk(
    *cells: StepCell,
    plan: plan_pb2.Plan = PLAN,
    step_index: int = LIVE_INDEX,
    state: RowState | None = None,
    after_s: float = 10.0,
) -> Walk:
    """The walk of an unacked delivery, seconds after its row."""
    now_us = NOW_US + round(after_s * SECOND_US)
    return steps.next_step(plan=plan, step_index=step_index, row=state or row(), cells=cells, now_us=now_us)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (row(hidden=True), "HIDDEN"),
        (row(read=True), "ACKED"),
        (row(ack=AckLevel.FOREGROUND), "ACKED"),
        (row(ack=AckLevel.SEEN), "ACKED"),
        (row(expire_us=NOW_US + 10 * SECOND_US), "EXPIRED"),
    ],
    ids=["hidden", "read", "foreground", "seen", "expired"],
)
def test_a_story_that_has_ended_takes_no_step(state: RowState, reason: str) -> None:
    """Whatever its cells say."""
    assert walk(state=state) == Walk(core.Done(reason))
    assert walk(StepCell(FIRST_INDEX, 1, NOW_US, "exhausted"), state=state).given_up == ()


def test_a_row_that_is_gone_takes_no_step() -> None:
    """It was trimmed by newer ones."""
    found = steps.next_step(plan=PLAN, step_index=LIVE_INDEX, row=None, cells=[], now_us=NOW_US)
    assert found == Walk(core.Done("TRIMMED"))


def test_a_device_that_has_it_cancels_no_channel() -> None:
    """The person may not have seen it."""
    assert walk(state=row(ack=AckLevel.RECEIVED)).next == Take(FIRST_INDEX, 1, late=True)


def test_only_a_first_send_soon_after_the_row_is_not_late() -> None:
    """Five seconds; a repeated or a later step always asks again."""
    plan = plan_of(FIRST)
    assert walk(plan=plan, after_s=5.0).next == Take(FIRST_INDEX, 1, late=False)
    assert walk(plan=plan, after_s=5.1).next == Take(FIRST_INDEX, 1, late=True)
    failed = StepCell(FIRST_INDEX, 1, NOW_US, "retry", due_us=NOW_US)
    assert walk(failed, plan=plan, after_s=0.0).next == Take(FIRST_INDEX, 2, late=True)
    skipped = StepCell(FIRST_INDEX, 1, NOW_US, "skipped")
    assert walk(skipped, after_s=0.0).next == Take(SECOND_INDEX, 1, late=True)


def test_an_attempt_without_outcome_is_made_again_under_its_number() -> None:
    """The process that began it died, or nobody answered."""
    cells = [StepCell(FIRST_INDEX, 1, NOW_US, "retry"), StepCell(FIRST_INDEX, 2, NOW_US)]
    assert walk(*cells).next == Take(FIRST_INDEX, 2, late=True)


def test_a_sent_step_has_its_window_before_the_next_one() -> None:
    """By default ten seconds from the answer, else what the plan says; the last one waits for nothing."""
    sent = StepCell(FIRST_INDEX, 2, NOW_US, "sent")
    assert walk(sent, after_s=9.9).next == Wait(NOW_US + 10 * SECOND_US, FIRST_INDEX, 2)
    assert walk(sent).next == Take(SECOND_INDEX, 1, late=True)
    plan = plan_of(FIRST, SECOND)
    plan.steps[FIRST_INDEX].ack_window.CopyFrom(Duration(seconds=30, nanos=500_000_000))
    assert walk(sent, plan=plan).next == Wait(NOW_US + 30_500_000, FIRST_INDEX, 2)
    assert walk(StepCell(SECOND_INDEX, 1, NOW_US, "sent"), step_index=SECOND_INDEX).next == core.Done("RESTS")


def test_a_failed_try_waits_for_its_time() -> None:
    """Then it is the next attempt."""
    failed = StepCell(FIRST_INDEX, 1, NOW_US, "retry", due_us=NOW_US + 60 * SECOND_US)
    assert walk(failed).next == Wait(NOW_US + 60 * SECOND_US, FIRST_INDEX, 1)
    assert walk(failed, after_s=60.0).next == Take(FIRST_INDEX, 2, late=True)


@pytest.mark.parametrize("outcome", ["refused", "exhausted"])
def test_a_step_that_is_given_up_makes_room_for_the_next(outcome: str) -> None:
    """At once; and at the end of the plan the row rests in the inbox."""
    first, second = (StepCell(index, 1, NOW_US, outcome) for index in (FIRST_INDEX, SECOND_INDEX))
    assert walk(first) == Walk(Take(SECOND_INDEX, 1, late=True), [FIRST_INDEX])
    assert walk(first, second) == Walk(core.Done("RESTS"), [FIRST_INDEX, SECOND_INDEX])
    assert walk(first, second, step_index=SECOND_INDEX) == Walk(core.Done("RESTS"), [SECOND_INDEX])


@pytest.mark.parametrize(
    ("outcome", "number", "expected"),
    [
        (Sent(), 1, StepCell(2, 1, NOW_US, "sent")),
        (Refused("no"), 2, StepCell(2, 2, NOW_US, "refused", "no")),
        (Retry("busy"), 1, StepCell(2, 1, NOW_US, "retry", "busy", NOW_US + 10 * SECOND_US)),
        (Retry("busy"), 2, StepCell(2, 2, NOW_US, "retry", "busy", NOW_US + 60 * SECOND_US)),
        (Retry("busy"), 3, StepCell(2, 3, NOW_US, "retry", "busy", NOW_US + 600 * SECOND_US)),
        (Retry("busy"), 4, StepCell(2, 4, NOW_US, "exhausted", "busy")),
        (Retry("later", 5.0), 1, StepCell(2, 1, NOW_US, "retry", "later", NOW_US + 10 * SECOND_US)),
        (Retry("later", 3_600.0), 1, StepCell(2, 1, NOW_US, "retry", "later", NOW_US + 3_600 * SECOND_US)),
    ],
)
def test_the_schedule_of_tries(outcome: Outcome, number: int, expected: StepCell) -> None:
    """10 s, 1 min, 10 min, or later where the channel says so; the fourth failure is the last."""
    assert steps.settled(Take(2, number, late=False), outcome, NOW_US) == expected


def test_attempts_are_named_for_good() -> None:
    """The same attempt has the same id whoever makes it; attempts of a step share what devices collapse by."""
    one, again, other = (steps.attempt_of(make_key(1), FIRST, Take(2, number, late=False)) for number in (1, 1, 2))
    assert one == again
    assert (one.collapse_id, one.attempt_id != other.attempt_id) == (other.collapse_id, True)
    elsewhere = [
        steps.attempt_of(make_key(2), FIRST, Take(2, 1, late=False)),
        steps.attempt_of(make_key(1, recipient_key="acme/bob"), FIRST, Take(2, 1, late=False)),
        steps.attempt_of(make_key(1), SECOND, Take(2, 1, late=False)),
        steps.attempt_of(make_key(1), FIRST, Take(3, 1, late=False)),
    ]
    assert len({one.collapse_id, *(attempt.collapse_id for attempt in elsewhere)}) == 5


def test_where_and_when_a_plan_is_looked_at_first() -> None:
    """After live's window; at once where the first channel has nothing to wait for; never where the inbox is all."""
    inbox = plan_pb2.Plan(steps=[plan_pb2.PlanStep(channel=notification_pb2.CHANNEL_INBOX)])
    assert steps.first_look(NOW_US, inbox) is None
    assert steps.first_look(NOW_US, PLAN) == (LIVE_INDEX, NOW_US + 10 * SECOND_US)
    without_live = plan_of(FIRST)
    del without_live.steps[LIVE_INDEX]
    assert steps.first_look(NOW_US, without_live) == (0, NOW_US)
    assert (steps.has_channels(inbox), steps.has_channels(plan_of()), steps.has_channels(PLAN)) == (False, False, True)

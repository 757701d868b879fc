"""Channels that do not answer, refuse, break or hang, and what a sender is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from heliograph.type.v1 import envelope_pb2
from mesh.errors import InvalidArgument, Unavailable
from svc_delivery.ports_channels import Attempt, Outcome, Refused, Retry
from tests.support.dispatching import NOTHING, QUIET
from tests.support.retrying import FIRST, SECOND, Retrying, envelope_of, plan_of, retrying


@pytest.fixture
async def delivery(tmp_path: Path) -> AsyncIterator[Retrying]:
    """A delivery whose loops are not running."""
    async with retrying(tmp_path) as made:
        yield made


class SilentSender:
    """Takes a call and never answers."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    async def send(self, envelope: envelope_pb2.Envelope, recipient_key: str, attempt: Attempt) -> Outcome:
        """See the port."""
        self.attempts.append(attempt)
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_channel_that_does_not_answer_uses_up_no_try(delivery: Retrying) -> None:
    """An open breaker for an hour brings nothing nearer to a dead letter; then the same attempt is made."""
    down = Unavailable("breaker open", reason="PEER_UNAVAILABLE")
    sender = delivery.channel(FIRST, *[down] * 30)
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    for _ in range(31):
        await delivery.after(10.0)
    assert sender.attempts == [1] * 31
    assert len({attempt.attempt_id for _, attempt, _ in sender.calls}) == 1
    assert await delivery.steps(1) == [(2, 1, "sent")]
    assert await delivery.buried() == []


async def test_a_channel_that_hangs_is_left_alone_after_a_while(delivery: Retrying) -> None:
    """The others of its page are sent all the same."""
    silent = SilentSender()
    sender = delivery.channel(SECOND)
    delivery.channel(FIRST)
    delivery.senders[FIRST] = silent  # type: ignore[assignment]  # another sender of tests
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    await delivery.dispatch(envelope_of(2), plan=plan_of(SECOND))
    await delivery.after(10.0)
    assert ([one.attempt_number for one in silent.attempts], sender.attempts) == ([1], [1])
    assert await delivery.waiting() == [(10.0, "follow_ups")]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Refused("no such device"), "refused: no such device"),
        (InvalidArgument("bad token", reason="FIELD_INVALID"), "refused: FIELD_INVALID: bad token"),
    ],
    ids=["refused", "failure"],
)
async def test_a_refusal_ends_the_step_at_once(delivery: Retrying, outcome: Outcome | Exception, text: str) -> None:
    """With a dead letter that says why; the next channel has its turn in the same moment."""
    delivery.channel(FIRST, outcome)
    second = delivery.channel(SECOND)
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST, SECOND))
    await delivery.after(10.0)
    assert second.attempts == [1]
    (letter,) = await delivery.buried()
    assert [attempt.outcome for attempt in pb.DeadLetter.FromString(letter.letter).attempts] == [text]


async def test_a_sender_that_breaks_is_tried_as_often_as_one_that_is_busy(delivery: Retrying) -> None:
    """Neither for ever nor with harm to its neighbours."""
    sender = delivery.channel(FIRST, *[RuntimeError("a bug")] * 4)
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    for seconds in (10.0, 10.0, 60.0, 600.0):
        await delivery.after(seconds)
    assert sender.attempts == [1, 2, 3, 4]
    assert len(await delivery.buried()) == 1


async def test_a_channel_names_its_own_pause(delivery: Retrying) -> None:
    """A longer one than the schedule's is kept."""
    sender = delivery.channel(FIRST, Retry("slow down", 120.0))
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    await delivery.after(10.0)
    assert await delivery.waiting() == [(120.0, "follow_ups")]
    await delivery.after(120.0)
    assert sender.attempts == [1, 2]


async def test_prefs_that_do_not_answer_delay_a_late_send(delivery: Retrying) -> None:
    """Nobody is sent what he may not want, and no try is counted."""
    sender = delivery.channel(FIRST)
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    delivery.prefs.failure = Unavailable("no prefs", reason="PEER_UNAVAILABLE")
    for _ in range(5):
        await delivery.after(10.0)
        assert await delivery.waiting() == [(10.0, "follow_ups")]
    assert sender.calls == []
    delivery.prefs.failure = None
    await delivery.after(10.0)
    assert sender.attempts == [1]


async def test_a_channel_that_is_switched_off_is_passed_over(delivery: Retrying) -> None:
    """The category is wanted still: the next channel has its turn."""
    first, second = delivery.channel(FIRST), delivery.channel(SECOND)
    only_second = type(QUIET)()
    only_second.CopyFrom(QUIET)
    only_second.channels.append(SECOND)  # type: ignore[arg-type]  # a channel of tests
    delivery.prefs.others["alice"] = only_second
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST, SECOND))
    await delivery.after(10.0)
    assert (first.calls, second.attempts) == ([], [1])
    assert await delivery.steps(1) == [(2, 1, "skipped"), (3, 1, "sent")]


async def test_a_plan_without_live_sends_at_once_and_asks_nobody(delivery: Retrying) -> None:
    """Wishes were asked a moment ago; after five seconds they would be asked again."""
    sender = delivery.channel(FIRST)
    plan = plan_of(FIRST)
    del plan.steps[1]
    delivery.prefs.others["alice"] = NOTHING
    stored = await delivery.dispatch(envelope_of(1), plan=plan)
    assert stored.offers == []
    await delivery.after(0.0)
    assert sender.attempts == [1]
    assert delivery.prefs.requests == []


async def test_plans_of_one_batch_are_looked_at_each_at_its_time(delivery: Retrying) -> None:
    """A channel that has its turn at once does not shorten another plan's ack window."""
    sender = delivery.channel(FIRST)
    at_once = plan_of(FIRST)
    del at_once.steps[1]
    await delivery.dispatch(envelope_of(1), plan=at_once)
    await delivery.dispatch(envelope_of(2), plan=plan_of(FIRST))
    assert [seconds for seconds, _ in await delivery.waiting()] == [0.0, 10.0]
    await delivery.after(0.0)
    assert len(sender.calls) == 1


async def test_a_repeated_batch_sends_once(delivery: Retrying) -> None:
    """Fanout's repetition after a crash has a second follow-up; the cells decide."""
    sender = delivery.channel(FIRST)
    for _ in range(3):
        await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    await delivery.after(10.0)
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    await delivery.after(10.0)
    assert sender.attempts == [1]
    assert await delivery.waiting() == []

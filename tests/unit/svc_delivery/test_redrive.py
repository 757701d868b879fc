"""Steps that an operator has taken anew: their letters, their cells, and what is told of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from svc_delivery.ports import FollowUpWrite
from svc_delivery.ports_channels import Refused
from tests.support.retrying import FIRST, Retrying, envelope_of, plan_of, retrying

_STEP = 2


@pytest.fixture
async def delivery(tmp_path: Path) -> AsyncIterator[Retrying]:
    """A delivery whose loops are not running."""
    async with retrying(tmp_path) as made:
        yield made


async def _given_up(delivery: Retrying) -> bytes:
    """A channel refuses an event; returns its letter."""
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    await delivery.after(10.0)
    (letter,) = await delivery.buried()
    return letter.letter_id


async def test_a_step_that_is_given_up_again_at_once_keeps_a_letter(
    delivery: Retrying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that answers late lets the whole step pass before the first letter goes: the second one stays."""
    sender = delivery.channel(FIRST, *[Refused("no such device")] * 2)
    first = await _given_up(delivery)
    remove = delivery.store.dead_letters.remove

    async def late(letter_ids: Sequence[bytes]) -> None:
        await delivery.after(0.25)
        await remove(letter_ids)

    monkeypatch.setattr(delivery.store.dead_letters, "remove", late)
    assert await delivery.redriver.redrive([first], validate_only=False) == []
    assert sender.attempts == [1, 1]
    (second,) = await delivery.buried()
    assert second.letter_id != first
    assert [one.attempt_number for one in pb.DeadLetter.FromString(second.letter).attempts] == [1]


async def test_whoever_gives_the_same_turn_up_writes_the_same_letter(delivery: Retrying) -> None:
    """A record that is read twice makes no second one, before an order to take the step anew or after it."""
    delivery.channel(FIRST, *[Refused("no such device")] * 2)
    first = await _given_up(delivery)
    waiting = await delivery.store.dead_letters.get([first])
    await delivery.redriver.redrive([first], validate_only=False)
    assert waiting[0] is not None
    record = waiting[0].original
    await delivery.after(0.25)
    (second,) = await delivery.buried()
    for _ in range(2):
        await delivery.store.follow_ups.finish([], [FollowUpWrite(delivery.now_us(), record)])
        await delivery.after(0.25)
    assert [one.letter_id for one in await delivery.buried()] == [second.letter_id]


async def test_an_explanation_tells_of_the_order(delivery: Retrying) -> None:
    """It stands between what was given up and what comes of it."""
    delivery.channel(FIRST, Refused("no such device"))
    await delivery.redriver.redrive([await _given_up(delivery)], validate_only=False)
    await delivery.after(0.25)
    assert await delivery.steps(1) == [(_STEP, 0, "retry"), (_STEP, 1, "sent")]
    told = [(step.decision, step.detail) for step in (await delivery.explained(1)).steps]
    assert told[-2:] == [
        ("redriven", f"step {_STEP}: an operator sent it again"),
        ("follow-up", f"step {_STEP}, attempt 1: sent"),
    ]

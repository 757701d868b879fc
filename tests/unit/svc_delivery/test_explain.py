"""An explanation that is asked for while the delivery moves on says where it is, whichever part is read just then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.type.v1 import notification_pb2
from mesh.errors import NotFound
from svc_delivery.explain import Explainer
from tests.support.backends import SqlitePoison
from tests.support.retrying import Retrying, envelope_of, retrying

# Before which of the reads that one question takes; at the last one none is left.
READS = range(6)
NEW = notification_pb2.NOTIFICATION_STATE_NEW
Move = Callable[[], Awaitable[object]]


class Turns:
    """Lets something happen just before the n-th of the reads that stand for one question."""

    def __init__(self, number: int, move: Move) -> None:
        self.left = number
        self._move = move

    async def take(self) -> None:
        """Counts a read that is about to begin."""
        if self.left == 0:
            await self._move()
        self.left -= 1


class Taking:
    """A port that counts its reads."""

    def __init__(self, port: object, turns: Turns) -> None:
        self._port = port
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        read = getattr(self._port, name)

        async def counted(*asked: object) -> object:
            await self._turns.take()
            return await read(*asked)

        return counted


@pytest.fixture
async def delivery(tmp_path: Path) -> AsyncIterator[Retrying]:
    """A delivery whose loops are not running."""
    async with retrying(tmp_path) as made:
        yield made


async def asked(delivery: Retrying, number: int, move: Move) -> delivery_service_pb2.ExplainResponse:
    """Asks about event 1 while something happens before the n-th read, and checks that it did or that none was left."""
    turns = Turns(number, move)
    store = delivery.store
    # Any: each stands for whatever port it is put before.
    inbox, cells, follow_ups, dead_letters = (
        cast(Any, Taking(port, turns)) for port in (store.inbox, store.steps, store.follow_ups, store.dead_letters)
    )
    delivery.explainer = Explainer(
        inbox=inbox, cells=cells, follow_ups=follow_ups, dead_letters=dead_letters, now_us=delivery.now_us
    )
    try:
        return await delivery.explained(1)
    finally:
        assert (turns.left < 0) == (number < max(READS)), "one question takes another number of reads"


def decisions(told: delivery_service_pb2.ExplainResponse) -> set[str]:
    """What is told, in no order."""
    return {step.decision for step in told.steps}


@pytest.mark.parametrize("number", READS)
async def test_an_event_that_is_written_meanwhile_is_unknown_or_in_the_inbox(delivery: Retrying, number: int) -> None:
    """Never a follow-up of a row that is not there."""
    try:
        told = await asked(delivery, number, lambda: delivery.dispatch(envelope_of(1)))
    except NotFound:
        assert number == max(READS)
    else:
        assert (told.state, "inboxed" in decisions(told)) == (NEW, True)


@pytest.mark.parametrize("number", READS)
async def test_a_row_that_is_written_late_meanwhile_waits_or_is_in_the_inbox(
    delivery: Retrying, tmp_path: Path, number: int
) -> None:
    """Until it is seen there the retry lane tells of it."""
    poison = SqlitePoison(tmp_path / "inbox.db")
    poison.refuse()
    await delivery.dispatch(envelope_of(1, category="poison"))
    poison.accept()
    told = await asked(delivery, number, lambda: delivery.after(10.0))
    assert told.state == NEW or "retry" in decisions(told)


@pytest.mark.parametrize("number", READS)
async def test_a_dead_letter_that_is_redriven_meanwhile_is_buried_or_in_the_inbox(
    delivery: Retrying, tmp_path: Path, number: int
) -> None:
    """It is never unknown."""
    poison = SqlitePoison(tmp_path / "inbox.db")
    poison.refuse()
    await delivery.dispatch(envelope_of(1, category="poison"))
    for seconds in (10.0, 60.0, 600.0):
        await delivery.after(seconds)
    (letter,) = await delivery.buried()
    poison.accept()
    told = await asked(delivery, number, lambda: delivery.redriver.redrive([letter.letter_id], validate_only=False))
    assert told.state == NEW or "dead letter" in decisions(told)

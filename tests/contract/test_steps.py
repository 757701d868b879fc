"""What every store of steps promises; see `svc_delivery.ports_channels.Steps`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_delivery.ports_channels import StepCell
from svc_delivery.store import InboxStore
from tests.support.backends import Opener, inbox_backends
from tests.support.inbox import BOB, DAY_US, NOW_US, make_key, make_row


@pytest.fixture(params=inbox_backends())
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[InboxStore]:
    """Opens the same store again and again."""
    opened: Opener[InboxStore] = request.param(tmp_path)
    return opened


@pytest.fixture
async def store(opener: Opener[InboxStore]) -> AsyncIterator[InboxStore]:
    """A store of each kind with one row."""
    async with opener() as opened:
        await opened.inbox.write([make_row(1)], stamp=NOW_US)
        yield opened


async def cells(store: InboxStore, number: int = 1) -> list[StepCell]:
    """The cells of a row."""
    (found,) = await store.steps.cells([make_key(number)])
    return list(found)


async def test_cells_come_back_in_the_order_of_steps_and_attempts(store: InboxStore) -> None:
    """Whatever the order they were noted in; another row has its own."""
    noted = [StepCell(3, 1, 7, "sent"), StepCell(2, 2, 6, "retry", "busy", 99), StepCell(2, 1, 5)]
    await store.steps.note([(make_key(1), cell) for cell in noted])
    assert await cells(store) == noted[::-1]
    assert list(await store.steps.cells([make_key(1, recipient_key=BOB), make_key(2)])) == [[], []]


async def test_an_outcome_stays(store: InboxStore) -> None:
    """It replaces the note before the call; a late note of a call that was begun does not take it back."""
    await store.steps.note([(make_key(1), StepCell(2, 1, 5))])
    await store.steps.note([(make_key(1), StepCell(2, 1, 8, "sent"))])
    await store.steps.note([(make_key(1), StepCell(2, 1, 9))])
    assert await cells(store) == [StepCell(2, 1, 8, "sent")]


async def test_cells_go_with_their_row(store: InboxStore) -> None:
    """What has no row gets none, and what is swept takes its cells along: a new row with this id starts anew."""
    await store.steps.note([(make_key(5), StepCell(2, 1, 5)), (make_key(1), StepCell(2, 1, 5))])
    await store.inbox.write([make_row(5)], stamp=NOW_US + 80 * DAY_US)
    assert await cells(store, 5) == []
    assert len(await cells(store)) == 1
    while await store.inbox.sweep(NOW_US + 91 * DAY_US, 100):
        continue
    await store.inbox.write([make_row(1)], stamp=NOW_US + 91 * DAY_US)
    assert await cells(store) == []


async def test_a_second_revision_keeps_the_cells(store: InboxStore) -> None:
    """Content is replaced, what was done with the notification is not."""
    await store.steps.note([(make_key(1), StepCell(2, 1, 5, "sent"))])
    await store.inbox.write([make_row(1, revision=2)], stamp=NOW_US + 1)
    assert await cells(store) == [StepCell(2, 1, 5, "sent")]


async def test_a_forgotten_step_has_no_cells(store: InboxStore) -> None:
    """The others stay."""
    await store.steps.note([(make_key(1), StepCell(step, attempt, 5)) for step in (2, 3) for attempt in (1, 2)])
    await store.steps.forget(make_key(1), 2)
    await store.steps.forget(make_key(1), 2)
    assert [(cell.step_index, cell.attempt_number) for cell in await cells(store)] == [(3, 1), (3, 2)]

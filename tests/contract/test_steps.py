"""What every store of steps promises; see `svc_delivery.ports_channels.Steps`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.ids import id_time_ms
from svc_delivery.ports_channels import StepCell
from svc_delivery.store import InboxStore
from tests.support.backends import Opener, expiring_inbox_backends, inbox_backends, swept_inbox_backends
from tests.support.inbox import BOB, DAY_US, NOW_US, make_id, make_key, make_row
from tests.support.wait import until


@pytest.fixture(params=inbox_backends())
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[InboxStore]:
    """Opens the same store again and again."""
    opened: Opener[InboxStore] = request.param(tmp_path)
    return opened


@pytest.fixture(params=swept_inbox_backends())
async def swept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[InboxStore]:
    """A store of each kind that forgets when it is swept."""
    async with request.param(tmp_path)() as opened:
        yield opened


@pytest.fixture(params=expiring_inbox_backends())
async def expiring(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[InboxStore]:
    """A store of each kind that forgets by itself."""
    async with request.param(tmp_path)() as opened:
        yield opened


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


async def test_an_order_to_take_a_step_anew_stands_before_its_attempts(store: InboxStore) -> None:
    """It goes with them when they are forgotten, and the next order is there instead."""
    key = make_key(1)
    for order_us in (20, 40):
        await store.steps.forget(key, 2)
        assert await cells(store) == []
        noted = [StepCell(2, 0, order_us, "retry", "again"), StepCell(2, 1, order_us + 5, "refused")]
        for cell in noted:
            await store.steps.note([(key, cell)])
        assert await cells(store) == noted


async def test_a_cell_needs_a_row(store: InboxStore) -> None:
    """Of what has no row nothing is kept: a row that comes later starts anew."""
    await store.steps.note([(make_key(5), StepCell(2, 1, 5)), (make_key(1), StepCell(2, 1, 5))])
    await store.inbox.write([make_row(5)], stamp=NOW_US + 80 * DAY_US)
    assert await cells(store, 5) == []
    assert len(await cells(store)) == 1


async def test_swept_rows_take_their_cells_along(swept: InboxStore) -> None:
    """A new row with this id starts anew."""
    await swept.inbox.write([make_row(1)], stamp=NOW_US)
    await swept.steps.note([(make_key(1), StepCell(2, 1, 5))])
    while await swept.inbox.sweep(NOW_US + 91 * DAY_US, 100):
        continue
    await swept.inbox.write([make_row(1)], stamp=NOW_US + 91 * DAY_US)
    assert await cells(swept) == []


async def test_cells_live_as_long_as_their_row(expiring: InboxStore) -> None:
    """A row with two seconds left has cells with no more, also when its next revision stays for long."""
    end_us = id_time_ms(make_id(1)) * 1000 + 90 * DAY_US
    await expiring.inbox.write([make_row(1)], stamp=end_us - 2_000_000)
    await expiring.steps.note([(make_key(1), StepCell(2, 1, 5, "sent"))])
    assert await cells(expiring) == [StepCell(2, 1, 5, "sent")]

    async def is_over() -> bool:
        return (await expiring.inbox.states([make_key(1)]))[0] is None

    await until(is_over, what="the row is over")
    await expiring.inbox.write([make_row(1, revision=2)], stamp=NOW_US)
    assert await cells(expiring) == []


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

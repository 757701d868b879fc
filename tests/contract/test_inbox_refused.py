"""What every inbox promises about rows that it does not take; see `svc_delivery.ports.Inbox.write`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from svc_delivery.ports import DecisionWrite, FollowUpWrite, RowKey, RowsRefused, RowWrite
from svc_delivery.store import InboxStore
from tests.support.backends import Poisoner, poisoned_inbox_backends
from tests.support.inbox import ALICE, BOB, NOW_US, make_id, make_key, make_row


@pytest.fixture(params=poisoned_inbox_backends())
async def poisoned(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[InboxStore, Poisoner]]:
    """An empty store of each kind that refuses poisoned rows."""
    opener, poison = request.param(tmp_path)
    async with opener() as store:
        await poison.refuse()
        try:
            yield store, poison
        finally:
            await poison.accept()


def poisonous(poison: Poisoner, number: int, recipient_key: str = ALICE) -> RowWrite:
    """A row that the store refuses."""
    return msgspec.structs.replace(make_row(number, recipient_key=recipient_key), category=poison.category)


async def refused(store: InboxStore, rows: Sequence[RowWrite], **more: object) -> list[int]:
    """Writes rows; the indexes of those that the store refused."""
    try:
        await store.inbox.write(rows, stamp=NOW_US, **more)  # type: ignore[arg-type]  # follow_up and decisions
    except RowsRefused as refusal:
        return sorted(index for index, why in refusal.reasons.items() if why)
    return []


async def stored(store: InboxStore, rows: Sequence[RowWrite]) -> list[int]:
    """The indexes of the rows that are there."""
    found = await store.inbox.states([RowKey(row.recipient_key, row.notification_id) for row in rows])
    return [index for index, state in enumerate(found) if state is not None]


async def test_one_bad_row_harms_no_neighbour(poisoned: tuple[InboxStore, Poisoner]) -> None:
    """Wherever it stands in the batch: the others are stored, it alone is named."""
    store, poison = poisoned
    for index in range(5):
        rows = [poisonous(poison, 10 * index + n) if n == index else make_row(10 * index + n) for n in range(5)]
        assert await refused(store, rows) == [index]
        assert await stored(store, rows) == [n for n in range(5) if n != index]


async def test_any_number_of_bad_rows_is_named(poisoned: tuple[InboxStore, Poisoner]) -> None:
    """None, some or all of them."""
    store, poison = poisoned
    draw = random.Random(7)
    for share in (0.0, 0.1, 0.5, 1.0):
        numbers = [draw.randrange(1_000_000) for _ in range(40)]
        bad = [index for index in range(40) if draw.random() < share]
        rows = [poisonous(poison, number) if index in bad else make_row(number) for index, number in enumerate(numbers)]
        assert await refused(store, rows) == bad
        assert await stored(store, rows) == [index for index in range(40) if index not in bad]


async def test_a_row_that_is_too_large_or_cannot_be_encoded_is_refused_alone(
    poisoned: tuple[InboxStore, Poisoner],
) -> None:
    """What no trigger says: the key is no text, the number is no number of the store."""
    store, _ = poisoned
    rows = [
        make_row(1),
        msgspec.structs.replace(make_row(2), category="\ud800"),
        msgspec.structs.replace(make_row(3), revision=1 << 70),
        make_row(4, recipient_key=BOB),
    ]
    assert await refused(store, rows) == [1, 2]
    found = await store.inbox.states([make_key(1), make_key(4, recipient_key=BOB)])
    assert all(state is not None for state in found)


async def test_follow_up_and_decisions_wait_for_the_caller(poisoned: tuple[InboxStore, Poisoner]) -> None:
    """With refused rows they would be others; a batch without any has all of it."""
    store, poison = poisoned
    decision = DecisionWrite("acme", make_id(1), 1, ("carol",), NOW_US)
    more = {"follow_up": FollowUpWrite(NOW_US, b"follow-up"), "decisions": [decision]}
    assert await refused(store, [make_row(1), poisonous(poison, 2)], **more) == [1]
    assert await store.follow_ups.next_due() is None
    assert await store.inbox.decisions("acme", make_id(1)) == []
    await poison.accept()
    assert await refused(store, [make_row(1), poisonous(poison, 2)], **more) == []
    assert await store.follow_ups.next_due() == NOW_US
    assert await store.inbox.decisions("acme", make_id(1)) == [decision]


async def test_a_refused_row_does_not_lift_the_head(poisoned: tuple[InboxStore, Poisoner]) -> None:
    """The head is never ahead of what a replay can show, so that no cursor passes over the row."""
    store, poison = poisoned
    assert await refused(store, [poisonous(poison, 1), make_row(2, recipient_key=BOB)]) == [0]
    assert list(await store.inbox.heads([ALICE, BOB])) == [0, NOW_US]

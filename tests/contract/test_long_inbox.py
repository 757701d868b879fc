"""Inboxes that are far longer than what they keep; see `svc_delivery.ports.Inbox`.

They are filled under limits that trim nothing, and then looked at under the usual ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from svc_delivery.ports import Inbox
from svc_delivery.store import Limits
from tests.support.backends import InboxOpener, inbox_backends
from tests.support.inbox import ALICE, BOB, NOW_US, make_id, make_key, make_row, numbers
from tests.support.long_inbox import fill, is_high

# What a store holds of one recipient within a second or two of writing.
SIZES: Final = {"sqlite": 100_000, "replicas": 1_000, "cassandra": 5_000, "acsylla": 5_000}
# One look removes a thousand rows of a class at least.
STEP: Final = 1_000
KEPT: Final = 150
SMALL: Final = Limits(window=5, trim_at=8, trim_to=6, trim_every=5)
WRITES: Final = 30


class Long(msgspec.Struct, frozen=True):
    """A store with a long inbox of Alice's: what opens it, and how many rows it has."""

    opener: InboxOpener
    count: int

    def newest(self, count: int, *, high: bool) -> list[int]:
        """The newest of a class, newest first."""
        return [number for number in range(self.count - 1, -1, -1) if is_high(number) is high][:count]


def long_backends() -> list[Any]:
    """The inbox stores, each with its size."""
    return [
        pytest.param((one.values[0], SIZES[str(one.id)]), id=str(one.id), marks=one.marks) for one in inbox_backends()
    ]


@pytest.fixture(params=long_backends())
async def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Long:
    """Alice has very many rows; nobody has looked at them."""
    make, count = request.param
    opener: InboxOpener = make(tmp_path)
    await fill(opener, count)
    return Long(opener, count)


async def left(inbox: Inbox, asked: Sequence[int], *, high: bool) -> list[int]:
    """Which of these rows of Alice's are there, in their order."""
    states = await inbox.states([make_key(number, high=high) for number in asked])
    return [number for number, state in zip(asked, states, strict=True) if state is not None]


async def test_looks_bring_a_long_inbox_to_what_it_keeps(filled: Long) -> None:
    """Every look shows the newest hundred of each class, and a neighbour's rows; at last 150 of each class are left.

    What was trimmed and comes again stays away.
    """
    shown = sorted(filled.newest(100, high=True) + filled.newest(100, high=False), reverse=True)
    async with filled.opener() as store:
        inbox = store.inbox
        for look in range(filled.count // STEP + 1):
            window = await inbox.window(ALICE, NOW_US)
            assert (numbers(list(window.rows)), list(window.gone), window.head) == (shown, [], NOW_US)
            await inbox.write([make_row(look, recipient_key=BOB)], stamp=NOW_US + look)
            assert numbers(list((await inbox.window(BOB, NOW_US)).rows))[0] == look
        for high in (True, False):
            everything = filled.newest(filled.count, high=high)
            assert await left(inbox, everything, high=high) == everything[:KEPT]
        oldest = filled.newest(filled.count, high=False)[-1]
        await inbox.write([make_row(oldest)], stamp=NOW_US + 1)
        assert await inbox.states([make_key(oldest)]) == [None]


@pytest.mark.parametrize("make", inbox_backends())
async def test_writes_to_the_same_people_trim_all_of_them(make: Any, tmp_path: Path) -> None:
    """Whoever always stands at the same place of a write, and reads nothing, has no inbox that grows for ever."""
    opener: InboxOpener = make(tmp_path)
    people = [f"acme/recipient-{number}" for number in range(5)]
    async with opener(SMALL) as store:
        for number in range(WRITES):
            rows = [make_row(number, recipient_key=key) for key in people]
            await store.inbox.write(rows, stamp=NOW_US + number)
        for key in people:
            ids = [make_key(number, recipient_key=key) for number in range(WRITES)]
            there = [state for state in await store.inbox.states(ids) if state is not None]
            assert len(there) < 25
            assert [state.notification_id for state in there] == [make_id(number) for number in range(WRITES)][
                -len(there) :
            ]

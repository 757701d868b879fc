"""Part of the store of inboxes is gone, as when an index of it is damaged: only those it concerns wait.

The service's own objects in one loop on each store, over in-process ports; time is the test's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.backends import Poisoner, poisoned_inbox_backends
from tests.support.far_ends import running
from tests.support.retrying import Retrying, envelope_of, id_of
from tests.support.wait import until


@pytest.fixture(params=poisoned_inbox_backends())
async def broken(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Retrying, Poisoner]]:
    """A delivery whose loops are not running, on a store that refuses some rows; everybody has a session."""
    opener, poison = request.param(tmp_path)
    async with opener() as store:
        delivery = Retrying(store)
        delivery.presence.where = {f"acme/{name}": ("n1",) for name in ("alice", "bob", "carol")}
        await poison.refuse()
        try:
            yield delivery, poison
        finally:
            await poison.accept()


async def test_only_those_wait_whose_part_of_the_store_is_gone(broken: tuple[Retrying, Poisoner]) -> None:
    """Events before, beside and after the refused one are stored and offered at once; it waits on the retry lane.

    It is written once its part is back, offered then, and nothing of it is a dead letter.
    """
    delivery, poison = broken
    first = await delivery.dispatch(
        envelope_of(1), envelope_of(2, category=poison.category), envelope_of(3), to=["alice", "bob"]
    )
    later = await delivery.dispatch(envelope_of(4), to=["alice", "carol"])
    assert [*first.refusals, *later.refusals] == []
    assert [offer.envelope.event_id for offer in (*first.offers, *later.offers)] == [id_of(1), id_of(3), id_of(4)]
    for name, numbers in (("alice", [1, 3, 4]), ("bob", [1, 3]), ("carol", [4])):
        assert [number for number in range(1, 5) if await delivery.row(number, name) is not None] == numbers
    assert [kind for _, kind in await delivery.waiting()].count("row") == 1
    await delivery.after(10.0)
    assert await delivery.row(2) is None
    await poison.accept()
    await delivery.after(60.0)
    assert [await delivery.row(2, name) is not None for name in ("alice", "bob", "carol")] == [True, True, False]
    async with running(delivery.offers.run):
        await until(lambda: delivery.offers.waiting == 0)
    offered = [keys for _, envelope, keys in delivery.nodes.offered if envelope.event_id == id_of(2)]
    assert [sorted(keys) for keys in offered] == [["acme/alice", "acme/bob"]]
    assert await delivery.buried() == []

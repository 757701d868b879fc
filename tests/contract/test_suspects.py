"""What every store of suspects promises; see `svc_delivery.ports_dead_letters.Suspects`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from svc_delivery.ports import FollowUpRecord, FollowUpWrite
from svc_delivery.store import InboxStore
from tests.support.backends import Opener
from tests.support.follow_ups import follow_up_backends
from tests.support.inbox import NOW_US
from tests.support.wait import until


@pytest.fixture(params=follow_up_backends())
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[InboxStore]:
    """Opens the same store again and again."""
    opened: Opener[InboxStore] = request.param(tmp_path)
    return opened


async def due(store: InboxStore) -> Sequence[FollowUpRecord]:
    """What is due, once something is: what is appended may take a moment to arrive."""

    async def is_there() -> bool:
        return await store.follow_ups.backlog(NOW_US) > 0

    await until(is_there)
    return await store.follow_ups.due(NOW_US, 9)


async def test_only_an_end_without_order_leaves_suspects(opener: Opener[InboxStore]) -> None:
    """A store that was closed knows of no crash; counts of a record survive until it is cleared or gone."""
    async with opener() as store:
        assert not store.suspects.after_crash
        await store.inbox.write([], stamp=NOW_US, follow_up=FollowUpWrite(NOW_US, b"record"))
        (record,) = await due(store)
        assert [await store.suspects.name(record.record_id) for _ in range(3)] == [0, 1, 2]
        await store.suspects.name(record.record_id + 1)
    async with opener() as store:
        assert not store.suspects.after_crash
        assert await due(store) == [record]
        assert await store.suspects.name(record.record_id) == 3
        assert await store.suspects.name(record.record_id + 1) == 0
        await store.suspects.clear(record.record_id)
        assert await store.suspects.name(record.record_id) == 0

"""Follow-ups after an outage: what is over is closed, the rest goes at the pace of the links, the urgent part first.

The service's own objects in one loop, over in-process ports; time is the test's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.type.v1.notification_pb2 import PRIORITY_BULK, PRIORITY_HIGH, PRIORITY_NORMAL
from svc_delivery import worker
from svc_delivery.intake import Offer
from svc_delivery.records import most_urgent
from svc_delivery.worker import RECORDS
from tests.support.far_ends import running
from tests.support.retrying import Retrying, envelope_of, id_of, key_of, retrying
from tests.support.wait import until

# Of each priority, the least urgent first; every third expires during the outage.
COUNT = 45
# A page of records may be added to what is half full.
ROOM = 2 * RECORDS
PRIORITIES = (PRIORITY_BULK, PRIORITY_NORMAL, PRIORITY_HIGH)


@pytest.fixture
async def delivery(tmp_path: Path) -> AsyncIterator[Retrying]:
    """A delivery with little room for offers, five minutes after it took a hundred events and stopped."""
    async with retrying(tmp_path, offer_limit=ROOM) as made:
        made.presence.where = {"acme/alice": ("n1",)}
        for place, priority in enumerate(PRIORITIES):
            for number in range(COUNT * place, COUNT * (place + 1)):
                envelope = envelope_of(number, expire_s=60.0 if number % 3 == 0 else None)
                envelope.priority = priority
                await made.dispatch(envelope)
        made.clock.advance(300.0)
        yield made


async def test_while_the_links_are_full_only_what_is_expired_is_closed(delivery: Retrying) -> None:
    """It needs no room, and what is not expired uses up no try."""
    others = [f"acme/other-{number}" for number in range(ROOM // 2 + 1)]
    delivery.offers.add([Offer(envelope_of(999), key_of(999).notification_id, others)])
    while await delivery.worker.step():
        continue
    assert delivery.offers.waiting == ROOM // 2 + 1
    left = await delivery.waiting()
    assert len(left) == 2 * COUNT
    assert {seconds for seconds, _ in left} == {-290.0}


async def test_the_rest_goes_at_the_pace_of_the_links_the_urgent_part_first(delivery: Retrying) -> None:
    """Nothing expired is offered; whoever waits behind full links loses no try; high is through before bulk begins."""
    offered: list[int] = []
    while len(offered) < 2 * COUNT:
        while await delivery.worker.step():
            continue
        assert delivery.offers.waiting <= ROOM
        async with running(delivery.offers.run):
            await until(lambda: delivery.offers.waiting == 0)
        priorities = [envelope.priority for _, envelope, _ in delivery.nodes.offered[len(offered) :]]
        assert priorities
        if most_urgent(priorities) == PRIORITY_BULK:
            assert offered.count(PRIORITY_HIGH) == 2 * COUNT // 3
        offered += priorities
    assert [PRIORITIES.index(priority) for priority in offered] == sorted(
        (PRIORITIES.index(priority) for priority in offered), reverse=True
    )
    events = [envelope.event_id for _, envelope, _ in delivery.nodes.offered]
    assert sorted(events) == sorted(id_of(number) for number in range(3 * COUNT) if number % 3)
    assert {seconds for seconds, _ in await delivery.waiting()} == {60.0}


async def test_a_page_does_not_crowd_the_links_by_itself(tmp_path: Path) -> None:
    """After so many deliveries no further record is taken; those left are looked at with the next page."""
    names = [f"r{number}" for number in range(6)]
    async with retrying(tmp_path) as made:
        made.presence.where = {f"acme/{name}": ("n1",) for name in names}
        for number in range(5):
            await made.dispatch(envelope_of(number), to=names)
        made.clock.advance(10.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "DELIVERIES", 10)
            for offered in (12, 24, 30):
                assert await made.worker.step()
                assert made.offers.waiting == offered
            assert not await made.worker.step()

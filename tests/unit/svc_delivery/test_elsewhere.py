"""Whom nobody can reach live: a record that is due now, where a channel follows, and nothing that has to last."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.errors import Unavailable
from mesh.ids import from_text
from svc_delivery import records
from svc_delivery.elsewhere import Elsewhere
from svc_delivery.intake import Offer
from svc_delivery.ports import FollowUpWrite
from svc_delivery.records import Member
from tests.support.far_ends import running
from tests.support.retrying import FIRST, Retrying, envelope_of, id_of, plan_of, retrying
from tests.support.wait import until

_LIVE = 1


@pytest.fixture
async def delivery(tmp_path: Path) -> AsyncIterator[Retrying]:
    """A delivery whose loops are not running."""
    async with retrying(tmp_path) as made:
        yield made


def offer(number: int, *, goes_on: bool = True, expire_s: float | None = None) -> Offer:
    """Event `number` for alice and bob."""
    keys = ["acme/alice", "acme/bob"]
    plan = plan_of(FIRST) if goes_on else None
    return Offer(envelope_of(number, expire_s=expire_s), from_text(id_of(number)), keys, plan, _LIVE)


async def members(delivery: Retrying) -> list[Member]:
    """The deliveries of every record that is due now."""
    due = await delivery.store.follow_ups.due(delivery.now_us(), 100)
    found = [records.read(record.record) for record in due]
    return [member for one in found if isinstance(one, list) for member in one]


async def test_they_are_followed_up_now_from_where_their_plan_stands(delivery: Retrying) -> None:
    """Several offers in one record, with their plan, step and row."""
    delivery.elsewhere.add(offer(1), ["acme/alice", "acme/bob"])
    delivery.elsewhere.add(offer(2, expire_s=60.0), ["acme/bob"])
    async with running(delivery.elsewhere.run):
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 3, what="written")
    assert len(await delivery.store.follow_ups.due(delivery.now_us(), 100)) == 1
    found = await members(delivery)
    assert [(one.key.recipient_key, one.key.notification_id) for one in found] == [
        ("acme/alice", from_text(id_of(1))),
        ("acme/bob", from_text(id_of(1))),
        ("acme/bob", from_text(id_of(2))),
    ]
    assert all(one.plan == plan_of(FIRST) and one.follow_up.step_index == _LIVE for one in found)


async def test_without_a_further_channel_there_is_nothing_to_do(delivery: Retrying) -> None:
    """The row rests in the inbox."""
    delivery.elsewhere.add(offer(1, goes_on=False), ["acme/alice"])
    delivery.elsewhere.add(offer(2), ["acme/alice"])
    async with running(delivery.elsewhere.run):
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 1, what="written")
    assert [one.key.notification_id for one in await members(delivery)] == [from_text(id_of(2))]


class Refusing:
    """Follow-ups of a store that is down, and comes back."""

    def __init__(self, delivery: Retrying) -> None:
        self.follow_ups = delivery.store.follow_ups
        self.refused = 0
        self.is_down = True
        self.due, self.next_due = self.follow_ups.due, self.follow_ups.next_due
        self.containing, self.backlog = self.follow_ups.containing, self.follow_ups.backlog

    async def finish(self, record_ids: object, again: list[FollowUpWrite], letters: object = ()) -> None:
        """See the port."""
        if self.is_down:
            self.refused += 1
            raise Unavailable("the store is down", reason="STORE_UNAVAILABLE")
        await self.follow_ups.finish([], again)


async def test_what_the_store_does_not_take_waits_for_the_ack_window(delivery: Retrying) -> None:
    """It is dropped here, for a record of it is there; what comes later goes on."""
    refusing = Refusing(delivery)
    elsewhere = Elsewhere(follow_ups=refusing, metrics=delivery.metrics, now_us=delivery.now_us)  # type: ignore[arg-type]  # what is called
    elsewhere.add(offer(1), ["acme/alice"])
    async with running(elsewhere.run):
        await until(lambda: refusing.refused == 1, what="refused")
        refusing.is_down = False
        elsewhere.add(offer(2), ["acme/alice"])
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 1, what="written")
    assert [one.key.notification_id for one in await members(delivery)] == [from_text(id_of(2))]


async def test_what_waits_is_bounded(delivery: Retrying) -> None:
    """More than fits waits for the ack window too."""
    for number in range(3):
        delivery.elsewhere.add(offer(number), ["acme/alice"] * 9_000)
    async with running(delivery.elsewhere.run):
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 18_000, what="written")


async def test_the_last_node_that_has_no_session_makes_it_nobody_there(delivery: Retrying) -> None:
    """One of two does not, nor the same one twice, nor a node that was not asked; others of the offer wait on."""
    where = {"acme/alice": ("n1", "n2"), "acme/bob": ("n1",)}
    delivery.elsewhere.offered(offer(1), where)
    delivery.elsewhere.offered(offer(2, goes_on=False), where)
    for node_id in ("n1", "n1", "n3"):
        delivery.elsewhere.absent(node_id, id_of(1), ["acme/alice", "acme/carol"])
    delivery.elsewhere.absent("n1", id_of(2), ["acme/bob"])
    async with running(delivery.elsewhere.run):
        delivery.elsewhere.absent("n2", id_of(1), ["acme/alice"])
        delivery.elsewhere.absent("n2", id_of(1), ["acme/alice"])
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 1, what="written")
    assert [(one.key.recipient_key, one.key.notification_id) for one in await members(delivery)] == [
        ("acme/alice", from_text(id_of(1)))
    ]


async def test_where_offers_went_is_known_of_the_latest_only(delivery: Retrying) -> None:
    """What no node refuses is forgotten, the oldest first; then the ack window decides."""
    where = {"acme/alice": ("n1",), "acme/bob": ("n1",)}
    for number in range(2_501):
        delivery.elsewhere.offered(offer(number), where)
    for number in range(2_501):
        delivery.elsewhere.absent("n1", id_of(number), ["acme/alice", "acme/bob"])
    async with running(delivery.elsewhere.run):
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 5_000, what="written")
    assert {one.key.notification_id for one in await members(delivery)} == {
        from_text(id_of(number)) for number in range(1, 2_501)
    }

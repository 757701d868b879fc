"""The calls of TopicService on a real store, as callers see them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from heliograph.prefs.v1 import topic_service_pb2 as pb
from mesh.clock import ManualClock
from mesh.context import CallContext, Caller, serving
from mesh.errors import InvalidArgument, PermissionDenied
from mesh.telemetry import Telemetry
from svc_prefs import topics
from svc_prefs.metrics import Metrics
from svc_prefs.service_topics import TopicService
from svc_prefs.store import open_store

# No method of the service uses it.
NO_CONTEXT = cast(Any, None)
ALICE = Caller("recipient", "alice", "acme")
FANOUT = Caller("fanout", "fanout")
OTHERS = [Caller("operator", "ada"), Caller("gateway", "gateway")]
START = 1_700_000_000.0


class World:
    """The service, with a clock that stands still."""

    def __init__(self, service: TopicService, clock: ManualClock) -> None:
        self.service = service
        self.clock = clock

    async def subscribe(self, *topic_ids: str, caller: Caller = ALICE, **fields: str) -> Sequence[pb.Subscription]:
        """Subscribes as somebody."""
        with serving(CallContext(caller, None, "", "")):
            request = pb.SubscribeRequest(topic_ids=topic_ids, **fields)
            return (await self.service.Subscribe(request, NO_CONTEXT)).subscriptions

    async def unsubscribe(self, *topic_ids: str, caller: Caller = ALICE, **fields: str) -> None:
        """Unsubscribes as somebody."""
        with serving(CallContext(caller, None, "", "")):
            await self.service.Unsubscribe(pb.UnsubscribeRequest(topic_ids=topic_ids, **fields), NO_CONTEXT)

    async def page(
        self, caller: Caller = ALICE, *, page_size: int = 0, page_token: str = "", **fields: str
    ) -> tuple[list[str], str]:
        """One page of subscriptions, and the token of the next."""
        with serving(CallContext(caller, None, "", "")):
            request = pb.ListSubscriptionsRequest(page_size=page_size, page_token=page_token, **fields)
            answer = await self.service.ListSubscriptions(request, NO_CONTEXT)
        return [one.topic_id for one in answer.subscriptions], answer.next_page_token

    async def subscribers(self, topic_id: str, after: str = "", page_size: int = 0) -> list[str]:
        """A page of a topic's subscribers, as fanout."""
        with serving(CallContext(FANOUT, None, "", "")):
            request = pb.ListSubscribersRequest(
                tenant_id="acme", topic_id=topic_id, after_recipient_id=after, page_size=page_size
            )
            return list((await self.service.ListSubscribers(request, NO_CONTEXT)).recipient_ids)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A service on an empty store."""
    store = open_store("sqlite:///prefs.db", data_dir=tmp_path)
    clock = ManualClock(wall=START)
    await store.open()
    try:
        yield World(TopicService(store=store.topics, clock=clock, metrics=Metrics(Telemetry("prefs"))), clock)
    finally:
        await store.close()


async def test_a_subscription_is_answered_as_it_is_stored(world: World) -> None:
    """With the time at which it began, also when it is asked for again."""
    (first,) = await world.subscribe("news")
    assert (first.topic_id, first.create_time.seconds) == ("news", int(START))
    world.clock.advance(60)
    again = await world.subscribe("news", "builds")
    assert [(one.topic_id, one.create_time.seconds - int(START)) for one in again] == [("builds", 60), ("news", 0)]


async def test_fanout_finds_who_subscribed_and_nobody_else(world: World) -> None:
    """From the answer on; who left is gone from the answer on."""
    for name in ("carol", "alice", "bob"):
        await world.subscribe("news", caller=Caller("recipient", name, "acme"))
    await world.subscribe("news", caller=Caller("recipient", "mallory", "globex"))
    await world.unsubscribe("news", caller=Caller("recipient", "bob", "acme"))
    assert await world.subscribers("news") == ["alice", "carol"]
    assert await world.subscribers("news", after="alice", page_size=1) == ["carol"]
    assert await world.subscribers("nothing") == []


async def test_unsubscribing_what_is_not_subscribed_is_no_error(world: World) -> None:
    """Before, after and instead of a subscription."""
    await world.unsubscribe("news")
    await world.subscribe("news", "builds")
    await world.unsubscribe("news", "nothing")
    await world.unsubscribe("news")
    assert await world.page() == (["builds"], "")


async def test_subscriptions_are_listed_in_pages(world: World) -> None:
    """In topic order; the last page has no token."""
    await world.subscribe("c", "a", "b")
    first, token = await world.page(page_size=2)
    assert first == ["a", "b"]
    assert await world.page(page_size=2, page_token=token) == (["c"], "")
    assert await world.page(page_size=3) == (["a", "b", "c"], "")


@pytest.mark.parametrize("caller", OTHERS, ids=lambda caller: caller.role)
async def test_operators_and_gateways_name_whom_they_act_for(world: World, caller: Caller) -> None:
    """Tenant and recipient; with either missing, or malformed, nothing is stored."""
    await world.subscribe("news", caller=caller, tenant_id="acme", recipient_id="alice")
    assert await world.subscribers("news") == ["alice"]
    await world.unsubscribe("news", caller=caller, tenant_id="acme", recipient_id="alice")
    assert await world.page() == ([], "")
    for tenant_id, recipient_id in (("acme", ""), ("", "alice"), ("acme", "al/ice")):
        with pytest.raises(InvalidArgument):
            await world.subscribe("news", caller=caller, tenant_id=tenant_id, recipient_id=recipient_id)
    assert await world.subscribers("news") == []


async def test_a_recipient_acts_for_itself_only(world: World) -> None:
    """Its own name or none; with another one, or another tenant, nothing is read or changed."""
    await world.subscribe("news", caller=Caller("recipient", "bob", "acme"), recipient_id="bob")
    for recipient_id, tenant_id in (("bob", ""), ("", "globex")):
        with pytest.raises(PermissionDenied):
            await world.subscribe("builds", recipient_id=recipient_id, tenant_id=tenant_id)
        with pytest.raises(PermissionDenied):
            await world.unsubscribe("news", recipient_id=recipient_id, tenant_id=tenant_id)
        with pytest.raises(PermissionDenied):
            await world.page(recipient_id=recipient_id, tenant_id=tenant_id)
    assert await world.subscribers("news") == ["bob"]
    assert await world.subscribers("builds") == []


async def test_a_recipient_has_a_thousand_subscriptions_at_most(world: World) -> None:
    """The call that would pass the limit is refused whole; ending some makes room."""
    for start in range(0, topics.LARGEST_SUBSCRIPTIONS, 100):
        await world.subscribe(*(f"t{number}" for number in range(start, start + 100)))
    with pytest.raises(InvalidArgument, match="at most 1000 subscriptions") as caught:
        await world.subscribe("t0", "one-more")
    assert [violation.field for violation in caught.value.violations] == ["topic_ids"]
    assert await world.subscribers("one-more") == []
    assert len(await world.subscribe("t0", "t1")) == 2
    await world.unsubscribe("t5")
    await world.subscribe("one-more")
    assert len((await world.page(page_size=5_000))[0]) == 1_000


async def test_malformed_calls_store_nothing(world: World) -> None:
    """One bad topic refuses the call with the good ones in it."""
    for topic_ids in ([], ["news", "two words"], ["news"] * 101):
        with pytest.raises(InvalidArgument):
            await world.subscribe(*topic_ids)
        with pytest.raises(InvalidArgument):
            await world.unsubscribe(*topic_ids)
    with pytest.raises(InvalidArgument):
        await world.page(page_token="news")
    assert await world.page() == ([], "")

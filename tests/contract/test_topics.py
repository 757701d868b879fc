"""What every store of subscriptions promises; see `svc_prefs.ports.TopicStore`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from svc_prefs.ports import Subscription, TopicStore
from svc_prefs.store import WishStore
from tests.support.backends import Opener, wish_backends

NOW_US = 1_700_000_000_000_000
MOST = 10


@pytest.fixture(params=wish_backends())
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[WishStore]:
    """Opens the same store again and again."""
    opened: Opener[WishStore] = request.param(tmp_path)
    return opened


@pytest.fixture
async def store(opener: Opener[WishStore]) -> AsyncIterator[TopicStore]:
    """An empty store of each kind."""
    async with opener() as opened:
        yield opened.topics


async def subscribe(
    store: TopicStore, recipient_id: str, *topic_ids: str, tenant_id: str = "acme", now_us: int = NOW_US
) -> list[tuple[str, int]] | None:
    """Subscribes; returns what is stored of it, or None when it was refused."""
    found = await store.subscribe(tenant_id, recipient_id, topic_ids, now_us=now_us, most=MOST)
    return None if found is None else [(one.topic_id, one.create_us) for one in found]


async def all_subscribers(store: TopicStore, topic_ids: Iterable[str], *, recipients: int) -> None:
    """Subscribes many recipients, in an order that is not theirs."""
    numbers = list(range(recipients))
    random.Random(4).shuffle(numbers)
    # Some at a time: a call that waits too long for its turn is refused.
    for begin in range(0, recipients, 100):
        some = numbers[begin : begin + 100]
        await asyncio.gather(*(subscribe(store, f"r{number:05d}", *topic_ids) for number in some))


async def subscriptions(store: TopicStore, recipient_id: str, tenant_id: str = "acme") -> list[str]:
    """The topics of a recipient."""
    found = await store.list_subscriptions(tenant_id, recipient_id, after="", limit=1_000)
    return [one.topic_id for one in found]


async def walk(store: TopicStore, topic_id: str, *, limit: int, tenant_id: str = "acme") -> AsyncIterator[list[str]]:
    """The pages of a topic's subscribers; a page that is not full is the last."""
    after = ""
    while True:
        page = list(await store.list_subscribers(tenant_id, topic_id, after=after, limit=limit))
        yield page
        if len(page) < limit:
            return
        after = page[-1]


async def subscribers(store: TopicStore, topic_id: str, *, limit: int = 1_000, tenant_id: str = "acme") -> list[str]:
    """Everybody who is subscribed to a topic."""
    return [one async for page in walk(store, topic_id, limit=limit, tenant_id=tenant_id) for one in page]


async def test_a_subscription_is_found_from_both_ends(store: TopicStore) -> None:
    """The recipient sees the topic, the topic the recipient, at once."""
    assert await subscribe(store, "alice", "news", "builds") == [("builds", NOW_US), ("news", NOW_US)]
    assert await store.list_subscriptions("acme", "alice", after="", limit=10) == [
        Subscription("builds", NOW_US),
        Subscription("news", NOW_US),
    ]
    assert await subscribers(store, "news") == ["alice"]


async def test_what_nobody_subscribed_to_is_empty(store: TopicStore) -> None:
    """Neither an unknown topic nor an unknown recipient is an error."""
    assert await subscribers(store, "news") == []
    assert await subscriptions(store, "alice") == []


async def test_subscribing_again_changes_nothing(store: TopicStore) -> None:
    """The subscription keeps the time at which it began; a topic that is named twice is one."""
    await subscribe(store, "alice", "news")
    later = NOW_US + 1
    again = await subscribe(store, "alice", "news", "builds", "news", now_us=later)
    assert again == [("builds", later), ("news", NOW_US)]
    assert await subscribers(store, "news") == ["alice"]


async def test_unsubscribing_ends_what_is_named(store: TopicStore) -> None:
    """Other topics and other recipients stay; what is not subscribed is no error."""
    await subscribe(store, "alice", "news", "builds")
    await subscribe(store, "bob", "news")
    assert await store.unsubscribe("acme", "alice", ["news", "nothing"]) == 1
    assert await store.unsubscribe("acme", "alice", ["news"]) == 0
    assert await store.unsubscribe("acme", "nobody", ["news"]) == 0
    assert await subscriptions(store, "alice") == ["builds"]
    assert await subscribers(store, "news") == ["bob"]


async def test_one_who_left_and_came_back_begins_anew(store: TopicStore) -> None:
    """The time of the first subscription is gone with it."""
    await subscribe(store, "alice", "news")
    await store.unsubscribe("acme", "alice", ["news"])
    assert await subscribe(store, "alice", "news", now_us=NOW_US + 5) == [("news", NOW_US + 5)]


async def test_tenants_do_not_meet(store: TopicStore) -> None:
    """The same names in two tenants are two subscriptions."""
    await subscribe(store, "alice", "news")
    await subscribe(store, "bob", "news", tenant_id="globex")
    assert await subscribers(store, "news") == ["alice"]
    assert await subscribers(store, "news", tenant_id="globex") == ["bob"]
    assert await store.unsubscribe("globex", "alice", ["news"]) == 0
    assert await subscriptions(store, "alice", "globex") == []


async def test_more_than_the_limit_is_refused_whole(store: TopicStore) -> None:
    """Nothing of the call is stored; what is there already does not count twice."""
    await subscribe(store, "alice", *(f"t{number}" for number in range(MOST - 1)))
    assert await subscribe(store, "alice", "x", "y") is None
    assert await subscriptions(store, "alice") == [f"t{number}" for number in range(MOST - 1)]
    assert await subscribe(store, "alice", "x", "t0", "x") == [("t0", NOW_US), ("x", NOW_US)]
    assert await subscribe(store, "alice", "t0") == [("t0", NOW_US)]
    assert await subscribe(store, "alice", "y") is None
    assert await subscribe(store, "bob", "y") is not None


async def test_calls_side_by_side_do_not_pass_the_limit(store: TopicStore) -> None:
    """Of many calls at once as many are taken as there is room for."""
    results = await asyncio.gather(*(subscribe(store, "alice", f"t{number}") for number in range(3 * MOST)))
    assert sum(result is not None for result in results) == MOST
    assert len(await subscriptions(store, "alice")) == MOST


async def test_lists_are_in_the_order_of_bytes(store: TopicStore) -> None:
    """Capitals come before small letters, signs where their bytes are; pages begin after a name, not at it."""
    names = ["Z", "a", "B", "a/b", "a-b", "a.b", "a_b", "aa", "@x", "=1"]
    ordered = sorted(names, key=str.encode)
    await subscribe(store, "alice", *names)
    assert await subscriptions(store, "alice") == ordered
    for name in names:
        await subscribe(store, name, "letters")
    assert await subscribers(store, "letters", limit=3) == ordered
    after = await store.list_subscriptions("acme", "alice", after=ordered[3], limit=2)
    assert [one.topic_id for one in after] == ordered[4:6]


async def test_names_are_only_names(store: TopicStore) -> None:
    """Quotes, percent signs and JSON in a name mean nothing."""
    odd = ["a'b", 'a"b', "a%b", '["x"]', "a;drop table subscriptions", "a\\b"]
    assert await subscribe(store, "it's", *odd) is not None
    assert await subscriptions(store, "it's") == sorted(odd)
    assert await subscribers(store, odd[0]) == ["it's"]


async def test_pages_of_many_subscribers_have_everybody_once(store: TopicStore) -> None:
    """Every page is full but for the last, and none repeats or leaves out anybody."""
    await all_subscribers(store, ["news", "other"], recipients=1_000)
    pages = [page async for page in walk(store, "news", limit=64)]
    assert [one for page in pages for one in page] == [f"r{number:05d}" for number in range(1_000)]
    assert {len(page) for page in pages[:-1]} == {64}


async def test_whoever_stays_is_on_one_page_while_others_come_and_go(store: TopicStore) -> None:
    """Changes between two pages, before and behind the place, move nobody."""
    await all_subscribers(store, ["news"], recipients=400)
    chance = random.Random(7)
    stayed = {f"r{number:05d}" for number in range(0, 400, 2)}
    gone: set[str] = set()
    seen: list[str] = []
    async for page in walk(store, "news", limit=16):
        assert gone.isdisjoint(page)
        seen += page
        leavers = {f"r{chance.randrange(1, 400, 2):05d}" for _ in range(5)}
        comers = [f"r{chance.randrange(400):05d}x" for _ in range(5)]
        await asyncio.gather(
            *(store.unsubscribe("acme", one, ["news"]) for one in leavers),
            *(subscribe(store, one, "news") for one in comers),
        )
        gone |= leavers
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)
    assert stayed <= set(seen)


async def test_what_was_answered_is_found_by_every_later_page(store: TopicStore) -> None:
    """A subscription is there for whoever asks after its answer, also while many are being stored."""

    async def subscribe_and_look(number: int) -> bool:
        recipient_id = f"r{number:05d}"
        await subscribe(store, recipient_id, "news")
        before = f"r{number - 1:05d}~"
        return recipient_id in await store.list_subscribers("acme", "news", after=before, limit=1)

    assert all(await asyncio.gather(*(subscribe_and_look(number) for number in range(1, 200))))


async def test_subscriptions_survive_a_restart(opener: Opener[WishStore]) -> None:
    """What was answered is there after the store was closed and opened again, and so is what was ended."""
    async with opener() as first:
        await subscribe(first.topics, "alice", "news", "builds")
        await first.topics.unsubscribe("acme", "alice", ["builds"])
    async with opener() as second:
        assert await subscriptions(second.topics, "alice") == ["news"]
        assert await subscribers(second.topics, "news") == ["alice"]
        assert await subscribers(second.topics, "builds") == []

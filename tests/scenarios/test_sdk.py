"""The SDK against a whole Heliograph: what its unit tests assume of a server is true."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from heliograph_cli.connection import Actor, Reach, connect
from heliograph_client import (
    Aborted,
    PermissionDenied,
    Publisher,
    RetryPolicy,
    Subscriber,
    Transport,
    Unauthenticated,
    build_event,
)
from heliograph_client.values import SubscriberStats
from tests.faults.proxy import HEALTHY, Toxics, proxied
from tests.support.cluster import PRODUCER, TENANT, Cluster
from tests.support.site import IN_EVERY_SHAPE, Site
from tests.support.wait import until

pytestmark = pytest.mark.timeout(60)

EITHER = pytest.mark.parametrize("transport", ["websocket", "grpc"])


@pytest.fixture
def cluster(site: Site) -> Cluster:
    """What runs at the site, in either shape; each test has recipients of its own."""
    return site.cluster


async def _take(subscriber: Subscriber, count: int) -> list[str]:
    async with asyncio.timeout(15):
        return [(await anext(subscriber)).title for _ in range(count)]


def _faults(stats: SubscriberStats) -> tuple[int, int, int]:
    return stats.duplicates_on_wire, stats.mismatches, stats.frames_refused


@IN_EVERY_SHAPE
@EITHER
async def test_what_is_queued_arrives_once(cluster: Cluster, transport: Transport) -> None:
    """Five hundred events leave in batches, live ones come in order, the copy equals the inbox, acks are durable."""
    titles, who = [f"event {number}" for number in range(500)], f"ann-{transport}"
    async with cluster.publisher() as publisher, cluster.subscriber(who, transport=transport) as subscriber:
        await until(lambda: subscriber.stats.checkpoints > 0, 10.0, "the first checkpoint")
        waiting = [publisher.enqueue(category="general", to=who, title=title) for title in titles]
        await asyncio.gather(*waiting)
        async with asyncio.timeout(15):
            taken = [await anext(subscriber) for _ in titles]
        assert sorted(notification.title for notification in taken) == sorted(titles)
        # A replay in the middle, after some hundred frames, brings what was written and not offered yet.
        live = [titles.index(notification.title) for notification in taken if not notification.replayed]
        assert live == sorted(live)
        await subscriber.settle(limit=15)
        assert publisher.stats.calls < len(titles) / 10
        assert _faults(subscriber.stats) == (0, 0, 0)
        assert subscriber.stats.acks_confirmed == len(titles)


@IN_EVERY_SHAPE
@EITHER
async def test_a_device_goes_on_after_a_restart(cluster: Cluster, transport: Transport) -> None:
    """Only what came meanwhile is on the wire again; what was left unread can be marked although it is old."""
    who = f"ben-{transport}"

    def device() -> AbstractAsyncContextManager[Subscriber]:
        return cluster.subscriber(who, device_id="laptop", remember=True, transport=transport)

    async with cluster.publisher() as publisher:
        await publisher.publish_batch([build_event(category="general", to=who, title=f"old {n}") for n in range(5)])
        async with device() as subscriber:
            old = await _take(subscriber, 5)
            await until(lambda: subscriber.stats.checkpoints > 0, 10.0, "a checkpoint")
            await subscriber.settle()
        await publisher.publish_batch([build_event(category="general", to=who, title=f"new {n}") for n in range(3)])
        async with device() as subscriber:
            assert sorted(await _take(subscriber, 3)) == ["new 0", "new 1", "new 2"]
            await until(lambda: subscriber.stats.checkpoints > 0, 10.0, "a checkpoint")
            oldest = (await cluster.inbox(who))[-1].notification
            assert oldest.content.title in old
            subscriber.mark_read(oldest.notification_id)
            await subscriber.settle()
            assert _faults(subscriber.stats) == (0, 0, 0)
            assert (subscriber.stats.shown, subscriber.stats.reloads, subscriber.unread) == (3, 0, 7)


@IN_EVERY_SHAPE
@EITHER
async def test_devices_agree_on_what_is_unread(cluster: Cluster, transport: Transport) -> None:
    """Read, unread again, hidden: said on one device, true on the other, wherever their sessions are."""
    who = f"clea-{transport}"
    async with (
        cluster.publisher() as publisher,
        cluster.subscriber(who, device_id="laptop", node=cluster.node(0), transport=transport) as laptop,
        cluster.subscriber(who, device_id="phone", node=cluster.node(1), transport=transport) as phone,
    ):
        await until(lambda: laptop.stats.checkpoints > 0 and phone.stats.checkpoints > 0, 10.0, "checkpoints")
        await asyncio.gather(*(publisher.enqueue(category="general", to=who, title=str(n)) for n in range(4)))
        await _take(phone, 4)
        async with asyncio.timeout(10):
            first, second, third, _ = [await anext(laptop) for _ in range(4)]
        laptop.mark_read(first, second)
        laptop.hide(third)
        await until(lambda: (laptop.unread, phone.unread) == (1, 1), 10.0, "one unread on both")
        phone.mark_unread(first)
        await until(lambda: (laptop.unread, phone.unread) == (2, 2), 10.0, "two unread on both")
        await asyncio.gather(laptop.settle(), phone.settle())
        assert _faults(laptop.stats) == _faults(phone.stats) == (0, 0, 0)


@IN_EVERY_SHAPE
async def test_one_device_has_one_session(cluster: Cluster) -> None:
    """The older subscriber stops with a failure that says why; the newer one lives on."""
    async with cluster.subscriber("dan-twice") as older:
        await until(lambda: older.stats.checkpoints > 0, 10.0, "the first checkpoint")
        async with cluster.subscriber("dan-twice") as newer:
            async with asyncio.timeout(15):
                with pytest.raises(Aborted, match="SUPERSEDED"):
                    await anext(older)
            await cluster.publish("dan-twice", title="for the newer")
            assert await _take(newer, 1) == ["for the newer"]


async def test_a_recipients_token_publishes_nothing(cluster: Cluster) -> None:
    """The failure arrives with category and reason of the server's."""
    reach = Reach(state_dir=cluster.place.state, token=cluster.token("eve"))
    async with (
        connect(reach, cluster.place) as connection,
        connection.publisher(Actor("producer", PRODUCER, TENANT)) as publisher,
    ):
        with pytest.raises(PermissionDenied) as raised:
            await publisher.publish(category="general", to="eve", title="hi")
    assert raised.value.reason == "CALLER_NOT_ALLOWED"


@pytest.mark.parametrize(
    "site", [pytest.param("processes", marks=pytest.mark.processes)], indirect=True, scope="session"
)
async def test_a_refusal_after_a_lost_answer_says_that_the_event_may_be_accepted(
    cluster: Cluster, run_dir: Path
) -> None:
    """It is: published again under its id it was accepted before, and its recipient has it once."""
    good = cluster.token("demo", role="producer")
    async with proxied(f"{cluster.running.run_dir}/ingest.sock", str(run_dir / "lossy.sock")) as proxy:
        tokens = [good]

        def token() -> str:
            found = tokens.pop(0) if len(tokens) > 1 else tokens[0]
            if found == "nonsense":
                # The answer to the try before is lost; the refusal comes through.
                proxy.apply(HEALTHY)
                proxy.reset_all()
            return found

        policy = RetryPolicy(attempt_timeout=1.0)
        async with Publisher(f"unix:{proxy.address}", token=token, policy=policy) as publisher:
            await publisher.publish(category="general", to="fay-in-doubt", title="first")
            order = publisher.prepare(category="general", to="fay-in-doubt", title="order")
            proxy.apply(Toxics(silent=frozenset({"down"})))
            tokens[:] = [good, "nonsense"]
            with pytest.raises(Unauthenticated, match=order.request_id) as raised:
                await publisher.publish(order)
            assert raised.value.outcome_unknown
            tokens[:] = [good]
            assert (await publisher.publish(order)).replayed

    async def titles() -> list[str]:
        return sorted([item.notification.content.title for item in await cluster.inbox("fay-in-doubt")])

    async def has_both() -> bool:
        return len(await titles()) >= 2

    await until(has_both, 10.0, "both events")
    assert await titles() == ["first", "order"]

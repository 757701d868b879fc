"""What still works while an engine is gone, row by row of the ladder, as producers, recipients and operators see it.

Needs STORES=engines and engines of the run's own (HELIOGRAPH_ENGINES): they are killed and started again.
"""

from __future__ import annotations

import time
from functools import partial

import grpc
import grpc.aio
import pytest

from deploy.engines.running import Engines
from heliograph.type.v1.event_pb2 import Event
from heliograph.type.v1.notification_pb2 import MarkKind
from heliograph_client import PreparedEvent, Publisher, build_event
from mesh.errors import Failure, ResourceExhausted, Unavailable
from tests.faults.counters import count_of
from tests.faults.outages import (
    BACK_S,
    asking_once,
    at_last,
    awaits_first_look,
    is_through,
    pids_of,
    says,
    waiting_events,
    without,
)
from tests.support.apps import Apps
from tests.support.cluster import Cluster
from tests.support.device import Device
from tests.support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.engines, pytest.mark.processes, pytest.mark.timeout(180)]

# What "quickly" is to a caller on a busy machine; once health has noticed, nobody waits for the engine.
QUICK_S = 3.0
# So long an ack is waited for.
ACK_WINDOW_S = 10.0
DROPPED = "heliograph_fanout_wishes_dropped_total"
READ = MarkKind.MARK_KIND_READ


def event(title: str, *recipients: str, category: str = "general", topics: tuple[str, ...] = ()) -> Event:
    """An event that is told from others by its title."""
    return build_event(category=category, to=recipients, topics=topics, title=title)


async def quickly(publisher: Publisher, prepared: PreparedEvent) -> str:
    """Publishes and returns the id; each try must be answered soon. Only what a busy machine sheds is tried again."""
    found: list[str] = []

    async def answered() -> bool:
        began = time.monotonic()
        try:
            found.append((await publisher.publish(prepared)).event_id)
        except ResourceExhausted:
            return False
        finally:
            assert time.monotonic() - began < QUICK_S
        return True

    await until(answered, BACK_S, "the machine is less busy")
    return found[0]


async def shows(device: Device, *ids: str) -> None:
    """Waits until everything is on a screen, each once and over the connection that was open all the time."""
    await until(lambda: set(ids) <= set(device.ids), BACK_S, f"{ids} on the screen")
    assert device.closed is None
    assert [device.ids.count(id_) for id_ in ids] == [1] * len(ids)


async def test_without_kafka_nothing_new_is_accepted(on_engines: Cluster, engines: Engines) -> None:
    """Publish says so quickly; sessions, lists, marks, replay and wishes go on; the same request passes afterwards.

    What a device has not acked, and whose window ends meanwhile, waits: it is looked at when Kafka is back, and comes
    to nobody a second time.
    """
    cluster, apps, who = on_engines, Apps(on_engines), "anna"
    pids = pids_of(cluster)
    async with asking_once(cluster) as publisher, apps.device(who) as device:
        await device.ready()
        first = await at_last(publisher, publisher.prepare(event("before", who)))
        unacked = await at_last(publisher, publisher.prepare(event("unacked", who)))
        await shows(device, first, unacked)
        window_ends = time.monotonic() + ACK_WINDOW_S
        await until(partial(awaits_first_look, cluster, who, unacked), what="its ack is waited for")
        refused = publisher.prepare(event("refused", who))
        async with without(engines, "kafka"):
            with pytest.raises(Failure):
                # The first one to meet it may have to wait for its own limit.
                await publisher.publish(refused)
            await says(cluster, {"ingest": ["lanes"], "fanout": ["lanes"], "delivery": ["follow_ups"]})
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await quickly(publisher, refused)
            listed = [item.notification.notification_id for item in (await apps.list_inbox(who)).items]
            assert listed == sorted([first, unacked], reverse=True)
            assert await apps.mark(who, READ, first) == []
            await apps.choose(who, "newsletter", enabled=False)
            async with apps.device(who, device_id="tablet") as other:
                await other.ready()
                assert sorted(other.ids) == sorted([first, unacked])
            assert device.closed is None
            await until(lambda: time.monotonic() >= window_ends, 2 * ACK_WINDOW_S, "the window has ended meanwhile")
        later = await at_last(publisher, refused)
        await shows(device, first, unacked, later)
        await says(cluster, {"ingest": [], "fanout": [], "delivery": []})

        async def is_looked_at() -> bool:
            return not await awaits_first_look(cluster, who, unacked)

        await until(is_looked_at, BACK_S, "what was not acked is looked at")
        await shows(device, first, unacked, later)
        assert len((await apps.list_inbox(who)).items) == 3
    assert pids_of(cluster) == pids, "nobody was started anew"


async def test_without_cassandra_publish_is_accepted(on_engines: Cluster, engines: Engines) -> None:
    """The lanes hold what comes, sessions stay open, replay answers "later"; afterwards everybody has everything."""
    cluster, apps, who = on_engines, Apps(on_engines), "bert"
    pids = pids_of(cluster)
    async with asking_once(cluster) as publisher, apps.device(who) as device:
        await device.ready()
        first = await at_last(publisher, publisher.prepare(event("before", who)))
        await shows(device, first)
        async with without(engines, "cassandra"):
            await says(cluster, {"delivery": ["store"]})
            held = [await quickly(publisher, publisher.prepare(event(f"held {number}", who))) for number in range(5)]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await apps.list_inbox(who)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            async with apps.device(who, device_id="tablet") as late:
                await until(lambda: bool(late.frames), what="the late device is welcome")
                # Its list comes later: it is neither sent away nor told that it has everything.
                assert await waiting_events(cluster) >= len(held)
                assert (late.closed, late.checkpoints, device.closed) == (None, [], None)
        await shows(device, first, *held)
        async with apps.device(who, device_id="tablet") as late:
            await until(lambda: bool(late.checkpoints), BACK_S, "the late device has its list")
            assert sorted(late.ids) == sorted([first, *held])
        await until(lambda: is_through(cluster), BACK_S, "the lanes are empty")
        await says(cluster, {"delivery": []})
    assert pids_of(cluster) == pids, "nobody was started anew"


async def test_without_postgresql_known_wishes_and_essential_events_go_on(
    on_engines: Cluster, engines: Engines
) -> None:
    """Remembered wishes are obeyed, what is essential goes by its default, the rest and topics wait, none is lost."""
    cluster, apps, known, unknown = on_engines, Apps(on_engines), "carl", "dora"
    pids = pids_of(cluster)
    async with asking_once(cluster) as publisher, apps.device(known) as device, apps.device(unknown) as other:
        await device.ready()
        await other.ready()
        number = await other.subscribe("news")
        await other.has_confirmed(number)
        first = await at_last(publisher, publisher.prepare(event("first", known)))
        await shows(device, first)
        # Its wishes are remembered, and forgotten once fanout hears of the change; from then on they stay.
        dropped = await count_of(cluster, "fanout", DROPPED)
        await apps.choose(known, "mention", enabled=False)

        async def is_heard_of() -> bool:
            return await count_of(cluster, "fanout", DROPPED) > dropped

        await until(is_heard_of, 20.0, "fanout hears of the change")
        await at_last(publisher, publisher.prepare(event("unwanted", known, category="mention")))
        second = await at_last(publisher, publisher.prepare(event("second", known)))
        await shows(device, first, second)
        await until(lambda: is_through(cluster), what="what is before it is decided")
        async with without(engines, "postgresql"):
            await says(cluster, {"prefs": ["store"]})
            waits = await quickly(publisher, publisher.prepare(event("waits", unknown)))
            topic = await quickly(publisher, publisher.prepare(event("topic", topics=("news",))))
            passes = await quickly(publisher, publisher.prepare(event("essential", unknown, category="security")))
            await quickly(publisher, publisher.prepare(event("unwanted", known, category="mention")))
            cached = await quickly(publisher, publisher.prepare(event("cached", known)))
            await shows(device, first, second, cached)
            await shows(other, passes)
            assert other.ids == [passes]
            assert await waiting_events(cluster) >= 2
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await apps.choose(unknown, "newsletter", enabled=False)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await shows(other, passes, waits, topic)
        await until(lambda: is_through(cluster), BACK_S, "the lanes are empty")
        assert "unwanted" not in device.titles
        await says(cluster, {"prefs": []})
    assert pids_of(cluster) == pids, "nobody was started anew"


async def test_without_redis_publish_and_inboxes_go_on(on_engines: Cluster, engines: Engines) -> None:
    """Open sessions stay open, a repeat is absorbed by its id, and what came meanwhile is live again within a lease."""
    cluster, apps, who = on_engines, Apps(on_engines), "emma"
    pids = pids_of(cluster)
    async with asking_once(cluster) as publisher, apps.device(who) as device:
        await device.ready()
        first = await at_last(publisher, publisher.prepare(event("before", who)))
        await shows(device, first)
        async with without(engines, "redis"):
            await says(cluster, {"ingest": ["request_log"], "presence": ["store"]})
            prepared = publisher.prepare(event("meanwhile", who))
            meanwhile = await quickly(publisher, prepared)
            assert await quickly(publisher, prepared) == meanwhile

            async def is_stored() -> bool:
                return len((await apps.list_inbox(who)).items) == 2

            await until(is_stored, 20.0, "the row is in the inbox")
            assert await apps.unread(who) == 2
            assert device.closed is None
        last = await at_last(publisher, publisher.prepare(event("afterwards", who)))
        await shows(device, first, last)
        # Nobody could say where the device is: the follow-up looks after ten seconds, and after a minute.
        await until(lambda: meanwhile in device.ids, 2 * BACK_S, "what came meanwhile is on the screen")
        await shows(device, first, meanwhile, last)
        assert len((await apps.list_inbox(who)).items) == 3
        await says(cluster, {"ingest": [], "presence": []})
    assert pids_of(cluster) == pids, "nobody was started anew"

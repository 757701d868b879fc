"""Whom an event is for, decided once; whose wishes are remembered until they change; and in which order events come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

from heliograph.ingest.v1 import ingest_service_pb2 as ingest_pb
from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb
from heliograph.prefs.v1 import prefs_service_pb2_grpc as prefs_grpc
from heliograph.prefs.v1 import topic_service_pb2 as topics_pb
from heliograph.prefs.v1 import topic_service_pb2_grpc as topics_grpc
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.times import timestamp_of
from tests.support.apps import Apps
from tests.support.explaining import explained
from tests.support.publishing import publish_request
from tests.support.site import IN_EVERY_SHAPE, Site
from tests.support.wait import until

pytestmark = IN_EVERY_SHAPE

# Far less than remembered wishes live without a word of prefs, a minute; fanout asks what changed every second.
_CHANGED_LIMIT_S = 15.0
_KEYS, _EVENTS, _BATCH = ("door/1", "door/2", "door/3"), 120, 20


async def _subscribe(site: Site, who: str, *topic_ids: str) -> None:
    request, caller = topics_pb.SubscribeRequest(topic_ids=topic_ids), site.bearer("recipient", who)
    await site.call("prefs", lambda door: topics_grpc.TopicServiceStub(door).Subscribe, request, caller)


async def test_an_audience_is_recipients_and_topics_without_the_excluded_each_once(site: Site) -> None:
    """Whoever is meant in several ways gets one frame and one row; whoever is left out is so in each of them."""
    topics = ("audience/a", "audience/b")
    ways = {"in-a": topics[:1], "in-b": topics[1:], "in-both": topics, "in-both-and-named": topics, "left": topics}
    everybody = (*ways, "named", "left-and-named")
    for who, subscribed in ways.items():
        await _subscribe(site, who, *subscribed)
    async with site.undisturbed(stored=1), AsyncExitStack() as stack:
        devices = {who: await stack.enter_async_context(Apps(site.cluster).device(who)) for who in everybody}
        for device in devices.values():
            await device.ready()
        # Each is named twice, as a careless producer does.
        named = ["named", "in-both-and-named", "left-and-named"] * 2
        excluded = ["left", "left-and-named", "nobody-at-all"]
        request = publish_request("To all of these", to=named, topics=[*topics, *topics], excluded=excluded)
        event_id = (await site.publish(request)).event_id
        for who in everybody:
            answer = await explained(site.cluster, event_id, who)
            left = who.startswith("left")
            reason = plan_pb2.SUPPRESS_REASON_EXCLUDED if left else plan_pb2.SUPPRESS_REASON_UNSPECIFIED
            assert answer.suppress_reason == reason, who
            if not left:
                await devices[who].has(event_id)
            wanted = [] if left else [event_id]
            assert [item.notification.notification_id for item in (await site.inbox(who)).items] == wanted, who
            assert devices[who].ids == wanted, who


async def _mute(site: Site, who: str, *, over: bool) -> None:
    mute = prefs_pb.Mute(category="general")
    if over:
        mute.expire_time.CopyFrom(timestamp_of(0))
    request = prefs_pb.UpdatePreferencesRequest(preferences=prefs_pb.Preferences(mutes=[mute]))
    caller = site.bearer("recipient", who)
    await site.call("prefs", lambda door: prefs_grpc.PrefsServiceStub(door).UpdatePreferences, request, caller)


async def test_remembered_wishes_are_dropped_when_they_change(site: Site) -> None:
    """Long before they are a minute old: the next events obey the mute, and come again once it is taken back."""
    who = "remembered"

    async def is_decided(reason: plan_pb2.SuppressReason.ValueType) -> bool:
        event_id = (await site.publish(publish_request("For whoever is remembered", to=[who]))).event_id
        return (await explained(site.cluster, event_id, who)).suppress_reason == reason

    delivered, muted = plan_pb2.SUPPRESS_REASON_UNSPECIFIED, plan_pb2.SUPPRESS_REASON_MUTED
    hits = await site.metric("fanout", "heliograph_fanout_wishes_total", known="yes")
    for _ in range(2):
        assert await is_decided(delivered)
    assert await site.metric("fanout", "heliograph_fanout_wishes_total", known="yes") > hits
    await _mute(site, who, over=False)
    await until(lambda: is_decided(muted), _CHANGED_LIMIT_S, "the mute counts")
    await _mute(site, who, over=True)
    await until(lambda: is_decided(delivered), _CHANGED_LIMIT_S, "the mute is forgotten")


def _in_order(ids: Sequence[str], keys: dict[str, str]) -> dict[str, list[str]]:
    """The titles or ids of each ordering key, in the order in which they stand."""
    return {key: [id_ for id_ in ids if keys[id_] == key] for key in _KEYS}


async def test_events_of_one_ordering_key_come_in_their_order(site: Site) -> None:
    """Whoever else they are for: several keys in each batch, and each session has each of them in order."""
    chance = random.Random(7)
    readers = ("ordered-1", "ordered-2")
    keys: dict[str, str] = {}
    async with site.undisturbed(stored=_EVENTS), AsyncExitStack() as stack:
        devices = [
            await stack.enter_async_context(Apps(site.cluster).device(who, node=n)) for n, who in enumerate(readers)
        ]
        for device in devices:
            await device.ready()
        for _ in range(_EVENTS // _BATCH):
            chosen = [chance.choice(_KEYS) for _ in range(_BATCH)]
            answer: ingest_pb.BatchPublishResponse = await site.batch(
                [_ordered(key, chance, readers) for key in chosen]
            )
            keys |= {one.accepted.event_id: key for one, key in zip(answer.results, chosen, strict=True)}
        for device in devices:
            await device.has(*keys)
            assert len(device.ids) == len(keys)
            assert _in_order(device.ids, keys) == _in_order(list(keys), keys)


def _ordered(key: str, chance: random.Random, readers: Sequence[str]) -> ingest_pb.PublishRequest:
    """An event for the readers and for others, who differ from one to the next."""
    others = [f"bystander-{chance.randrange(1_000)}" for _ in range(chance.randrange(4))]
    to = [*others, *readers]
    chance.shuffle(to)
    return publish_request("In order", to=to, ordering_key=key, priority=notification_pb2.PRIORITY_NORMAL)

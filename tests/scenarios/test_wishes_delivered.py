"""Topics, mutes, mandatory categories and exclusion as events meet them: who gets what, and what Explain says of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb2
from heliograph.prefs.v1 import prefs_service_pb2_grpc as prefs_grpc
from heliograph.prefs.v1 import topic_service_pb2 as topics_pb2
from heliograph.prefs.v1 import topic_service_pb2_grpc as topics_grpc
from heliograph.prefs.v1.prefs_service_pb2 import CategoryPreference, Mute
from heliograph.type.v1 import plan_pb2
from heliograph.type.v1.notification_pb2 import NotificationState
from mesh.errors import NotFound
from mesh.times import timestamp_of
from tests.support.apps import Apps
from tests.support.device import Device, Form
from tests.support.explaining import asked, explained
from tests.support.publishing import publish_request
from tests.support.site import IN_EVERY_SHAPE, Site
from tests.support.wait import until

pytestmark = IN_EVERY_SHAPE

# Far more than an event needs to be decided, so that the mute is in force then.
_MUTED_S = 3.0
_LIMIT_S = 15.0
_DELIVERED = plan_pb2.SUPPRESS_REASON_UNSPECIFIED
_MUTED = plan_pb2.SUPPRESS_REASON_MUTED


async def _publish(site: Site, *topics: str, to: Sequence[str] = (), **fields: object) -> str:
    # Any keyword of the helper; it refuses what it does not know.
    request = publish_request("Of interest", to=to, topics=topics, **fields)  # type: ignore[arg-type] # checked there
    return (await site.publish(request)).event_id


async def _wish(site: Site, who: str, *mutes: Mute, categories: Sequence[CategoryPreference] = ()) -> None:
    wanted = prefs_pb2.Preferences(mutes=mutes, categories=categories)
    request = prefs_pb2.UpdatePreferencesRequest(preferences=wanted)
    caller = site.bearer("recipient", who)
    await site.call("prefs", lambda door: prefs_grpc.PrefsServiceStub(door).UpdatePreferences, request, caller)


async def _mutes(site: Site, who: str) -> int:
    request, caller = prefs_pb2.GetPreferencesRequest(), site.bearer("recipient", who)
    answer = await site.call("prefs", lambda door: prefs_grpc.PrefsServiceStub(door).GetPreferences, request, caller)
    return len(answer.preferences.mutes)


@asynccontextmanager
async def _subscribed(site: Site, topic: str, *names: str) -> AsyncIterator[None]:
    """Keeps recipients subscribed while the context is open."""
    begin, end = topics_pb2.SubscribeRequest(topic_ids=[topic]), topics_pb2.UnsubscribeRequest(topic_ids=[topic])
    for name in names:
        caller = site.bearer("recipient", name)
        await site.call("prefs", lambda door: topics_grpc.TopicServiceStub(door).Subscribe, begin, caller)
    yield
    for name in names:
        caller = site.bearer("recipient", name)
        await site.call("prefs", lambda door: topics_grpc.TopicServiceStub(door).Unsubscribe, end, caller)


async def _reasons(site: Site, event_id: str, names: Sequence[str]) -> dict[str, int]:
    """Why each did not get an event, as Explain says; what was delivered has a state and no reason."""
    return {name: (await explained(site.cluster, event_id, name)).suppress_reason for name in names}


@asynccontextmanager
async def _devices(site: Site, *names: str) -> AsyncIterator[dict[str, Device]]:
    async with AsyncExitStack() as stack:
        found = {name: await stack.enter_async_context(Apps(site.cluster).device(name)) for name in names}
        for device in found.values():
            await device.ready()
        yield found


@pytest.mark.parametrize("form", ["json", "proto", "grpc"])
async def test_a_session_begins_and_ends_an_interest(site: Site, form: Form) -> None:
    """Once it is confirmed, events that are accepted later find the recipient, or find it no more."""
    who, watcher, topic = f"reader-{form}", f"watcher-{form}", f"releases/{form}"
    async with (
        site.undisturbed(stored=4),
        _subscribed(site, topic, watcher),
        _devices(site, watcher) as watching,
        Apps(site.cluster).device(who, form=form) as device,
    ):
        await device.ready()
        early = await _publish(site, topic)
        # Who watches got it: the audience is decided.
        await watching[watcher].has(early)
        await device.has_confirmed(await device.subscribe(topic))
        wanted = await _publish(site, topic)
        await device.has(wanted)
        await device.has_confirmed(await device.unsubscribe(topic))
        late = await _publish(site, topic)
        await watching[watcher].has(late)
        last = await _publish(site, to=[who])
        await device.has(last)
        assert device.ids == [wanted, last]
        assert device.refusals == []
        listed = [item.notification.notification_id for item in (await site.inbox(who)).items]
        assert listed == [last, wanted]
        for event_id in (early, late):
            with pytest.raises(NotFound):
                await asked(site.cluster, event_id, who)


async def test_wishes_decide_about_an_event_and_explain_says_so(site: Site) -> None:
    """Mutes, opt-out and exclusion stop it, each by its name; a mandatory category comes through every mute."""
    topic = "wishes/obeyed"
    wanted = {
        "free": _DELIVERED,
        "topic-muted": _MUTED,
        "category-muted": _MUTED,
        "opted-out": plan_pb2.SUPPRESS_REASON_OPTED_OUT,
        "left-out": plan_pb2.SUPPRESS_REASON_EXCLUDED,
    }
    await _wish(site, "topic-muted", Mute(topic_id=topic))
    await _wish(site, "category-muted", Mute(category="general"))
    await _wish(site, "opted-out", categories=[CategoryPreference(category="general")])
    async with (
        site.undisturbed(stored=2),
        _subscribed(site, topic, *wanted),
        _devices(site, *wanted) as devices,
    ):
        event_id = await _publish(site, topic, excluded=["left-out"])
        assert await _reasons(site, event_id, list(wanted)) == wanted
        mandatory = await _publish(site, topic, category="security")
        for name, device in devices.items():
            due = [event_id, mandatory] if wanted[name] == _DELIVERED else [mandatory]
            await device.has(*due)
            assert sorted(device.ids) == sorted(due)
        assert await _reasons(site, mandatory, list(wanted)) == dict.fromkeys(wanted, _DELIVERED)
        code, output, _ = await site.cluster.run("explain", event_id, "topic-muted")
        assert (code, output.splitlines()[0]) == (0, "not delivered: muted")


async def test_a_mute_ends_by_itself(site: Site) -> None:
    """Until its end the category is silent, and nobody has to do anything for the next event to come."""
    who = "muted-for-a-while"
    async with site.undisturbed(stored=2), _devices(site, who) as devices:
        end = timestamp_of(round((time.time() + _MUTED_S) * 1_000_000))
        await _wish(site, who, Mute(category="general", expire_time=end))
        muted = await _publish(site, to=[who])
        assert await _reasons(site, muted, [who]) == {who: _MUTED}

        async def is_over() -> bool:
            return await _mutes(site, who) == 0

        assert not await is_over()
        await until(is_over, _LIMIT_S, "the mute is over")
        wanted = await _publish(site, to=[who])
        await devices[who].has(wanted)
        assert devices[who].ids == [wanted]
        answer = await explained(site.cluster, wanted, who)
        assert answer.state == NotificationState.NOTIFICATION_STATE_NEW

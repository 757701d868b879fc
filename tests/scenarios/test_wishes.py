"""Mutes and subscriptions as recipients meet them, right and wrong; a neighbour notices nothing of either."""

from __future__ import annotations

import time
from collections.abc import Sequence

from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb2
from heliograph.prefs.v1 import prefs_service_pb2_grpc as prefs_grpc
from heliograph.prefs.v1 import topic_service_pb2 as topics_pb2
from heliograph.prefs.v1 import topic_service_pb2_grpc as topics_grpc
from mesh.errors import InvalidArgument, PermissionDenied
from mesh.times import timestamp_of
from tests.support.refusals import judge, refusal_of
from tests.support.site import IN_A_MESH, IN_EVERY_SHAPE, OTHER_TENANT, Metadata, Site

HOUR = 3_600


async def _update(site: Site, who: Metadata, *mutes: prefs_pb2.Mute, **fields: object) -> prefs_pb2.Preferences:
    # Any keyword of the message; the message refuses what it does not have.
    wanted = prefs_pb2.Preferences(mutes=mutes, **fields)  # type: ignore[arg-type] # checked by the message
    request = prefs_pb2.UpdatePreferencesRequest(preferences=wanted)
    answer = await site.call("prefs", lambda door: prefs_grpc.PrefsServiceStub(door).UpdatePreferences, request, who)
    return answer.preferences


async def _subscribe(site: Site, who: Metadata, *topic_ids: str, **fields: str) -> list[str]:
    request = topics_pb2.SubscribeRequest(topic_ids=topic_ids, **fields)
    answer = await site.call("prefs", lambda door: topics_grpc.TopicServiceStub(door).Subscribe, request, who)
    return [one.topic_id for one in answer.subscriptions]


async def _unsubscribe(site: Site, who: Metadata, *topic_ids: str, **fields: str) -> topics_pb2.UnsubscribeResponse:
    request = topics_pb2.UnsubscribeRequest(topic_ids=topic_ids, **fields)
    return await site.call("prefs", lambda door: topics_grpc.TopicServiceStub(door).Unsubscribe, request, who)


async def _listed(
    site: Site, who: Metadata, *, recipient_id: str = "", tenant_id: str = "", page_token: str = ""
) -> list[str]:
    request = topics_pb2.ListSubscriptionsRequest(recipient_id=recipient_id, tenant_id=tenant_id, page_token=page_token)
    answer = await site.call("prefs", lambda door: topics_grpc.TopicServiceStub(door).ListSubscriptions, request, who)
    return [one.topic_id for one in answer.subscriptions]


def _muted(preferences: prefs_pb2.Preferences) -> Sequence[tuple[str, str]]:
    return [(one.category, one.topic_id) for one in preferences.mutes]


@IN_EVERY_SHAPE
async def test_a_recipient_subscribes_and_unsubscribes(site: Site) -> None:
    """Repeating either changes nothing, and ending what is not subscribed is no error."""
    dora = site.bearer("recipient", "dora")
    async with site.undisturbed():
        assert await _unsubscribe(site, dora, "news") == topics_pb2.UnsubscribeResponse()
        for _ in range(2):
            assert await _subscribe(site, dora, "repo/heliograph", "news") == ["news", "repo/heliograph"]
        assert await _listed(site, dora) == ["news", "repo/heliograph"]
        for _ in range(2):
            await _unsubscribe(site, dora, "news", "never")
        assert await _listed(site, dora) == ["repo/heliograph"]
        await _unsubscribe(site, dora, "repo/heliograph")
        assert await _listed(site, dora) == []


@IN_EVERY_SHAPE
async def test_a_recipient_mutes_and_unmutes(site: Site) -> None:
    """One mute beside another, each with its own end, and each taken back by itself."""
    dora = site.bearer("recipient", "dora")
    later = timestamp_of(round((time.time() + HOUR) * 1_000_000))
    async with site.undisturbed():
        await _update(site, dora, prefs_pb2.Mute(category="billing", expire_time=later))
        both = await _update(site, dora, prefs_pb2.Mute(topic_id="news"))
        assert _muted(both) == [("", "news"), ("billing", "")]
        assert both.mutes[1].expire_time == later
        past = timestamp_of(0)
        assert _muted(await _update(site, dora, prefs_pb2.Mute(topic_id="news", expire_time=past))) == [("billing", "")]
        assert _muted(await _update(site, dora, prefs_pb2.Mute(category="billing", expire_time=past))) == []


async def test_nobody_changes_the_wishes_of_another_recipient(site: Site) -> None:
    """Neither mutes nor subscriptions, neither in the own tenant nor in another one."""
    carol, alice = site.bearer("recipient", "carol"), site.bearer("recipient", "alice")
    async with site.undisturbed():
        await _subscribe(site, alice, "hers")
        for fields in ({"recipient_id": "alice"}, {"tenant_id": OTHER_TENANT}):
            for attempt in (
                _subscribe(site, carol, "news", **fields),
                _unsubscribe(site, carol, "hers", **fields),
                _listed(site, carol, **fields),
            ):
                judge(await refusal_of(attempt), PermissionDenied, "CALLER_NOT_ALLOWED")
        muting = _update(site, carol, prefs_pb2.Mute(category="billing"), recipient_id="alice")
        judge(await refusal_of(muting), PermissionDenied, "CALLER_NOT_ALLOWED")
        assert await _listed(site, alice) == ["hers"]
        assert await _listed(site, site.bearer("recipient", "alice", OTHER_TENANT)) == []
        assert _muted(await _update(site, alice)) == []
        await _unsubscribe(site, alice, "hers")


@IN_EVERY_SHAPE
async def test_malformed_wishes_are_refused_by_field(site: Site) -> None:
    """What is wrong is named, and the good part of the call is not stored either."""
    dora = site.bearer("recipient", "dora")
    mute, choice = prefs_pb2.Mute, prefs_pb2.CategoryPreference
    async with site.undisturbed():
        for topic_ids, field in (
            ((), "topic_ids"),
            (("news", "two words"), "topic_ids[1]"),
            (("",), "topic_ids[0]"),
            (("x" * 129,), "topic_ids[0]"),
            (tuple(f"t{number}" for number in range(101)), "topic_ids"),
        ):
            judge(await refusal_of(_subscribe(site, dora, *topic_ids)), InvalidArgument, "FIELD_INVALID", field)
            judge(await refusal_of(_unsubscribe(site, dora, *topic_ids)), InvalidArgument, "FIELD_INVALID", field)
        for mutes, field in (
            ([mute()], "preferences.mutes[0]"),
            ([mute(category="billing"), mute(category="nonsense")], "preferences.mutes[1].category"),
            ([mute(topic_id="two words")], "preferences.mutes[0].topic_id"),
            ([mute(category="security")], "preferences.mutes[0].category"),
            ([mute(topic_id=f"t{number}") for number in range(201)], "preferences.mutes"),
        ):
            judge(await refusal_of(_update(site, dora, *mutes)), InvalidArgument, "FIELD_INVALID", field)
        off = _update(site, dora, categories=[choice(category="billing"), choice(category="security")])
        judge(await refusal_of(off), InvalidArgument, "FIELD_INVALID", "preferences.categories[1].enabled")
        listed = _listed(site, dora, page_token="news")
        judge(await refusal_of(listed), InvalidArgument, "FIELD_INVALID", "page_token")
        now = await _update(site, dora)
        assert (_muted(now), {one.enabled for one in now.categories}) == ([], {True})
        assert await _listed(site, dora) == []


async def test_a_mask_with_an_unknown_path_changes_nothing(site: Site) -> None:
    """Also when other paths of it are good."""
    dora = site.bearer("recipient", "dora")
    request = prefs_pb2.UpdatePreferencesRequest(
        preferences=prefs_pb2.Preferences(mutes=[prefs_pb2.Mute(category="billing")])
    )
    request.update_mask.paths.extend(["mutes", "quiet_hours"])
    async with site.undisturbed():
        updating = site.call("prefs", lambda door: prefs_grpc.PrefsServiceStub(door).UpdatePreferences, request, dora)
        judge(await refusal_of(updating), InvalidArgument, "MASK_INVALID", "update_mask")
        assert _muted(await _update(site, dora)) == []


async def test_what_fanout_asks_is_for_fanout_alone(site: Site) -> None:
    """Neither a recipient nor a producer learns who subscribed to what, or whose wishes changed."""
    asked = topics_pb2.ListSubscribersRequest(tenant_id="acme", topic_id="news")
    for role in ("recipient", "producer"):
        who = site.bearer(role, "demo")
        listing = site.call("prefs", lambda door: topics_grpc.TopicServiceStub(door).ListSubscribers, asked, who)
        changes = site.call(
            "prefs",
            lambda door: prefs_grpc.PrefsServiceStub(door).ListWishChanges,
            prefs_pb2.ListWishChangesRequest(),
            who,
        )
        for attempt in (listing, changes):
            failure = await refusal_of(attempt)
            # At the edge there is no way to it at all.
            assert failure.code in ((12,) if site.mesh else (7,)), repr(failure)


@IN_A_MESH
async def test_topics_over_rest(site: Site) -> None:
    """Subscribe, list in pages, unsubscribe: with JSON and nothing else."""
    headers = {"authorization": f"Bearer {site.cluster.token('rosa')}"}
    async with site.rest() as client:
        made = await client.post("/v1/topics:subscribe", json={"topicIds": ["b", "a/1"]}, headers=headers)
        assert made.status_code == 200, made.text
        assert [one["topicId"] for one in made.json()["subscriptions"]] == ["a/1", "b"]
        page = await client.get("/v1/subscriptions?pageSize=1", headers=headers)
        assert [one["topicId"] for one in page.json()["subscriptions"]] == ["a/1"]
        token = page.json()["nextPageToken"]
        rest = await client.get("/v1/subscriptions", params={"pageSize": "1", "pageToken": token}, headers=headers)
        assert [one["topicId"] for one in rest.json()["subscriptions"]] == ["b"]
        ended = await client.post("/v1/topics:unsubscribe", json={"topicIds": ["b", "a/1"]}, headers=headers)
        assert (ended.status_code, ended.json()) == (200, {})
        refused = await client.post("/v1/topics:subscribe", json={"topicIds": ["two words"]}, headers=headers)
        assert (refused.status_code, refused.json()["details"][0]["reason"]) == (400, "FIELD_INVALID")
        nobody = await client.get("/v1/subscriptions")
        assert nobody.status_code == 401


@IN_A_MESH
async def test_mutes_over_rest(site: Site) -> None:
    """A mask of mutes replaces them, a field mask in JSON names them, and a wrong time is refused."""
    headers = {"authorization": f"Bearer {site.cluster.token('rosa')}"}
    async with site.rest() as client:
        body = {"preferences": {"mutes": [{"category": "billing", "expireTime": "2999-01-01T00:00:00Z"}]}}
        muted = await client.patch("/v1/preferences", json=body, headers=headers)
        assert muted.status_code == 200, muted.text
        assert muted.json()["preferences"]["mutes"] == body["preferences"]["mutes"]
        cleared = await client.patch("/v1/preferences", json={"updateMask": "mutes"}, headers=headers)
        assert cleared.status_code == 200, cleared.text
        assert cleared.json()["preferences"].get("mutes", []) == []
        body["preferences"]["mutes"][0]["expireTime"] = "tomorrow"
        assert (await client.patch("/v1/preferences", json=body, headers=headers)).status_code == 400

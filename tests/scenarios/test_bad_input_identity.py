"""Callers who act for others: other recipients, tenants and roles. Nothing of anybody's is shown or changes."""

from __future__ import annotations

import pytest

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb2
from heliograph.delivery.v1 import inbox_service_pb2_grpc as inbox_grpc
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb2
from heliograph.prefs.v1 import prefs_service_pb2_grpc as prefs_grpc
from heliograph.type.v1.notification_pb2 import MARK_KIND_HIDDEN, Mark
from mesh.channel import call
from mesh.errors import Failure, InvalidArgument, PermissionDenied, Unauthenticated, Unimplemented
from tests.support.publishing import publish_request
from tests.support.raw_socket import hello, opened
from tests.support.recipient_calls import RecipientCalls, calls_of, mark_of
from tests.support.refusals import judge, refusal_of
from tests.support.site import NEIGHBOUR, OTHER_TENANT, Site

# ---------------------------------------------------------------- other recipients


@pytest.mark.parametrize(
    ("tenant", "caller", "tenant_id", "recipient_id"),
    [
        ("acme", "nina", "", "alice"),
        ("acme", "nina", OTHER_TENANT, ""),
        (OTHER_TENANT, "alice", "acme", ""),
        (OTHER_TENANT, "alice", "acme", "alice"),
    ],
)
async def test_a_recipient_reads_nobody_elses(
    site: Site, tenant: str, caller: str, tenant_id: str, recipient_id: str
) -> None:
    """Neither another recipient's inbox, number or preferences, nor one of the same name in another tenant."""
    calls = calls_of(site, caller, tenant)
    listing = inbox_pb2.ListInboxRequest(tenant_id=tenant_id, recipient_id=recipient_id)
    counting = inbox_pb2.GetUnreadRequest(tenant_id=tenant_id, recipient_id=recipient_id)
    reading = prefs_pb2.GetPreferencesRequest(tenant_id=tenant_id, recipient_id=recipient_id)
    async with site.undisturbed():
        for attempt in (calls.list_inbox(listing), calls.get_unread(counting), calls.get_preferences(reading)):
            judge(await refusal_of(attempt), PermissionDenied, "CALLER_NOT_ALLOWED")
        assert list((await calls.list_inbox(inbox_pb2.ListInboxRequest())).items) == []


def _marks_for_others(*ids: str) -> list[list[Mark]]:
    return [
        [mark_of("acme/alice", MARK_KIND_HIDDEN, *ids)],
        [mark_of("", MARK_KIND_HIDDEN, ids[0]), mark_of("acme/alice", MARK_KIND_HIDDEN, ids[0])],
        [mark_of(f"{OTHER_TENANT}/carol", MARK_KIND_HIDDEN, ids[0])],
        [mark_of("alice", MARK_KIND_HIDDEN, ids[0])],
    ]


async def test_a_recipient_changes_nobody_elses(site: Site) -> None:
    """Marks for another inbox are refused with all that came with them; preferences of others stay."""
    carol, alice = calls_of(site, "carol"), calls_of(site, "alice")
    before = await alice.get_preferences(prefs_pb2.GetPreferencesRequest())
    chosen = prefs_pb2.Preferences(recipient_id="alice", categories=[prefs_pb2.CategoryPreference(category="general")])
    own = prefs_pb2.Preferences(categories=chosen.categories)
    async with site.undisturbed():
        for several in _marks_for_others(*site.gifts):
            judge(await refusal_of(carol.mark(several)), PermissionDenied, "CALLER_NOT_ALLOWED")
        cleared = carol.mark_all_read(inbox_pb2.MarkAllReadRequest(recipient_id="alice"))
        judge(await refusal_of(cleared), PermissionDenied, "CALLER_NOT_ALLOWED")
        updated = carol.update_preferences(prefs_pb2.UpdatePreferencesRequest(preferences=chosen))
        judge(await refusal_of(updated), PermissionDenied, "CALLER_NOT_ALLOWED")
        elsewhere = calls_of(site, "alice", OTHER_TENANT).update_preferences(
            prefs_pb2.UpdatePreferencesRequest(preferences=own, tenant_id="acme")
        )
        judge(await refusal_of(elsewhere), PermissionDenied, "CALLER_NOT_ALLOWED")
    assert await alice.get_preferences(prefs_pb2.GetPreferencesRequest()) == before


async def test_a_mark_for_an_id_of_somebody_else_is_not_stored(site: Site) -> None:
    """The id is told to be unknown, whoever else has it."""
    async with site.undisturbed():
        answer = await calls_of(site, "carol").mark([mark_of("", MARK_KIND_HIDDEN, *site.gifts)])
        assert [ref.notification_id for ref in answer.unknown_refs] == list(site.gifts)
        assert not {item.notification.notification_id for item in (await site.inbox("carol")).items} & set(site.gifts)


async def test_a_role_opens_its_own_methods_only(site: Site) -> None:
    """A recipient publishes nothing, a producer reads nothing, and neither reaches what is inside."""
    recipient, producer = site.bearer("recipient", "alice"), site.bearer("producer", "demo")
    async with site.undisturbed():
        published = await refusal_of(site.publish(publish_request("Bad", to=["alice"]), recipient))
        judge(published, PermissionDenied, "CALLER_NOT_ALLOWED")
        listed = RecipientCalls(site, producer).list_inbox(inbox_pb2.ListInboxRequest())
        judge(await refusal_of(listed), PermissionDenied, "CALLER_NOT_ALLOWED")
        for credentials in (recipient, producer):
            judge_inside = _unknown_outside if site.mesh else _not_for_outsiders
            lag = site.call(
                "fanout",
                lambda door: fanout_service_pb2_grpc.FanoutServiceStub(door).GetLag,
                fanout_service_pb2.GetLagRequest(),
                credentials,
            )
            judge_inside(await refusal_of(lag))
            resolved = site.call(
                "prefs",
                lambda door: prefs_grpc.PrefsServiceStub(door).BatchResolve,
                prefs_pb2.BatchResolveRequest(tenant_id="acme"),
                credentials,
            )
            judge_inside(await refusal_of(resolved))
            replayed = site.call(
                "delivery",
                lambda door: inbox_grpc.InboxServiceStub(door).ReplayInbox,
                inbox_pb2.ReplayInboxRequest(recipient_key="acme/alice"),
                credentials,
            )
            judge_inside(await refusal_of(replayed))


def _unknown_outside(failure: Failure) -> None:
    assert isinstance(failure, Unimplemented), repr(failure)


def _not_for_outsiders(failure: Failure) -> None:
    # A service that nobody outside may call takes no tokens at all.
    reasons = {PermissionDenied: "CALLER_NOT_ALLOWED", Unauthenticated: "TOKEN_INVALID"}
    assert failure.reason == reasons[type(failure)], repr(failure)


async def test_an_operator_must_say_whom_it_means(site: Site) -> None:
    """Nothing is guessed for a caller who may see everybody."""
    async with site.undisturbed():
        for tenant_id, missing in (("", "tenant_id"), ("acme", "recipient_id")):
            failure = await refusal_of(_as_operator(site, inbox_pb2.ListInboxRequest(tenant_id=tenant_id)))
            judge(failure, InvalidArgument, "FIELD_INVALID", missing)


async def _as_operator(site: Site, request: inbox_pb2.ListInboxRequest) -> inbox_pb2.ListInboxResponse:
    if not site.mesh:
        return await call(
            inbox_grpc.InboxServiceStub(site.door("delivery")).ListInbox,
            request,
            timeout=5.0,
            metadata=site.as_operator(),
        )
    running = site.cluster.running
    name = f"delivery.{running.trust_domain}"
    async with site.dial(running.inbound["delivery"], site.leaf("operator/dev"), name) as channel:
        return await call(inbox_grpc.InboxServiceStub(channel).ListInbox, request, timeout=5.0)


# ---------------------------------------------------------------- another tenant


async def test_a_producer_of_another_tenant_reaches_its_own_recipients_only(site: Site) -> None:
    """The same recipient id in two tenants is two recipients."""
    async with site.undisturbed(stored=1):
        answer = await site.publish(
            publish_request("From elsewhere", to=["erin"]), site.bearer("producer", "demo", OTHER_TENANT)
        )
    assert list((await site.inbox("erin")).items) == []
    theirs = [item.notification.notification_id for item in (await site.inbox("erin", OTHER_TENANT)).items]
    assert theirs == [answer.event_id]


async def test_a_request_id_of_another_tenant_is_another_request(site: Site) -> None:
    """What one tenant published can neither be read nor blocked by repeating its id elsewhere."""
    request = publish_request("Ours", to=["frank"], id_="0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0")
    async with site.undisturbed(stored=2):
        ours = await site.publish(request)
        request.event.content.title = "Theirs"
        theirs = await site.publish(request, site.bearer("producer", "demo", OTHER_TENANT))
    assert not theirs.replayed
    assert ours.event_id != theirs.event_id
    assert [item.notification.content.title for item in (await site.inbox("frank")).items] == ["Ours"]


async def test_a_session_of_another_tenant_hears_nothing_and_ends_nobodys(site: Site) -> None:
    """The same recipient and the same device id in another tenant is another session."""
    async with opened(site.live_url, site.tls()) as raw:
        await raw.say(hello(site.cluster.token(NEIGHBOUR, tenant=OTHER_TENANT), "device-json"))
        await raw.until("replayed")
        async with site.undisturbed():
            pass
        await raw.say('{"ping": {}, "frameNumber": 2}')
        assert "notify" not in await raw.kinds_until("pong")

"""Callers who are not whom they say, or who act for others: refused everywhere, and nothing of anybody's changes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import NamedTuple

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb2
from heliograph.delivery.v1 import inbox_service_pb2_grpc as inbox_grpc
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.ingest.v1 import ingest_service_pb2_grpc
from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb2
from heliograph.prefs.v1 import prefs_service_pb2_grpc as prefs_grpc
from heliograph.type.v1 import notification_pb2
from mesh.channel import call
from mesh.envoy import pki
from mesh.errors import Failure, InvalidArgument, PermissionDenied, Unauthenticated, Unavailable, Unimplemented
from mesh.identity import PRODUCER_HEADER, TOKEN_HEADER
from tests.support.publishing import publish_request
from tests.support.raw_socket import End, hello, opened
from tests.support.refusals import judge, refusal_of
from tests.support.site import IN_A_MESH, NEIGHBOUR, OTHER_TENANT, Metadata, Site

HOUR = 3600.0
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


# ---------------------------------------------------------------- tokens


class Forged(NamedTuple):
    """One way to make a bad token: what differs from a good one."""

    name: str
    claims: Mapping[str, object] = {}
    header: Mapping[str, object] = {}
    missing: str = ""
    key: Ed25519PrivateKey | None = None
    reason: str = "TOKEN_INVALID"


FORGED = (
    Forged("of another key under a known name", key=OTHER_KEY),
    Forged("of a key that nobody knows", header={"kid": "nobody"}),
    Forged("of a key named like a file", header={"kid": "../../../etc/passwd"}),
    Forged("of a key without a name", header={"kid": ""}),
    Forged("with a header that must be understood", header={"crit": ["b64"], "b64": False}),
    Forged("for another audience", {"aud": "billing"}),
    Forged("by another issuer", {"iss": "https://heliograph"}),
    Forged("without an end", missing="exp"),
    Forged("without a subject", missing="sub"),
    Forged("without a tenant", missing="tenant"),
    Forged("without a role", missing="role"),
    Forged("without an audience", missing="aud"),
    Forged("with an empty subject", {"sub": ""}),
    Forged("with a number as tenant", {"tenant": 1}),
    Forged("of an operator", {"role": "operator"}),
    Forged("of a service", {"role": "gateway"}),
    Forged("with an end that is text", {"exp": "tomorrow"}),
    Forged("of tomorrow", {"iat": time.time() + 24 * HOUR}),
    Forged("that is not valid yet", {"nbf": time.time() + HOUR}),
    Forged("that is too long", {"note": "x" * 5_000}),
    Forged("that is over", {"iat": time.time() - 2 * HOUR, "exp": time.time() - HOUR}, reason="TOKEN_EXPIRED"),
)


def _forge(site: Site, forged: Forged, role: str, subject: str) -> str:
    good = site.cluster.token(subject, role=role)
    claims = jwt.decode(good, options={"verify_signature": False})
    claims |= forged.claims
    claims.pop(forged.missing, None)
    header = {**jwt.get_unverified_header(good), **forged.header}
    own = serialization.load_pem_private_key(site.cluster.place.token_key.read_bytes(), password=None)
    assert isinstance(own, Ed25519PrivateKey)
    return jwt.encode(claims, forged.key or own, algorithm="EdDSA", headers=header)


async def _try_everywhere(site: Site, producer: str, recipient: str, reason: str) -> None:
    """Shows tokens wherever one is taken."""
    judge(
        await refusal_of(site.publish(publish_request("Bad", to=["alice"]), _bearer(producer))), Unauthenticated, reason
    )
    judge(await refusal_of(_list(site, _bearer(recipient))), Unauthenticated, reason)
    judge(await refusal_of(_preferences(site, _bearer(recipient))), Unauthenticated, reason)
    async with opened(site.live_url, site.tls()) as raw:
        await raw.say(hello(recipient))
        code = 4003 if reason == "TOKEN_EXPIRED" else 4501
        assert await raw.end() == End(code, reason, (reason,))
    if site.mesh:
        async with site.rest() as client:
            answer = await client.get("/v1/inbox", headers={"authorization": f"Bearer {recipient}".strip()})
        assert (answer.status_code, answer.json()["code"]) == (401, Unauthenticated.code)
        assert answer.json()["details"][0]["reason"] == reason


def _bearer(token: str) -> Metadata:
    return ((TOKEN_HEADER, f"Bearer {token}"),)


async def _list(
    site: Site, credentials: Metadata, *, recipient_id: str = "", tenant_id: str = ""
) -> inbox_pb2.ListInboxResponse:
    request = inbox_pb2.ListInboxRequest(recipient_id=recipient_id, tenant_id=tenant_id)
    return await site.call("delivery", lambda door: inbox_grpc.InboxServiceStub(door).ListInbox, request, credentials)


async def _preferences(site: Site, credentials: Metadata, **fields: str) -> prefs_pb2.GetPreferencesResponse:
    request = prefs_pb2.GetPreferencesRequest(**fields)
    return await site.call("prefs", lambda door: prefs_grpc.PrefsServiceStub(door).GetPreferences, request, credentials)


@pytest.mark.parametrize("forged", FORGED, ids=[forged.name.replace(" ", "-") for forged in FORGED])
async def test_a_bad_token_opens_nothing(site: Site, forged: Forged) -> None:
    """Calls, REST and hello refuse it alike, and say whether a fresh one would help."""
    producer, recipient = _forge(site, forged, "producer", "demo"), _forge(site, forged, "recipient", "alice")
    async with site.undisturbed():
        await _try_everywhere(site, producer, recipient, forged.reason)


async def test_a_token_without_a_true_signature_opens_nothing(site: Site) -> None:
    """No algorithm, a public key used as a secret, a changed claim, and what is no token at all."""
    good = site.cluster.token("alice")
    claims = jwt.decode(good, options={"verify_signature": False})
    kid = jwt.get_unverified_header(good)["kid"]
    header, _, signature = good.split(".")
    bob = site.cluster.token("bob").split(".")[1]
    public = json.loads(site.cluster.place.token_keys.read_bytes())["keys"][0]["x"]
    bad = [
        jwt.encode(claims, "", algorithm="none", headers={"kid": kid}),
        jwt.encode(claims, public, "HS256", headers={"kid": kid}),
        f"{header}.{bob}.{signature}",
        f"{good[:-4]}AAAA",
        "not-a-token",
        "a.b.c",
        "",
    ]
    async with site.undisturbed():
        for token in bad:
            await _try_everywhere(site, token, token, "TOKEN_INVALID")


async def test_credentials_of_another_kind_open_nothing(site: Site) -> None:
    """Another scheme, and two tokens of which nobody could say which one counts."""
    alice, bob = (f"Bearer {site.cluster.token(name)}" for name in ("alice", "bob"))
    async with site.undisturbed():
        for credentials in (
            ((TOKEN_HEADER, "Basic YWxpY2U6YWxpY2U="),),
            ((TOKEN_HEADER, alice), (TOKEN_HEADER, bob)),
            ((TOKEN_HEADER, alice.removeprefix("Bearer ")),),
        ):
            judge(await refusal_of(_list(site, credentials)), Unauthenticated, "TOKEN_INVALID")


async def test_without_credentials_nothing_is_open(site: Site) -> None:
    """The edge's callers are asked who they are; without an edge a caller without a name has no role."""
    async with site.undisturbed():
        for failure in (
            await refusal_of(site.publish(publish_request("Bad", to=["alice"]), ())),
            await refusal_of(_list(site, ())),
            await refusal_of(_preferences(site, ())),
        ):
            if site.mesh:
                judge(failure, Unauthenticated, "TOKEN_INVALID")
            else:
                judge(failure, PermissionDenied, "CALLER_NOT_ALLOWED")


# ---------------------------------------------------------------- acting for others


async def test_a_recipient_reads_nobody_elses(site: Site) -> None:
    """Neither another recipient's inbox, number or preferences, nor one of the same name in another tenant."""
    carol, foreign = site.bearer("recipient", "carol"), site.bearer("recipient", "alice", OTHER_TENANT)
    asked = [
        (carol, {"recipient_id": "alice"}),
        (carol, {"tenant_id": OTHER_TENANT}),
        (foreign, {"tenant_id": "acme"}),
        (foreign, {"tenant_id": "acme", "recipient_id": "alice"}),
    ]
    async with site.undisturbed():
        for credentials, fields in asked:
            judge(await refusal_of(_list(site, credentials, **fields)), PermissionDenied, "CALLER_NOT_ALLOWED")
            judge(await refusal_of(_preferences(site, credentials, **fields)), PermissionDenied, "CALLER_NOT_ALLOWED")
            unread = site.call(
                "delivery",
                lambda door: inbox_grpc.InboxServiceStub(door).GetUnread,
                inbox_pb2.GetUnreadRequest(**fields),
                credentials,
            )
            judge(await refusal_of(unread), PermissionDenied, "CALLER_NOT_ALLOWED")
    assert list((await _list(site, foreign)).items) == []


def _mark(key: str, *ids: str) -> notification_pb2.Mark:
    refs = [notification_pb2.NotificationRef(notification_id=id_) for id_ in ids]
    return notification_pb2.Mark(recipient_key=key, kind=notification_pb2.MARK_KIND_HIDDEN, refs=refs)


async def test_a_recipient_changes_nobody_elses(site: Site) -> None:
    """Marks for another inbox are refused with all that came with them; preferences of others stay."""
    carol = site.bearer("recipient", "carol")
    before = (await _preferences(site, site.bearer("recipient", "alice"))).SerializeToString(deterministic=True)
    marks = [
        [_mark("acme/alice", *site.gifts)],
        [_mark("", site.gifts[0]), _mark("acme/alice", site.gifts[0])],
        [_mark(f"{OTHER_TENANT}/carol", site.gifts[0])],
        [_mark("alice", site.gifts[0])],
    ]
    chosen = prefs_pb2.Preferences(recipient_id="alice", categories=[prefs_pb2.CategoryPreference(category="general")])
    async with site.undisturbed():
        for several in marks:
            marked = site.call(
                "delivery",
                lambda door: inbox_grpc.InboxServiceStub(door).BatchMark,
                inbox_pb2.BatchMarkRequest(marks=several),
                carol,
            )
            judge(await refusal_of(marked), PermissionDenied, "CALLER_NOT_ALLOWED")
        cleared = site.call(
            "delivery",
            lambda door: inbox_grpc.InboxServiceStub(door).MarkAllRead,
            inbox_pb2.MarkAllReadRequest(recipient_id="alice"),
            carol,
        )
        judge(await refusal_of(cleared), PermissionDenied, "CALLER_NOT_ALLOWED")
        updated = site.call(
            "prefs",
            lambda door: prefs_grpc.PrefsServiceStub(door).UpdatePreferences,
            prefs_pb2.UpdatePreferencesRequest(preferences=chosen),
            carol,
        )
        judge(await refusal_of(updated), PermissionDenied, "CALLER_NOT_ALLOWED")
    after = (await _preferences(site, site.bearer("recipient", "alice"))).SerializeToString(deterministic=True)
    assert after == before


async def test_a_mark_for_an_id_of_somebody_else_is_not_stored(site: Site) -> None:
    """The id is told to be unknown, whoever else has it."""
    async with site.undisturbed():
        answer = await site.call(
            "delivery",
            lambda door: inbox_grpc.InboxServiceStub(door).BatchMark,
            inbox_pb2.BatchMarkRequest(marks=[_mark("", *site.gifts)]),
            site.bearer("recipient", "carol"),
        )
        assert [ref.notification_id for ref in answer.unknown_refs] == list(site.gifts)
        assert not {item.notification.notification_id for item in (await site.inbox("carol")).items} & set(site.gifts)


async def test_a_role_opens_its_own_methods_only(site: Site) -> None:
    """A recipient publishes nothing, a producer reads nothing, and neither reaches what is inside."""
    recipient, producer = site.bearer("recipient", "alice"), site.bearer("producer", "demo")
    async with site.undisturbed():
        published = await refusal_of(site.publish(publish_request("Bad", to=["alice"]), recipient))
        judge(published, PermissionDenied, "CALLER_NOT_ALLOWED")
        judge(await refusal_of(_list(site, producer)), PermissionDenied, "CALLER_NOT_ALLOWED")
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
        came = await raw.next()
        assert not isinstance(came, End)
        assert came.WhichOneof("frame") == "pong"


# ---------------------------------------------------------------- through the edge


@IN_A_MESH
async def test_forged_identity_headers_change_nobody(site: Site) -> None:
    """Whatever is written into the mesh's own headers from outside, the caller is who its token says, or nobody."""
    uri = "spiffe://heliograph.local/producer/acme/demo"
    forged = (
        {PRODUCER_HEADER: uri},
        {PRODUCER_HEADER.upper(): uri},
        {"x-heliograph-caller": "producer/acme/demo"},
        {"x-forwarded-client-cert": f"By=x;Hash=y;URI={uri}"},
        {PRODUCER_HEADER: uri, "x-forwarded-client-cert": "URI=spiffe://heliograph.local/svc/edge"},
        {"x-envoy-original-path": "/v1/inbox", PRODUCER_HEADER: f"{uri},{uri}"},
    )
    event = {"event": {"category": "general", "audience": {"recipientIds": ["alice"]}, "content": {"title": "Bad"}}}
    bearer = {TOKEN_HEADER: f"Bearer {site.cluster.token('carol')}"}
    async with site.undisturbed(), site.rest() as client:
        for headers in forged:
            nobody = await client.post("/v1/events", json=event, headers=headers)
            assert (nobody.status_code, nobody.json()["details"][0]["reason"]) == (401, "TOKEN_INVALID"), headers
            carol = await client.post("/v1/events", json=event, headers={**headers, **bearer})
            assert (carol.status_code, carol.json()["details"][0]["reason"]) == (403, "CALLER_NOT_ALLOWED"), headers
            listed = await client.get("/v1/preferences", headers={**headers, **bearer})
            assert listed.json()["preferences"]["recipientId"] == "carol"
        look_alike = await client.post("/v1/events", json=event, headers={PRODUCER_HEADER.replace("-", "_"): uri})
        assert look_alike.status_code == 400


def _authority(site: Site) -> pki.Authority:
    folder = site.certs_dir / "ca"
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return pki.Authority(x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes()), key)


def _issue(by: pki.Authority, path: str, now: float) -> pki.Leaf:
    return pki.issue(by, pki.Names("stranger", (f"spiffe://heliograph.local/{path}",)), now, HOUR)


async def _publish_as(site: Site, leaf: pki.Leaf | None, recipient: str = "alice") -> Failure | None:
    """Publishes with a certificate under the producers' name; returns the failure, if any."""
    running = site.cluster.running
    async with site.dial(running.edge, leaf, running.producer_host) as channel:
        stub = ingest_service_pb2_grpc.IngestServiceStub(channel)
        try:
            await call(stub.Publish, publish_request("Bad", to=[recipient]), timeout=5.0)
        except Failure as failure:
            return failure
    return None


@IN_A_MESH
async def test_a_certificate_that_is_not_a_producers_is_refused(site: Site) -> None:
    """None, another's, an unknown root's, an expired one, one of another domain: TLS itself ends it."""
    now, own = time.time(), _authority(site)
    stranger = pki.create_authority("another root", now, HOUR)
    elsewhere = pki.Names("stranger", ("spiffe://heliograph.example/producer/acme/demo",))
    bad = (
        None,
        site.leaf("operator/dev"),
        site.leaf("svc/ingest"),
        _issue(stranger, "producer/acme/demo", now),
        _issue(own, "producer/acme/demo", now - 2 * HOUR),
        pki.issue(own, elsewhere, now, HOUR),
    )
    async with site.undisturbed():
        for leaf in bad:
            assert isinstance(await _publish_as(site, leaf), Unavailable)


@IN_A_MESH
async def test_a_certificate_of_another_tenant_publishes_there(site: Site) -> None:
    """Tenant and producer come from the certificate; one that is not registered publishes nothing."""
    async with site.undisturbed(stored=1):
        assert await _publish_as(site, site.leaf(f"producer/{OTHER_TENANT}/demo"), "grace") is None
        unknown = await _publish_as(site, _issue(_authority(site), "producer/acme/ghost", time.time()))
        assert unknown is not None
        judge(unknown, PermissionDenied, "NOT_GRANTED")
    assert list((await site.inbox("grace")).items) == []
    assert len((await site.inbox("grace", OTHER_TENANT)).items) == 1


@IN_A_MESH
async def test_sidecars_are_closed_to_strangers(site: Site) -> None:
    """Behind the edge nobody comes in without a certificate of the mesh, and with one only where its role may."""
    running = site.cluster.running
    foreign = _issue(pki.create_authority("another root", time.time(), HOUR), "svc/edge", time.time())
    bearer = site.bearer("recipient", "alice")
    async with site.undisturbed():
        for leaf, kind in (
            (None, Unavailable),
            (foreign, Unavailable),
            (site.leaf("producer/acme/demo"), PermissionDenied),
            (site.leaf("svc/fanout"), PermissionDenied),
        ):
            name = f"delivery.{running.trust_domain}"
            async with site.dial(running.inbound["delivery"], leaf, name) as channel:
                stub = inbox_grpc.InboxServiceStub(channel)
                listed = call(stub.ListInbox, inbox_pb2.ListInboxRequest(), timeout=5.0, metadata=bearer)
                assert type(await refusal_of(listed)) is kind

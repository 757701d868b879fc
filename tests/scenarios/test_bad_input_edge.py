"""Strangers at the edge: forged headers, wrong certificates, and requests that are no calls. A mesh only has one.

What the edge refuses by itself looks like what the services refuse: a status with a code, in JSON.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb2
from heliograph.delivery.v1 import inbox_service_pb2_grpc as inbox_grpc
from heliograph.ingest.v1 import ingest_service_pb2_grpc
from mesh.channel import call
from mesh.envoy import pki
from mesh.errors import Failure, PermissionDenied, Unavailable
from mesh.identity import PRODUCER_HEADER, TOKEN_HEADER
from tests.support.controls import CONTROLS
from tests.support.publishing import publish_request
from tests.support.refusals import judge, refusal_of
from tests.support.site import IN_A_MESH, OTHER_TENANT, Site

pytestmark = IN_A_MESH
HOUR = 3600.0
EVENT = {"event": {"category": "general", "audience": {"recipientIds": ["alice"]}, "content": {"title": "Bad"}}}


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
    bearer = {TOKEN_HEADER: f"Bearer {site.cluster.token('carol')}"}
    async with site.undisturbed(), site.rest() as client:
        for headers in forged:
            nobody = await client.post("/v1/events", json=EVENT, headers=headers)
            assert (nobody.status_code, nobody.json()["details"][0]["reason"]) == (401, "TOKEN_INVALID"), headers
            carol = await client.post("/v1/events", json=EVENT, headers={**headers, **bearer})
            assert (carol.status_code, carol.json()["details"][0]["reason"]) == (403, "CALLER_NOT_ALLOWED"), headers
            listed = await client.get("/v1/preferences", headers={**headers, **bearer})
            assert listed.json()["preferences"]["recipientId"] == "carol"
        look_alike = await client.post("/v1/events", json=EVENT, headers={PRODUCER_HEADER.replace("-", "_"): uri})
        assert look_alike.status_code == 400


async def test_control_headers_from_outside_change_no_call(site: Site) -> None:
    """Who tells the edge how long to wait and how often to try is served as if nothing had been said."""
    headers = {TOKEN_HEADER: f"Bearer {site.cluster.token('demo', role='producer')}", **CONTROLS}
    event = {**EVENT["event"], "audience": {"recipientIds": ["wendy"]}}
    async with site.undisturbed(stored=2), site.rest() as client:
        over_rest = await client.post("/v1/events", json={"event": event}, headers=headers)
        assert over_rest.status_code == 200, over_rest.text
        over_grpc = await site.publish(publish_request("Bad", to=["wendy"]), tuple(headers.items()))
        refused = await client.post("/v1/events", json={"event": {**event, "category": "gossip"}}, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (400, 3)
    ids = [item.notification.notification_id for item in (await site.inbox("wendy")).items]
    assert sorted(ids) == sorted([over_rest.json()["eventId"], over_grpc.event_id])


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


async def test_a_certificate_of_another_tenant_publishes_there(site: Site) -> None:
    """Tenant and producer come from the certificate; one that is not registered publishes nothing."""
    async with site.undisturbed(stored=1):
        assert await _publish_as(site, site.leaf(f"producer/{OTHER_TENANT}/demo"), "grace") is None
        unknown = await _publish_as(site, _issue(_authority(site), "producer/acme/ghost", time.time()))
        assert unknown is not None
        judge(unknown, PermissionDenied, "NOT_GRANTED")
    assert list((await site.inbox("grace")).items) == []
    assert len((await site.inbox("grace", OTHER_TENANT)).items) == 1


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


# ---------------------------------------------------------------- requests that are no calls

JSON = {"content-type": "application/json"}


class Odd(NamedTuple):
    """One odd request, and the answer: HTTP status and gRPC code."""

    name: str
    method: str
    path: str
    status: int
    code: int
    content: bytes = b""


ODD = (
    Odd("an unknown path", "GET", "/v1/nothing", 404, 5),
    Odd("the root", "GET", "/", 404, 5),
    Odd("an unknown verb of a path", "POST", "/v1/events:destroy", 404, 5),
    Odd("another method", "GET", "/v1/events", 404, 5),
    Odd("another method of the inbox", "DELETE", "/v1/inbox", 404, 5),
    Odd("an unknown parameter", "GET", "/v1/inbox?colour=red", 400, 3),
    Odd("a parameter of the wrong type", "GET", "/v1/inbox?pageSize=many", 400, 3),
    Odd("a negative page", "GET", "/v1/inbox?pageSize=-1", 400, 3),
    Odd("a tampered page token", "GET", "/v1/inbox?pageToken=abc", 400, 3),
    Odd("another recipient", "GET", "/v1/inbox?recipientId=alice", 403, 7),
    Odd("another tenant", "GET", "/v1/inbox/unread?tenantId=globex", 403, 7),
    Odd("a way around", "GET", "/v1/inbox/../../etc/passwd", 404, 5),
    Odd("an escaped slash", "GET", "/v1%2Finbox", 400, 3),
    Odd("a zero byte", "GET", "/v1/inbox%00", 400, 3),
    Odd("the service's own path", "GET", "/heliograph.delivery.v1.InboxService/ListInbox", 404, 5),
    Odd("an internal service", "POST", "/heliograph.fanout.v1.FanoutService/GetLag", 404, 5, b"{}"),
    Odd("the admin interface", "GET", "/config_dump", 404, 5),
    Odd("metrics", "GET", "/metrics", 404, 5),
    Odd("broken JSON", "POST", "/v1/inbox:mark", 400, 3, b'{"marks": ['),
    Odd("no JSON", "POST", "/v1/inbox:mark", 400, 3, b"\xff\xfe\x00"),
    Odd("a list for an object", "POST", "/v1/inbox:mark", 400, 3, b"[1]"),
    Odd("a text for a list", "POST", "/v1/inbox:mark", 400, 3, b'{"marks": "all"}'),
    Odd("an unknown kind of mark", "POST", "/v1/inbox:mark", 400, 3, b'{"marks": [{"kind": "MARK_KIND_EATEN"}]}'),
    Odd("a mark without refs", "POST", "/v1/inbox:mark", 400, 3, b'{"marks": [{"kind": "MARK_KIND_READ"}]}'),
    Odd("marks of another", "POST", "/v1/inbox:mark", 403, 7, b'{"marks": [{"recipientKey": "acme/alice"}]}'),
    Odd("deep JSON", "POST", "/v1/inbox:mark", 400, 3, b'{"marks":' + b"[" * 20_000),
    Odd("an unknown mask", "PATCH", "/v1/preferences", 400, 3, b'{"preferences": {}, "updateMask": "colour"}'),
    Odd("a recipient that publishes", "POST", "/v1/events", 403, 7, b"{}"),
    Odd("a body that is too large", "POST", "/v1/inbox:mark", 413, 3, b" " * 65_537),
)


@pytest.mark.parametrize("odd", ODD, ids=[odd.name.replace(" ", "-") for odd in ODD])
async def test_an_odd_request_gets_a_status_in_json(site: Site, odd: Odd) -> None:
    """Whether the edge or a service refuses it, the answer has the same shape."""
    headers = {TOKEN_HEADER: f"Bearer {site.cluster.token('carol')}", **JSON}
    async with site.undisturbed(), site.rest() as client:
        answer = await client.request(odd.method, odd.path, content=odd.content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (odd.status, odd.code), answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["message"]
    assert "alice" not in answer.headers.get("x-heliograph-caller", "")


async def test_a_body_without_an_end_is_cut_off(site: Site) -> None:
    """The limit counts what arrives; nothing waits for the rest."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield b" " * 1_024

    headers = {TOKEN_HEADER: f"Bearer {site.cluster.token('demo', role='producer')}", **JSON}
    async with site.undisturbed(), site.rest() as client:
        answer = await client.post("/v1/events", content=endless(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, 3)


async def test_too_many_headers_are_refused(site: Site) -> None:
    """By size and by number."""
    async with site.undisturbed(), site.rest() as client:
        large = await client.get("/v1/inbox", headers={"x-large": "a" * 20_000})
        many = await client.get("/v1/inbox", headers={f"x-{number}": "a" for number in range(100)})
    assert (large.status_code, many.status_code) == (431, 431)


@pytest.mark.parametrize(
    ("spoil", "status", "reason", "field"),
    [
        ({"category": "gossip"}, 400, "CATEGORY_UNKNOWN", "event.category"),
        ({"audience": {}}, 400, "FIELD_INVALID", "event.audience.recipient_ids"),
        ({"content": {}}, 400, "FIELD_INVALID", "event.content.title"),
        ({"expireTime": "2001-01-01T00:00:00Z"}, 400, "EVENT_EXPIRED", "event.expire_time"),
        ({"eventTime": "2001-01-01T00:00:00Z"}, 400, "EVENT_TIME_INVALID", "event.event_time"),
        ({"ttl": "-5s"}, 400, "FIELD_INVALID", "event.ttl"),
    ],
)
async def test_a_refusal_of_a_service_keeps_reason_and_violations_over_rest(
    site: Site, spoil: dict[str, object], status: int, reason: str, field: str
) -> None:
    """What gRPC carries in a status, REST carries in JSON."""
    headers = {TOKEN_HEADER: f"Bearer {site.cluster.token('demo', role='producer')}"}
    async with site.undisturbed(), site.rest() as client:
        answer = await client.post("/v1/events", json={"event": {**EVENT["event"], **spoil}}, headers=headers)
    assert answer.status_code == status, answer.text
    details = {detail["@type"].rpartition(".")[2]: detail for detail in answer.json()["details"]}
    assert (details["ErrorInfo"]["reason"], details["ErrorInfo"]["domain"]) == (reason, "heliograph")
    assert field in [violation["field"] for violation in details["BadRequest"]["fieldViolations"]]


async def test_a_batch_over_rest_is_judged_item_by_item(site: Site) -> None:
    """Verdicts stand in the order of the items; a bad one harms no good one."""
    good = {"event": {**EVENT["event"], "audience": {"recipientIds": ["judy"]}}}
    bad = {"event": {**EVENT["event"], "category": "gossip"}}
    headers = {TOKEN_HEADER: f"Bearer {site.cluster.token('demo', role='producer')}"}
    async with site.undisturbed(stored=2), site.rest() as client:
        answer = await client.post("/v1/events:batchPublish", json={"requests": [good, bad, good]}, headers=headers)
        empty = await client.post("/v1/events:batchPublish", json={"requests": []}, headers=headers)
    first, second, third = answer.json()["results"]
    assert second["refused"]["reason"] == "CATEGORY_UNKNOWN"
    assert len({first["accepted"]["eventId"], third["accepted"]["eventId"]}) == 2
    assert (empty.status_code, empty.json()["code"]) == (400, 3)


async def test_a_reused_request_id_is_a_conflict_over_rest(site: Site) -> None:
    """409 tells a client that repeating does not help."""
    headers = {TOKEN_HEADER: f"Bearer {site.cluster.token('demo', role='producer')}"}
    event = {**EVENT["event"], "audience": {"recipientIds": ["judy"]}}
    request = {"event": event, "requestId": "2b0d2c2e-6a55-4cf0-9d0e-0d6c5e0f7a11"}
    async with site.undisturbed(stored=1), site.rest() as client:
        first = await client.post("/v1/events", json=request, headers=headers)
        other = await client.post("/v1/events", json={**request, "event": {**event, "priority": 1}}, headers=headers)
    assert (first.status_code, other.status_code) == (200, 409)
    assert other.json()["details"][0]["reason"] == "REQUEST_ID_REUSED"

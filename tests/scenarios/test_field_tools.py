"""The tools that operators and integrators bring: grpcurl, grpc-health-probe, `buf curl` and curl, at a mesh."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from docs.examples import EXAMPLES, RECIPIENT
from heliograph.ingest.v1.ingest_service_pb2 import PublishResponse
from mesh.access import PRODUCER as PRODUCER_ROLE
from mesh.envoy.topology import load_topology
from mesh.ids import from_text
from tests.support.cluster import PRODUCER
from tests.support.command_line import (
    AS_FANOUT,
    AS_OPERATOR,
    AS_PRODUCER,
    DESCRIPTORS,
    Done,
    Place,
    buf_curl,
    curl,
    edge,
    grpcurl,
    probe,
    sidecar,
)
from tests.support.mesh import TOPOLOGY
from tests.support.rest import Route, routes
from tests.support.site import IN_A_MESH, Site
from tests.support.wait import until

# The first use builds the tools.
pytestmark = [IN_A_MESH, pytest.mark.timeout(600)]

SERVED = load_topology(TOPOLOGY).serving()
STANDARD = {"grpc.channelz.v1.Channelz", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
PUBLISH = "heliograph.ingest.v1.IngestService/Publish"
GET_LAG = "heliograph.fanout.v1.FanoutService/GetLag"
LIST_NODES = "heliograph.presence.v1.PresenceService/ListNodes"
WITH_DESCRIPTORS = ("-protoset", str(DESCRIPTORS))
# Exit codes of grpcurl (64 plus the gRPC code) and of grpc-health-probe.
PERMISSION_DENIED, UNAUTHENTICATED = 64 + 7, 64 + 16
NOT_CONNECTED, NOT_ANSWERED = 2, 3
# Exit codes of curl: the handshake failed, or the connection ended before anything was answered.
TLS_FAILED = (16, 35, 52, 55, 56)


def _places(site: Site) -> list[tuple[str, Place]]:
    """Lists each service process with its sidecar."""
    processes = site.cluster.running.processes.values()
    return [(one.service, sidecar(site, one.name)) for one in processes if one.kind == "service"]


def _event(title: str) -> str:
    content = {"category": "general", "audience": {"recipientIds": [RECIPIENT]}, "content": {"title": title}}
    return json.dumps({"event": content, "requestId": str(uuid.uuid4())})


def _json(done: Done) -> Any:
    assert done.code == 0, done.said
    return json.loads(done.output)


def _is_receipt(answer: Any) -> bool:
    return set(answer) == {"eventId", "acceptTime"} and len(from_text(answer["eventId"])) == 16


async def _has(site: Site, title: str) -> bool:
    items = (await site.inbox(RECIPIENT)).items
    return any(item.notification.content.title == title for item in items)


# ---------------------------------------------------------------- grpcurl


async def test_grpcurl_lists_what_each_service_serves(site: Site) -> None:
    """An operator sees the contract's services at each sidecar, and the standard ones, by reflection."""
    places = _places(site)
    assert {service for service, _ in places} == set(SERVED)
    for service, place in places:
        done = await grpcurl(site, place, "list", identity=AS_OPERATOR)
        assert done.code == 0, done.said
        assert set(done.output.split()) == {*SERVED[service], *STANDARD}


async def test_grpcurl_describes_methods_and_messages(site: Site) -> None:
    """What reflection knows is the contract, field by field."""
    place = sidecar(site, "ingest")
    service = await grpcurl(site, place, "describe", PUBLISH.partition("/")[0], identity=AS_OPERATOR)
    assert "rpc Publish ( .heliograph.ingest.v1.PublishRequest )" in service.output, service.said
    message = await grpcurl(site, place, "describe", "heliograph.ingest.v1.PublishResponse", identity=AS_OPERATOR)
    for field in PublishResponse.DESCRIPTOR.fields:
        assert f" {field.name} = {field.number};" in message.output, message.said


async def test_grpcurl_publishes_through_the_edge_and_straight_to_ingest(site: Site) -> None:
    """With a producer's certificate both ways lead to the recipient."""
    for place, title in ((edge(site, as_producer=True), "By the edge"), (sidecar(site, "ingest"), "By the sidecar")):
        done = await grpcurl(
            site, place, PUBLISH, identity=AS_PRODUCER, before=(*WITH_DESCRIPTORS, "-d", _event(title))
        )
        assert _is_receipt(_json(done))
    await _arrives(site, "By the edge", "By the sidecar")


async def _arrives(site: Site, *titles: str) -> None:
    for title in titles:
        await until(lambda: _has(site, title), 10.0, f"{title} to be in the inbox")  # noqa: B023  (awaited at once)


async def test_grpcurl_asks_as_an_operator(site: Site) -> None:
    """Lag and nodes are read with the operator's certificate and no descriptor file."""
    lag = _json(await grpcurl(site, sidecar(site, "fanout"), GET_LAG, identity=AS_OPERATOR))
    assert {"high", "normal", "bulk"} <= {lane["lane"] for lane in lag["lanes"]}
    nodes = _json(await grpcurl(site, sidecar(site, "presence"), LIST_NODES, identity=AS_OPERATOR))
    processes = site.cluster.running.processes.values()
    gateways = [one.name for one in processes if (one.kind, one.service) == ("service", "gateway")]
    # What reflection serves has no JSON names, so grpcurl writes the proto's.
    assert {node["node_id"] for node in nodes["nodes"]} == set(gateways), nodes


@pytest.mark.parametrize(
    ("service", "method"), [("fanout", GET_LAG), ("presence", LIST_NODES), ("ingest", PUBLISH), ("delivery", "list")]
)
async def test_grpcurl_without_a_certificate_does_not_get_in(site: Site, service: str, method: str) -> None:
    """A sidecar speaks with nobody who shows none."""
    done = await grpcurl(site, sidecar(site, service), method, before=WITH_DESCRIPTORS if "/" in method else ())
    assert done.code != 0
    assert "Failed to dial" in done.errors or "certificate required" in done.errors or "reset" in done.errors, done.said


@pytest.mark.parametrize(
    ("service", "method", "identity"),
    [
        ("fanout", GET_LAG, AS_PRODUCER),
        ("presence", LIST_NODES, AS_FANOUT),
        ("ingest", PUBLISH, AS_OPERATOR),
    ],
)
async def test_grpcurl_with_anothers_certificate_is_refused(
    site: Site, service: str, method: str, identity: str
) -> None:
    """The method's access option decides, not the certificate's authority alone."""
    done = await grpcurl(site, sidecar(site, service), method, identity=identity, before=WITH_DESCRIPTORS)
    assert done.code == PERMISSION_DENIED, done.said


async def test_reflection_is_for_operators(site: Site) -> None:
    """A producer that may publish at ingest may not look around there."""
    done = await grpcurl(site, sidecar(site, "ingest"), "list", identity=AS_PRODUCER)
    assert done.code != 0
    assert "PermissionDenied" in done.errors, done.said


async def test_the_edge_refuses_strangers_of_grpcurl(site: Site) -> None:
    """Nobody gets in without a certificate or token, with an operator's certificate, or by reflection."""
    event = (*WITH_DESCRIPTORS, "-d", _event("Not this one"))
    anonymous = await grpcurl(site, edge(site), PUBLISH, before=event)
    assert (anonymous.code, "TOKEN_INVALID" in anonymous.errors) == (UNAUTHENTICATED, True), anonymous.said
    for identity in ("", AS_OPERATOR):
        refused = await grpcurl(site, edge(site, as_producer=True), PUBLISH, before=event, identity=identity)
        assert refused.code != 0
        assert "eventId" not in refused.output
    looking = await grpcurl(site, edge(site, as_producer=True), "list", identity=AS_PRODUCER)
    assert "does not support the reflection API" in looking.errors, looking.said
    assert not await _has(site, "Not this one")


# ---------------------------------------------------------------- grpc-health-probe


async def test_the_probe_finds_every_service_healthy(site: Site) -> None:
    """Each process answers for itself and for each of its services by full name, and for no other."""
    for service, place in _places(site):
        for name in ("", *SERVED[service]):
            done = await probe(site, place, name, identity=AS_OPERATOR)
            assert (done.code, "SERVING" in done.said) == (0, True), f"{service} {name}: {done.said}"
        unknown = await probe(site, place, "heliograph.weather.v1.WeatherService", identity=AS_OPERATOR)
        assert unknown.code == NOT_ANSWERED, unknown.said


async def test_the_probe_is_refused_without_a_certificate_and_with_a_producers(site: Site) -> None:
    """Health is for operators and services."""
    places = [place for _, place in _places(site)]
    # At once: the probe tries to connect until its limit.
    for nobody in await asyncio.gather(*(probe(site, place, "", connect_limit_s=2) for place in places)):
        assert nobody.code in (NOT_CONNECTED, NOT_ANSWERED), nobody.said
    for producer in await asyncio.gather(*(probe(site, place, "", identity=AS_PRODUCER) for place in places)):
        assert producer.code == NOT_ANSWERED, producer.said


# ---------------------------------------------------------------- buf curl


async def test_buf_curl_lists_and_calls_by_reflection(site: Site) -> None:
    """The linter's own client is enough to look around and to ask."""
    place = sidecar(site, "presence")
    listed = await buf_curl(site, place, "", "--list-methods", identity=AS_OPERATOR)
    assert listed.code == 0, listed.said
    assert LIST_NODES in listed.output.split()
    nodes = _json(await buf_curl(site, place, f"/{LIST_NODES}", "--data", '{"pageSize": 1}', identity=AS_OPERATOR))
    assert len(nodes["nodes"]) == 1


async def test_buf_curl_publishes_with_a_schema_instead_of_reflection(site: Site) -> None:
    """A producer brings the contract, since reflection is closed to it."""
    words = ("--schema", str(DESCRIPTORS), "--data", _event("By buf"))
    done = await buf_curl(site, edge(site, as_producer=True), f"/{PUBLISH}", *words, identity=AS_PRODUCER)
    assert _is_receipt(_json(done))
    await _arrives(site, "By buf")


async def test_buf_curl_is_refused_without_a_certificate_and_with_anothers(site: Site) -> None:
    """The same doors are closed to it."""
    place = sidecar(site, "presence")
    for identity in ("", AS_PRODUCER):
        done = await buf_curl(site, place, f"/{LIST_NODES}", "--schema", str(DESCRIPTORS), identity=identity)
        assert done.code != 0
        assert "nodeId" not in done.output
    assert "permission_denied" in done.said


# ---------------------------------------------------------------- curl


@pytest.mark.parametrize("route", routes(), ids=lambda route: route.label)
async def test_curl_calls_every_route(site: Site, route: Route) -> None:
    """With the right token, and where producers call with their certificate, the answer is 200 and JSON."""
    path, body = route.request(dict(EXAMPLES[route.called].request))
    token = site.cluster.token(PRODUCER if route.role == PRODUCER_ROLE else RECIPIENT, role=route.role)
    called = [await curl(site, edge(site), route.method, path, body=body, token=token)]
    if route.role == PRODUCER_ROLE:
        place = edge(site, as_producer=True)
        called.append(await curl(site, place, route.method, path, body=body, identity=AS_PRODUCER))
    for done in called:
        status, answer = _answer(done)
        assert status == 200, answer
        assert isinstance(answer, dict)


@pytest.mark.parametrize("route", routes(), ids=lambda route: route.label)
async def test_curl_is_refused_on_every_route_without_the_right_token(site: Site, route: Route) -> None:
    """No token, a broken one and one of the other role are each refused with the documented error."""
    path, body = route.request(dict(EXAMPLES[route.called].request))
    other = "recipient" if route.role == PRODUCER_ROLE else "producer"
    wrong = site.cluster.token(PRODUCER if other == PRODUCER_ROLE else RECIPIENT, role=other)
    for token, refusal in (
        ("", (401, 16, "TOKEN_INVALID")),
        ("e30.e30.c2ln", (401, 16, "TOKEN_INVALID")),
        (wrong, (403, 7, "CALLER_NOT_ALLOWED")),
    ):
        status, answer = _answer(await curl(site, edge(site), route.method, path, body=body, token=token))
        assert (status, answer["code"], answer["details"][0]["reason"]) == refusal, answer
        assert answer["details"][0]["domain"] == "heliograph"


@pytest.mark.parametrize("identity", ["", AS_OPERATOR])
async def test_curl_passes_the_producers_name_only_with_a_producers_certificate(site: Site, identity: str) -> None:
    """There the handshake fails, also with a valid token."""
    token = site.cluster.token(PRODUCER, role=PRODUCER_ROLE)
    route = next(route for route in routes() if route.role == PRODUCER_ROLE)
    path, body = route.request(dict(EXAMPLES[route.called].request))
    place = edge(site, as_producer=True)
    done = await curl(site, place, route.method, path, body=body, token=token, identity=identity)
    assert (done.code in TLS_FAILED, done.output.strip()) == (True, "000"), done.said


def _answer(done: Done) -> tuple[int, Any]:
    assert done.code == 0, done.said
    text, _, status = done.output.rpartition("\n")
    return int(status), json.loads(text)

"""What the edge lets in, turns away and takes off, for REST, gRPC and WebSocket; and how sidecars find a named node."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import httpx2
import pytest
import websockets
from cryptography import x509

from mesh import streams
from mesh.channel import call
from mesh.envoy import certs
from mesh.envoy.process import ask, is_ready, leave_service
from mesh.envoy.topology import EDGE
from mesh.errors import DeadlineExceeded, Failure, PermissionDenied, ResourceExhausted, Unavailable, Unimplemented
from tests.support.contract import CALLER_HEADER, PROCESS_HEADER
from tests.support.controls import RETRIES
from tests.support.mesh import IDLE_S, OPERATOR, PRODUCER, RECIPIENT_RATE, Mesh, running_mesh, short_folder
from tests.support.spoiling import INSIDE
from tests.support.wait import until

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(60)]

PUBLISH = "/heliograph.ingest.v1.IngestService/Publish"
RESOLVE = "/heliograph.prefs.v1.PrefsService/BatchResolve"
WISH_CHANGES = "/heliograph.prefs.v1.PrefsService/ListWishChanges"
SUBSCRIBERS = "/heliograph.prefs.v1.TopicService/ListSubscribers"
GET_PREFERENCES = "/heliograph.prefs.v1.PrefsService/GetPreferences"
DELIVER = "/heliograph.gateway.v1.GatewayService/Deliver"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
PRODUCERS = {"sni_hostname": "producers.localhost"}
FORGED = {
    "x-heliograph-producer": f"spiffe://heliograph.local/producer/{PRODUCER}",
    "x-heliograph-caller": f"producer/{PRODUCER}",
    "x-forwarded-client-cert": f"By=x;Hash=y;URI=spiffe://heliograph.local/producer/{PRODUCER}",
    "x-envoy-original-path": "/v1/events",
}


@pytest.fixture(scope="module")
async def mesh() -> AsyncIterator[Mesh]:
    """One mesh for all tests of this file; a test that ends an Envoy starts it again."""
    with short_folder() as folder:
        async with running_mesh(folder) as running:
            yield running


def _bearer(mesh: Mesh, role: str, subject: str) -> dict[str, str]:
    return {"authorization": f"Bearer {mesh.token(role, subject)}"}


async def _unary(channel: grpc.aio.Channel, path: str, **metadata: str) -> Failure | None:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    try:
        await call(method, b"", timeout=5.0, metadata=tuple(metadata.items()))
    except Failure as failure:
        return failure
    return None


# ---------------------------------------------------------------- producers


async def test_a_producers_certificate_names_it_to_the_service(mesh: Mesh) -> None:
    """Under the producers' name a certificate is asked for, and the service sees whose it was."""
    async with mesh.rest(certificate=f"producer/{PRODUCER}") as client:
        answer = await client.post("/v1/events", json={}, extensions=PRODUCERS, headers=FORGED)
    assert (answer.status_code, answer.headers[CALLER_HEADER]) == (200, "producer/acme/demo")


async def test_a_producers_token_names_it_where_there_is_no_certificate(mesh: Mesh) -> None:
    """The edge passes a bearer token on; the service judges it."""
    async with mesh.rest() as client:
        answer = await client.post("/v1/events:batchPublish", json={}, headers=_bearer(mesh, "producer", "billing"))
    assert (answer.status_code, answer.headers[CALLER_HEADER]) == (200, "producer/acme/billing")


async def test_forged_identity_headers_do_nothing(mesh: Mesh) -> None:
    """Whoever writes the mesh's own headers from outside is taken for nobody, or for what the token says."""
    async with mesh.rest() as client:
        refused = await client.post("/v1/events", json={}, headers=FORGED)
        as_recipient = await client.get("/v1/inbox", headers={**FORGED, **_bearer(mesh, "recipient", "ann")})
        not_a_producer = await client.post(
            "/v1/events", json={}, headers={**FORGED, **_bearer(mesh, "recipient", "ann")}
        )
    assert refused.status_code in (401, 403)
    assert refused.json()["details"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert (as_recipient.status_code, as_recipient.headers[CALLER_HEADER]) == (200, "recipient/acme/ann")
    assert not_a_producer.status_code == 403


@pytest.mark.parametrize("certificate", ["", f"operator/{OPERATOR}", "svc/ingest"])
async def test_the_producers_name_demands_a_producers_certificate(mesh: Mesh, certificate: str) -> None:
    """Neither none nor another's certificate passes the handshake there."""
    async with mesh.rest(certificate=certificate) as client:
        with pytest.raises((httpx2.TransportError, ssl.SSLError)):
            await client.post("/v1/events", json={}, extensions=PRODUCERS)


async def test_grpc_passes_the_edge_like_rest(mesh: Mesh) -> None:
    """Producers and recipients reach their methods over gRPC, with certificate or token."""
    async with contextlib.AsyncExitStack() as stack:
        with_certificate = await stack.enter_async_context(mesh.dial_edge(mesh.leaf(f"producer/{PRODUCER}")))
        without = await stack.enter_async_context(mesh.dial_edge())
        assert await _unary(with_certificate, PUBLISH) is None
        assert await _unary(without, GET_PREFERENCES, **_bearer(mesh, "recipient", "ann")) is None
        refused = await _unary(without, PUBLISH, **_bearer(mesh, "recipient", "ann"))
        assert isinstance(refused, PermissionDenied)
        assert refused.reason == "CALLER_NOT_ALLOWED"


@pytest.mark.parametrize(
    "path",
    [RESOLVE, WISH_CHANGES, SUBSCRIBERS, DELIVER, HEALTH_CHECK, "/grpc.channelz.v1.Channelz/GetTopChannels"],
)
async def test_internal_methods_do_not_exist_at_the_edge(mesh: Mesh, path: str) -> None:
    """What is not for producers or recipients has no route from outside."""
    async with mesh.dial_edge(mesh.leaf(f"producer/{PRODUCER}")) as channel:
        assert isinstance(await _unary(channel, path), Unimplemented)


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("method", "url", "content", "status", "code"),
    [
        ("GET", "/v1/nothing", b"", 404, 5),
        ("GET", PUBLISH, b"", 404, 5),
        ("DELETE", "/v1/events", b"", 404, 5),
        ("POST", "/v1/events", b"{", 400, 3),
        ("POST", "/v1/events", b'{"event": {"category": 5}}', 400, 3),
        ("POST", "/v1/events", b" " * 65537, 413, 3),
        ("GET", "/v1/inbox?nonsense=1", b"", 400, 3),
        ("GET", "/v1%2Finbox", b"", 400, 3),
    ],
)
async def test_bad_requests_get_a_status_in_json(
    mesh: Mesh, method: str, url: str, content: bytes, status: int, code: int
) -> None:
    """What the edge refuses by itself has the shape of every other failure."""
    async with mesh.rest() as client:
        answer = await client.request(method, url, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/json"


async def test_an_oversized_body_in_small_pieces_is_refused(mesh: Mesh) -> None:
    """The limit counts what arrives, not what a header claims."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(80):
            yield b" " * 1024

    async with mesh.rest() as client:
        answer = await client.post("/v1/events", content=pieces(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, 3)


async def test_oversized_headers_are_refused(mesh: Mesh) -> None:
    """A request with more header bytes than the limit is not read further."""
    async with mesh.rest() as client:
        answer = await client.get("/v1/inbox", headers={"x-long": "a" * 20_000})
    assert answer.status_code == 431


async def test_the_largest_allowed_body_passes(mesh: Mesh) -> None:
    """A body of exactly the limit reaches the service."""
    limit = mesh.topology.edge.limits.body_bytes
    async with mesh.rest() as client:
        content = b'{"requestId": ""' + b" " * (limit - 17) + b"}"
        answer = await client.post(
            "/v1/events",
            content=content,
            headers={**_bearer(mesh, "producer", "demo"), "content-type": "application/json"},
        )
    assert answer.status_code == 200


async def test_one_address_cannot_exceed_its_rate_and_harms_no_other(mesh: Mesh) -> None:
    """Too many requests from one address get 429 with a time to wait; another address is served."""
    bearer = _bearer(mesh, "recipient", "ann")
    async with mesh.rest(address="127.0.0.9") as greedy, mesh.rest(address="127.0.0.10") as modest:
        answers = await asyncio.gather(
            *(greedy.get("/v1/preferences", headers=bearer) for _ in range(RECIPIENT_RATE * 3))
        )
        other = await modest.get("/v1/preferences", headers=bearer)
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].json()["code"] == ResourceExhausted.code
    assert other.status_code == 200


async def test_a_connection_that_carries_nothing_ends_and_a_quiet_session_stays(mesh: Mesh) -> None:
    """Who shows up in TLS and says nothing is let go, as is one that has asked and asks no more; no session is."""
    context = ssl.create_default_context(cadata=mesh.roots().decode())
    port = mesh.topology.port_of(EDGE)
    async with mesh.websocket() as session:
        await session.recv()
        mute, mute_writer = await asyncio.open_connection("localhost", port, ssl=context)
        asked, asked_writer = await asyncio.open_connection("localhost", port, ssl=context)
        asked_writer.write(b"GET /v1/nothing HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await asked.readline()).startswith(b"HTTP/1.1 404 ")
        # The session is the oldest of the three.
        async with asyncio.timeout(IDLE_S + 10.0):
            assert await mute.read() == b""
            await asked.read()
        await session.send("ping")
        assert await session.recv() == "ping"
        mute_writer.close()
        asked_writer.close()


async def test_a_short_deadline_of_the_callers_own_is_kept(mesh: Mesh) -> None:
    """Who asks for less time than the edge grants is told when that time is over."""
    async with mesh.dial_edge(mesh.leaf(f"producer/{PRODUCER}")) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PUBLISH)
        with pytest.raises(DeadlineExceeded):
            await call(method, b"", timeout=0.00001)


async def test_no_header_from_outside_makes_the_edge_try_again(mesh: Mesh) -> None:
    """A call that its server refuses is made once, whatever the caller tells Envoy; nor does it name a statistic."""
    edge = mesh.topology.port_of(EDGE)
    async with mesh.dial_edge(mesh.leaf(f"producer/{PRODUCER}")) as channel, mesh.rest() as client:
        seen = len(mesh.seen)
        mesh.refused.add(PUBLISH)
        try:
            assert isinstance(await _unary(channel, PUBLISH, **RETRIES), Unavailable)
            bearer = _bearer(mesh, "producer", "demo")
            assert (await client.post("/v1/events", json={}, headers={**RETRIES, **bearer})).status_code == 503
        finally:
            mesh.refused.clear()
        assert mesh.seen[seen:] == [PUBLISH, PUBLISH]
        metrics = await client.get(f"http://127.0.0.1:{mesh.topology.envoy_metrics_port(edge)}/metrics")
    assert "envoy_cluster_" in metrics.text
    assert RETRIES["x-envoy-upstream-alt-stat-name"] not in metrics.text


async def test_a_service_that_is_away_is_not_described(mesh: Mesh) -> None:
    """Who calls what does not answer is told to come again, and not where it looked for whom."""
    bearer = _bearer(mesh, "recipient", "ann")
    await mesh.kill_envoy("prefs")
    try:
        async with mesh.dial_edge() as channel, mesh.rest() as client:
            failure = await _unary(channel, GET_PREFERENCES, **bearer)
            answer = await client.get("/v1/preferences", headers=bearer)
    finally:
        await mesh.start_envoy("prefs")
    assert isinstance(failure, Unavailable)
    assert (answer.status_code, answer.json()["code"]) == (503, Unavailable.code)
    assert INSIDE.search(f"{failure.message} {answer.text}") is None
    await until(lambda: _resolves(mesh), 10.0)


# ---------------------------------------------------------------- WebSocket


async def test_websockets_spread_over_the_nodes_and_leave_a_dead_one(mesh: Mesh) -> None:
    """New connections go to all nodes; when one is killed, every one after it gets a living node, at once."""
    await _until_spread(mesh)
    dead, alive = (node.node_id for node in mesh.nodes)
    async with AsyncExitStack() as open_ones:
        # A node with fewer sessions is preferred, and a dead one has none.
        held = 0
        while held < 5:
            connection = await open_ones.enter_async_context(mesh.websocket())
            held += await connection.recv() == alive
        await mesh.kill_envoy(dead)
        try:
            assert {await _session(mesh) for _ in range(20)} == {alive}
        finally:
            await mesh.start_envoy(dead)
    await _until_spread(mesh)


async def test_a_node_whose_process_is_gone_gets_no_websocket(mesh: Mesh) -> None:
    """Its sidecar still stands and says so; the edge then tries another node before the client hears of it."""
    await _until_spread(mesh)
    dead, alive = (node.node_id for node in mesh.nodes)
    await mesh.close_websockets(dead)
    try:
        assert {await _session(mesh) for _ in range(20)} == {alive}
    finally:
        await mesh.open_websockets(dead)
    await _until_spread(mesh)


async def _session(mesh: Mesh) -> str:
    """Opens and closes a connection; returns the node that it reached."""
    async with mesh.websocket() as connection:
        name = str(await connection.recv())
        await connection.send("ping")
        assert await connection.recv() == "ping"
    return name


async def _until_spread(mesh: Mesh) -> None:
    """Opens sessions until each node has had one."""
    seen: set[str] = set()

    async def spread() -> bool:
        seen.add(await _session(mesh))
        return len(seen) == len(mesh.nodes)

    await until(spread, 15.0)


async def test_a_websocket_needs_its_path(mesh: Mesh) -> None:
    """No other path upgrades."""
    context = ssl.create_default_context(cadata=mesh.roots().decode())
    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(f"wss://localhost:{mesh.topology.port_of(EDGE)}/v1/inbox", ssl=context)


# ---------------------------------------------------------------- inside


async def test_exactly_the_named_gateway_node_is_reached(mesh: Mesh) -> None:
    """A stream goes to the node it names, and nowhere when name and address differ or lead elsewhere."""
    channels = mesh.channels("delivery")
    first, second = mesh.nodes
    prefs = f"{mesh.topology.address}:{mesh.topology.port_of('prefs')}"

    async def reached(node_id: str, address: str) -> str:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channels.node(node_id).stream_stream(DELIVER)
        call = method(metadata=channels.node_metadata(node_id, address))
        try:
            initial = dict(await call.initial_metadata())
            if streams.STREAM_HEADER in initial:
                return str(initial[PROCESS_HEADER])
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            return ""
        finally:
            call.cancel()

    try:
        assert await reached(first.node_id, first.address) == first.node_id
        assert await reached(second.node_id, second.address) == second.node_id
        assert await reached(first.node_id, second.address) == ""
        assert await reached("gw-other-0", first.address) == ""
        for address in (prefs, "127.0.0.2:80", "localhost:80", "", f"{first.address}0000"):
            assert await reached(first.node_id, address) == "", address
    finally:
        await channels.close()


async def test_services_reach_their_peers_through_the_sidecars(mesh: Mesh) -> None:
    """A call to a peer arrives with the caller's identity; a peer that the contract does not give has no route."""
    channels, others = mesh.channels("fanout"), mesh.channels("ingest")
    try:
        assert await _unary(channels.unary("prefs"), RESOLVE) is None
        for peer in ("prefs", "gateway", "nobody"):
            assert isinstance(await _unary(others.unary(peer), RESOLVE), Unimplemented)
    finally:
        await channels.close()
        await others.close()


async def test_health_follows_a_sidecar_that_leaves_service(mesh: Mesh) -> None:
    """After the order to leave, checks fail while the sidecar still stands; it can come back."""
    admin = mesh.layout.admin("presence")
    async with mesh.dial(mesh.place("presence"), mesh.leaf(f"operator/{OPERATOR}")) as channel:
        assert await _unary(channel, HEALTH_CHECK) is None
        await leave_service(admin)
        try:
            assert isinstance(await _unary(channel, HEALTH_CHECK), Unavailable)
        finally:
            await ask(admin, "POST", "/healthcheck/ok")
        assert await _unary(channel, HEALTH_CHECK) is None


async def test_metrics_are_served_on_loopback_and_nothing_else(mesh: Mesh) -> None:
    """The metrics listener shows numbers, not the admin interface."""
    port = mesh.topology.envoy_metrics_port(mesh.topology.port_of("prefs"))
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        metrics = await client.get("/metrics")
        assert "envoy_cluster_" in metrics.text
        for path in ("/config_dump", "/quitquitquit", "/stats", "/metrics/../config_dump"):
            assert (await client.post(path)).status_code == 404
    assert await is_ready(mesh.layout.admin("prefs"))


async def test_certificates_change_while_a_stream_stays_open(mesh: Mesh) -> None:
    """New leaves, then a new root with new leaves: new connections get them, an open stream lives through both."""
    channels = mesh.channels("delivery")
    node = mesh.nodes[0]
    channel = channels.node(node.node_id)
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(DELIVER)
    stream = method(metadata=channels.node_metadata(node.node_id, node.address))
    try:
        assert streams.STREAM_HEADER in dict(await stream.initial_metadata())
        for new_root in (False, True):
            certs.rotate(mesh.layout.certs_dir, mesh.identities, time.time(), new_root=new_root)
            wanted = x509.load_pem_x509_certificate(mesh.leaf("svc/prefs").certificate).serial_number
            await until(lambda: _shows(mesh, "prefs", wanted), 10.0)  # noqa: B023  (awaited before it changes)
            await stream.write(b"")
            assert await stream.read() == b""
            await until(lambda: _resolves(mesh), 10.0)
    finally:
        stream.cancel()
        await channels.close()


async def _shows(mesh: Mesh, service: str, serial: int) -> bool:
    context = ssl.create_default_context(cadata=mesh.roots().decode())
    current = mesh.layout.certs_dir / "operator" / OPERATOR / "current"
    context.load_cert_chain(current / "cert.pem", current / "key.pem")
    port = mesh.topology.port_of(service)
    try:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=mesh.topology.host(service)
        )
    except ssl.SSLError:
        return False
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).serial_number == serial


async def _resolves(mesh: Mesh) -> bool:
    async with mesh.dial(mesh.place("prefs"), mesh.leaf("svc/fanout")) as channel:
        return await _unary(channel, RESOLVE) is None

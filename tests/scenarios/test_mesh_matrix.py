"""Who gets through the sidecars: every method of every service, called with every kind of certificate.

What must happen is read from the contract's access option by `mesh.access`; what does happen is decided by real Envoys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mesh.access import allowed_roles
from mesh.channel import NODE_HEADER
from mesh.envoy import pki
from mesh.envoy.sidecar import PRODUCER_HEADER, Place
from tests.support import contract
from tests.support.mesh import OPERATOR, PRODUCER, Mesh, running_mesh, short_folder

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CHANNELZ = "/grpc.channelz.v1.Channelz/GetTopChannels"
LIMIT_S = 5.0
DAY = 86400.0

ALLOWED, REFUSED, NO_CONNECTION = "allowed", "refused by the table", "refused in TLS"
REFUSED_BY_SERVICE = "refused by the service"


class Identity(NamedTuple):
    """Somebody who calls: the certificate shown, the headers sent, and whom the table should take it for."""

    name: str
    leaf: pki.Leaf | None
    roles: frozenset[str] = frozenset()
    headers: tuple[tuple[str, str], ...] = ()
    connects: bool = True
    # At the edge's certificate the sidecar stops; whom the edge speaks for is judged by the service.
    edge: bool = False


@pytest.fixture(scope="module")
async def mesh() -> AsyncIterator[Mesh]:
    """One mesh for all tests of this file."""
    with short_folder() as folder:
        async with running_mesh(folder) as running:
            yield running


def _authority(mesh: Mesh) -> pki.Authority:
    folder = mesh.layout.certs_dir / "ca"
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return pki.Authority(x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes()), key)


def _insiders(mesh: Mesh) -> list[Identity]:
    forged = ((PRODUCER_HEADER, mesh.topology.identity(f"producer/{PRODUCER}")), ("x-heliograph-caller", "svc/fanout"))
    services = [name for name in mesh.topology.service_names() if name != "edge"]
    bearer = {role: ("authorization", f"Bearer {mesh.token(role, 'ann')}") for role in ("recipient", "producer")}
    edge = mesh.leaf("svc/edge")
    return [
        *(Identity(name, mesh.leaf(f"svc/{name}"), frozenset({name}), forged) for name in services),
        Identity("producer", mesh.leaf(f"producer/{PRODUCER}"), frozenset({"producer"})),
        Identity("operator", mesh.leaf(f"operator/{OPERATOR}"), frozenset({"operator"}), forged),
        Identity("edge", edge, frozenset({"edge"}), edge=True),
        Identity("edge for a producer", edge, frozenset({"producer"}), forged[:1], edge=True),
        Identity("edge for a bearer", edge, frozenset({"producer"}), (bearer["producer"],), edge=True),
        Identity("edge for a recipient", edge, frozenset({"recipient"}), (bearer["recipient"],), edge=True),
        # A token counts only where the edge passed it on.
        Identity("gateway with a token", mesh.leaf("svc/gateway"), frozenset({"gateway"}), (bearer["recipient"],)),
    ]


def _outsiders(mesh: Mesh) -> list[Identity]:
    now, own, uri = time.time(), _authority(mesh), mesh.topology.identity
    foreign = pki.create_authority("another root", now, DAY)

    def leaf(*uris: str, by: pki.Authority = own, at: float = now, dns: tuple[str, ...] = ()) -> pki.Leaf:
        return pki.issue(by, pki.Names("outsider", uris, dns), at, DAY)

    def strangers(name: str, *paths: str) -> Identity:
        return Identity(name, leaf(*(uri(path) for path in paths)))

    def stopped(name: str, shown: pki.Leaf | None) -> Identity:
        return Identity(name, shown, connects=False)

    return [
        strangers("two services in one", "svc/prefs", "svc/fanout"),
        strangers("two operators in one", f"operator/{OPERATOR}", "operator/ada"),
        strangers("a look-alike", "svc/fanoutx"),
        strangers("a look-alike below", "svc/fanout/x"),
        strangers("an unknown service", "svc/billing"),
        strangers("a producer without tenant", "producer/demo"),
        strangers("a producer with a deeper path", "producer/acme/demo/x"),
        Identity("a DNS name like a URI", leaf(uri("svc/unknown"), dns=("fanout.heliograph.local",))),
        stopped("no certificate", None),
        stopped("another root", leaf(uri("svc/fanout"), by=foreign)),
        stopped("expired", leaf(uri("svc/fanout"), at=now - 2 * DAY)),
        stopped("not yet valid", leaf(uri("svc/fanout"), at=now + 2 * DAY)),
        stopped("another trust domain", leaf("spiffe://heliograph.example/svc/fanout")),
        stopped("a longer trust domain", leaf("spiffe://heliograph.local.example/svc/fanout")),
        stopped("upper case", leaf("SPIFFE://HELIOGRAPH.LOCAL/svc/fanout")),
        stopped("no URI", leaf(dns=("fanout.heliograph.local",))),
        stopped("the edge's public certificate", mesh.leaf("public")),
    ]


def _expected(mesh: Mesh, identity: Identity, place: Place, path: str) -> str:
    if not identity.connects:
        return NO_CONNECTION
    table = contract.access_of(mesh.topology.serving()[place.service])
    allowed = allowed_roles(table, path, direct=False)
    if any(role in allowed for role in identity.roles):
        return ALLOWED
    roles = table.get(path, frozenset())
    through_edge = roles & {"producer", "recipient"} or path.startswith("/grpc.health.v1.Health/")
    return REFUSED_BY_SERVICE if identity.edge and through_edge else REFUSED


async def _verdict(channel: grpc.aio.Channel, place: Place, path: str, identity: Identity, expected: str) -> str:
    metadata = (*identity.headers, (NODE_HEADER, place.process))
    try:
        async with asyncio.timeout(LIMIT_S):
            await _CALLS.get(path, _streaming if path in _STREAMS else _unary)(channel, path, metadata, expected)
    except TimeoutError:
        return "no answer"
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return NO_CONNECTION
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return REFUSED_BY_SERVICE
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            return REFUSED if error.details() == "RBAC: access denied" else REFUSED_BY_SERVICE
        return f"{error.code().name}: {error.details()}"
    return ALLOWED


Metadata = tuple[tuple[str, str], ...]


async def _unary(channel: grpc.aio.Channel, path: str, metadata: Metadata, _: str) -> None:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    await method(b"", metadata=metadata)


async def _watching(channel: grpc.aio.Channel, path: str, metadata: Metadata, _: str) -> None:
    method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
    call = method(b"", metadata=metadata)
    try:
        await call.read()
    finally:
        call.cancel()


async def _streaming(channel: grpc.aio.Channel, path: str, metadata: Metadata, _: str) -> None:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
    call = method(metadata=metadata)
    try:
        # Whoever writes before the server has spoken may lose the status of a refusal.
        if any(key == "x-heliograph-stream" for key, _value in await call.initial_metadata()):
            await call.done_writing()
        await _raise_unless_ok(call)
    finally:
        call.cancel()


async def _reflecting(channel: grpc.aio.Channel, path: str, metadata: Metadata, expected: str) -> None:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
    call = method(metadata=metadata)
    try:
        # This server speaks second; a refusal comes without being asked for.
        if expected == ALLOWED:
            await call.done_writing()
        await _raise_unless_ok(call)
    finally:
        call.cancel()


async def _raise_unless_ok(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        trailing = await call.trailing_metadata()
        raise grpc.aio.AioRpcError(code, await call.initial_metadata(), trailing, await call.details())


_CALLS: Mapping[str, Callable[[grpc.aio.Channel, str, Metadata, str], Awaitable[None]]] = {
    HEALTH_WATCH: _watching,
    REFLECTION: _reflecting,
}
_STREAMS = frozenset(
    f"/{service.full_name}/{method.name}"
    for service in contract.services().values()
    for method in service.methods
    if method.client_streaming
)


def _contract_paths() -> list[str]:
    return [
        f"/{service.full_name}/{method.name}" for service in contract.services().values() for method in service.methods
    ]


def _paths() -> list[str]:
    unknown = ["/heliograph.ingest.v1.IngestService/Nothing", "/grpc.health.v1.health/Check", "/v1/events"]
    return [*_contract_paths(), HEALTH_CHECK, HEALTH_WATCH, REFLECTION, CHANNELZ, *unknown]


async def _walk(mesh: Mesh, identity: Identity) -> list[str]:
    """Calls every method at every sidecar as one identity; returns what went otherwise than it should."""
    found = []
    for place in mesh.places:
        channel = mesh.dial(place, identity.leaf)
        try:
            wanted = [(path, _expected(mesh, identity, place, path)) for path in _paths()]
            verdicts = await asyncio.gather(
                *(_verdict(channel, place, path, identity, expected) for path, expected in wanted)
            )
        finally:
            await channel.close()
        for (path, expected), verdict in zip(wanted, verdicts, strict=True):
            if verdict != expected:
                found.append(f"{identity.name} at {place.process}: {path}: {verdict}, not {expected}")
    return found


async def test_the_whole_matrix_of_methods_and_identities(mesh: Mesh) -> None:
    """Every method is open to exactly those whom the access option names, at the sidecar that serves it."""
    before = len(mesh.seen)
    identities = _insiders(mesh)
    found = [fault for identity in identities for fault in await _walk(mesh, identity)]
    assert found == []
    # The servers, too, saw just the calls that were to be let through.
    allowed = sum(
        _expected(mesh, identity, place, path) == ALLOWED
        for identity in identities
        for place in mesh.places
        for path in _contract_paths()
    )
    assert len(mesh.seen) - before == allowed > 0


async def test_strangers_reach_no_method(mesh: Mesh) -> None:
    """A certificate that is not exactly one of ours calls nothing, whatever it resembles."""
    before = len(mesh.seen)
    assert [fault for identity in _outsiders(mesh) for fault in await _walk(mesh, identity)] == []
    assert len(mesh.seen) == before


async def test_the_table_can_fail(mesh: Mesh) -> None:
    """The walk notices a verdict that differs: a service that the walk takes for another one is reported."""
    fanout = next(identity for identity in _insiders(mesh) if identity.name == "fanout")
    found = await _walk(mesh, fanout._replace(roles=frozenset({"presence"})))
    assert f"fanout at prefs: /heliograph.prefs.v1.PrefsService/BatchResolve: {ALLOWED}, not {REFUSED}" in found

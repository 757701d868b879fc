"""A part of the mesh that is not what it should be: it calls what is not its own, and speaks for another node.

And what the parts keep open: loopback only, and nothing there that shows or stops anything.
"""

from __future__ import annotations

import stat
from pathlib import Path

import grpc
import grpc.aio
import httpx2

from heliograph.gateway.v1 import gateway_service_pb2 as gateway_pb2
from heliograph.gateway.v1 import gateway_service_pb2_grpc as gateway_grpc
from heliograph.presence.v1 import presence_service_pb2 as presence_pb2
from heliograph.presence.v1 import presence_service_pb2_grpc as presence_grpc
from mesh import status
from mesh.access import Access, allowed_roles
from mesh.channel import call
from mesh.envoy.topology import load_topology
from mesh.errors import FailedPrecondition, Failure, InvalidArgument, PermissionDenied
from tests.support import contract
from tests.support.cluster import TENANT
from tests.support.insiders import inside, listeners_of, services_of
from tests.support.mesh import TOPOLOGY
from tests.support.refusals import judge, refusal_of
from tests.support.site import NEIGHBOUR, Site

SERVING = load_topology(TOPOLOGY).serving()
OPERATORS = (
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.channelz.v1.Channelz/GetTopChannels",
)
HIDDEN = ("/config_dump", "/clusters", "/stats", "/server_info", "/quitquitquit", "/debug/pprof", "/channelz", "/admin")

# ---------------------------------------------------------------- methods of others


async def test_a_service_opens_no_method_that_is_not_its_own(site: Site) -> None:
    """Its identity is good, and yet every method that the contract does not give it is refused."""
    processes = services_of(site)
    async with site.undisturbed():
        for service in SERVING:
            refused = [
                await _refused_methods(site, service, process, contract.access_of(SERVING[serves]))
                for process, serves in processes.items()
            ]
            assert all(refused), (service, dict(zip(processes, refused, strict=True)))


async def _refused_methods(site: Site, service: str, process: str, table: Access) -> int:
    """Calls every method that a process has and a service may not call; returns how many these are."""
    paths = [path for path in (*table, *OPERATORS) if service not in allowed_roles(table, path, direct=not site.mesh)]
    async with inside(site, f"svc/{service}", process) as (channel, metadata):
        for path in paths:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
            refused = call(method, b"", timeout=5.0, metadata=metadata)
            failure = await refusal_of(refused)
            assert isinstance(failure, PermissionDenied), (service, process, path, failure)
    return len(paths)


# ---------------------------------------------------------------- names of others


async def _link(site: Site, path: str, process: str, opening: gateway_pb2.LinkOpen) -> Failure:
    """Opens a link to a gateway node and returns what it is refused with."""
    async with inside(site, path, process) as (channel, metadata):
        stream = gateway_grpc.GatewayServiceStub(channel).Deliver(metadata=metadata)
        try:
            if "x-heliograph-stream" in dict(await stream.initial_metadata() or ()):
                await stream.write(gateway_pb2.DeliverRequest(open=opening))
            await stream.read()
            raise AssertionError("not refused")
        except grpc.aio.AioRpcError as error:
            return status.from_call(error)
        finally:
            stream.cancel()


async def test_a_link_that_means_another_node_is_not_served(site: Site) -> None:
    """A node compares the name and the epoch it is called by with its own, and takes links of delivery only."""
    first, second = site.cluster.node(0), site.cluster.node(1)
    opening = gateway_pb2.LinkOpen(protocol_version=1, delivery_id="stranger", delivery_epoch=1, node_id=second)
    async with site.undisturbed():
        judge(await _link(site, "svc/delivery", first, opening), FailedPrecondition, "NODE_MISMATCH")
        opening.node_id, opening.node_epoch = first, 1
        judge(await _link(site, "svc/delivery", first, opening), FailedPrecondition, "NODE_MISMATCH")
        opening.node_epoch, opening.delivery_id = 0, ""
        judge(await _link(site, "svc/delivery", first, opening), InvalidArgument, "FIELD_INVALID")
        for path in ("svc/fanout", "svc/gateway"):
            assert isinstance(await _link(site, path, first, opening), PermissionDenied)


async def test_a_stale_node_takes_nobodys_sessions(site: Site) -> None:
    """Who comes with an older epoch of a node renews nothing, and reports no session of the neighbour to be gone."""
    node = presence_pb2.Node(node_id=site.cluster.node(0), epoch=1, state=presence_pb2.NODE_STATE_SERVING)
    left = [
        presence_pb2.SessionEntry(recipient_key=f"{TENANT}/{NEIGHBOUR}", device_id=device, connect_number=2**62)
        for device in ("device-json", "device-proto")
    ]
    report = presence_pb2.ReportSessionsRequest(node_id=node.node_id, epoch=1, left=left)
    async with site.undisturbed(), inside(site, "svc/gateway", "presence") as (channel, metadata):
        stub = presence_grpc.PresenceServiceStub(channel)
        renewal = call(stub.RenewNode, presence_pb2.RenewNodeRequest(node=node), timeout=5.0, metadata=metadata)
        judge(await refusal_of(renewal), FailedPrecondition, "LEASE_STALE")
        reported = call(stub.ReportSessions, report, timeout=5.0, metadata=metadata)
        judge(await refusal_of(reported), FailedPrecondition, "LEASE_STALE")


# ---------------------------------------------------------------- what listens


async def test_everything_listens_on_loopback_only(site: Site) -> None:
    """No port of any process can be reached from another machine, and no socket file by another account."""
    listeners = listeners_of(site)
    assert [one for one in listeners if not one.address.is_loopback] == []
    processes = {one.process for one in listeners}
    # With its numbers each process has one at least: the search has found them all.
    assert processes == {one.name for one in site.cluster.running.processes.values()}
    modes = _socket_modes(site)
    assert len(modes) >= len(services_of(site))
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def _socket_modes(site: Site) -> dict[str, int]:
    folder = Path(site.cluster.running.run_dir)
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_socket()}


async def test_no_port_shows_or_stops_anything(site: Site) -> None:
    """Numbers are shown where numbers are served; no administration, no debugging, on any port that is open."""
    pages = 0
    async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as client, site.undisturbed():
        for listener in listeners_of(site):
            url = f"http://127.0.0.1:{listener.port}"
            shown = [await _shown(client, method, url + path) for path in HIDDEN for method in ("GET", "POST")]
            # Who serves numbers may show them under any name.
            assert [text[:200] for text in shown if text and not text.startswith("# ")] == [], listener
            pages += (await _shown(client, "GET", f"{url}/metrics")).startswith("# ")
    assert pages == len(site.cluster.running.processes)


async def _shown(client: httpx2.AsyncClient, method: str, url: str) -> str:
    """Returns a page; nothing from a port that refuses, or that does not speak HTTP without certificates."""
    try:
        answer = await client.request(method, url)
    except httpx2.TransportError:
        return ""
    return answer.text if answer.is_success else ""

"""A whole mesh for tests: every Envoy of the topology, as processes, around servers in this process.

The servers answer every method of the contract and say whom they saw, so a test sees what the Envoys let through. It
must not contain rules: who may call what is read from the contract by Envoy's files and by the tests, each for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import grpc.aio
import httpx2
import msgspec
import websockets
from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, unix_serve

from heliograph_cli import child
from mesh.channel import Channels
from mesh.clock import SystemClock
from mesh.envoy import certs, pki, render
from mesh.envoy.layout import Layout
from mesh.envoy.process import envoy_command, wait_ready
from mesh.envoy.sidecar import Place
from mesh.envoy.topology import EDGE, GATEWAY, GatewayNode, Topology, gateway_nodes, load_topology
from mesh.envoy.validate import validate
from mesh.server import Server
from mesh.telemetry import Telemetry
from mesh.tokens import TokenSigner, TokenVerifier
from tests.support import contract
from tests.support.ports import free_base_port

TOPOLOGY = Path(__file__).resolve().parents[2] / "deploy" / "topology.toml"
PRODUCER = "acme/demo"
OPERATOR = "dev"
NODES = 2
# From one address; a test that wants to exceed it does so from an address of its own.
RECIPIENT_RATE = 60
# Seconds a connection may carry nothing: short enough to be waited for.
IDLE_S = 3.0
# A busy machine must not look like a dead node; one that is gone refuses connections, which is noticed at once.
HEALTH_TIMEOUT_S = 10.0
_START_LIMIT_S = 20.0
_STOP_LIMIT_S = 5.0


class Mesh:
    """A running mesh."""

    def __init__(self, topology: Topology, layout: Layout, nodes: Sequence[GatewayNode], now: float) -> None:
        self.topology = topology
        self.layout = layout
        self.nodes = tuple(nodes)
        self.places: tuple[Place, ...] = render.places(topology, nodes)
        self.identities = certs.identities(topology, producers=[PRODUCER], operators=[OPERATOR])
        self.seen: list[str] = []
        # Paths of unary methods whose servers answer "unavailable" while they stand here.
        self.refused: set[str] = set()
        self.envoys: dict[str, asyncio.subprocess.Process] = {}
        self._websockets: dict[str, WebSocketServer] = {}
        certs.ensure(layout.certs_dir, self.identities, now)
        self.signing_file, self.tokens_file = certs.ensure_token_key(layout.certs_dir)

    @property
    def edge(self) -> str:
        """The edge's host and port."""
        return f"localhost:{self.topology.port_of(EDGE)}"

    @property
    def url(self) -> str:
        """The edge, for REST."""
        return f"https://{self.edge}"

    @property
    def live_url(self) -> str:
        """The edge, for sessions."""
        return f"wss://{self.edge}{self.topology.gateway.websocket_path}"

    def token(self, role: str, subject: str) -> str:
        """Returns a valid token of tenant acme."""
        return TokenSigner(self.signing_file).sign(subject, "acme", role, 600.0, time.time())

    def place(self, service: str) -> Place:
        """Returns where a service is; of the gateway, its first node."""
        return next(place for place in self.places if place.service == service)

    def leaf(self, path: str) -> pki.Leaf:
        """Returns the current certificate of an identity."""
        current = self.layout.certs_dir / path / "current"
        return pki.Leaf((current / "cert.pem").read_bytes(), (current / "key.pem").read_bytes())

    def roots(self) -> bytes:
        """Returns what clients trust."""
        return certs.bundle_file(self.layout.certs_dir).read_bytes()

    def dial(self, place: Place, leaf: pki.Leaf | None) -> grpc.aio.Channel:
        """Opens a channel straight to a sidecar's inbound port, with this certificate."""
        return self._secure(f"{self.topology.address}:{place.port}", self.topology.host(place.service), leaf)

    def dial_edge(self, leaf: pki.Leaf | None = None) -> grpc.aio.Channel:
        """Opens a channel to the edge; with a certificate, under the name that demands one."""
        name = "localhost" if leaf is None else self.topology.edge.producer_names[0]
        return self._secure(f"127.0.0.1:{self.topology.port_of(EDGE)}", name, leaf)

    def channels(self, service: str) -> Channels:
        """Returns the channels that a service of this mesh has to its peers."""
        place = self.place(service)
        return Channels(service=service, process=place.process, run_dir=self.layout.run_dir, direct=False)

    def rest(self, *, certificate: str = "", address: str | None = None) -> httpx2.AsyncClient:
        """Returns an HTTP client for the edge.

        Args:
            certificate: path of the identity whose certificate is shown; "" shows none.
            address: local address to call from.
        """
        context = ssl.create_default_context(cadata=self.roots().decode())
        if certificate:
            current = self.layout.certs_dir / certificate / "current"
            context.load_cert_chain(current / "cert.pem", current / "key.pem")
        transport = httpx2.AsyncHTTPTransport(verify=context, local_address=address, http2=False)
        return httpx2.AsyncClient(transport=transport, base_url=self.url, timeout=10.0)

    def websocket(self) -> websockets.connect:
        """Returns a connection to some gateway node, not yet opened."""
        context = ssl.create_default_context(cadata=self.roots().decode())
        return websockets.connect(f"{self.live_url}?v=1", ssl=context, open_timeout=5.0)

    async def open_websockets(self, node_id: str) -> None:
        """Serves WebSocket connections of a node: each is told the node's id, and gets back what it sends."""

        async def echo(connection: ServerConnection) -> None:
            # A peer that is cut off is what some tests are about.
            with contextlib.suppress(websockets.ConnectionClosed):
                await connection.send(node_id)
                async for received in connection:
                    await connection.send(received)

        self._websockets[node_id] = await unix_serve(echo, self.layout.websocket(node_id))

    async def close_websockets(self, node_id: str) -> None:
        """Takes no more WebSocket connections at a node, as if its process were gone."""
        server = self._websockets.pop(node_id)
        server.close()
        await server.wait_closed()

    async def start_envoy(self, process: str) -> None:
        """Starts one Envoy and waits until it is ready."""
        with (self.layout.log_dir / f"{process}.log").open("ab") as log:
            self.envoys[process] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", child.__file__, str(os.getpid())),
                *envoy_command(self.layout.config(process)),
                stderr=log,
                start_new_session=True,
            )
        await wait_ready(self.layout.admin(process), _START_LIMIT_S)

    async def kill_envoy(self, process: str) -> None:
        """Ends one Envoy without any notice."""
        ended = self.envoys.pop(process)
        ended.kill()
        await ended.wait()

    async def stop(self) -> None:
        """Ends all Envoys."""
        for envoy in self.envoys.values():
            if envoy.returncode is None:
                envoy.send_signal(signal.SIGTERM)
        for envoy in self.envoys.values():
            try:
                async with asyncio.timeout(_STOP_LIMIT_S):
                    await envoy.wait()
            except TimeoutError:
                envoy.kill()
                await envoy.wait()

    def _secure(self, target: str, name: str, leaf: pki.Leaf | None) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(
            self.roots(), leaf.key if leaf else None, leaf.certificate if leaf else None
        )
        # One connection for each: a channel must not profit from another's certificate.
        options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(target, credentials, options=options)


@asynccontextmanager
async def running_mesh(folder: Path, *, apart: Collection[str] = ()) -> AsyncIterator[Mesh]:
    """Starts a mesh with servers behind every sidecar.

    Args:
        folder: short; for sockets, certificates and files.
        apart: services that the test serves itself, at their sockets in the mesh's layout.
    """
    layout = Layout(folder, folder / "certs", folder / "mesh", folder / "log")
    topology = _test_topology()
    mesh = Mesh(topology, layout, gateway_nodes(topology, "test", NODES), time.time())
    files = render.write(topology, contract.descriptors(), layout, mesh.nodes)
    await validate(files.values())
    async with AsyncExitStack() as stack:
        for place in mesh.places:
            if place.service in apart:
                continue
            server = _server(mesh, place)
            await server.start()
            stack.push_async_callback(server.stop, 0.0)
            server.set_serving(True)
            if place.service == GATEWAY:
                await mesh.open_websockets(place.process)
                stack.push_async_callback(mesh.close_websockets, place.process)
        stack.push_async_callback(mesh.stop)
        await asyncio.gather(*(mesh.start_envoy(process) for process in files))
        yield mesh


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for a mesh that outlives one test; short, for the sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="hg-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _server(mesh: Mesh, place: Place) -> Server:
    full_names = mesh.topology.serving()[place.service]
    clock = SystemClock()
    server = Server(
        name=place.service,
        socket=Path(mesh.layout.socket(place.process)),
        access=contract.access_of(full_names),
        direct=False,
        trust_domain=mesh.topology.trust_domain,
        tokens=TokenVerifier(mesh.tokens_file, clock=clock),
        telemetry=Telemetry(place.service),
        clock=clock,
    )
    for name in full_names:
        service = contract.services()[name]
        answers = contract.Answers(place.process, service, mesh.seen, mesh.refused)
        server.add(answers.register, answers, service)
    return server


def _test_topology() -> Topology:
    """Returns the project's own topology, moved to free ports and with limits that a test can reach."""
    topology = load_topology(TOPOLOGY, base_port=free_base_port())
    rates = msgspec.structs.replace(
        topology.edge.rates, recipient=msgspec.structs.replace(topology.edge.rates.recipient, address=RECIPIENT_RATE)
    )
    timeouts = msgspec.structs.replace(topology.edge.timeouts, idle=IDLE_S)
    edge = msgspec.structs.replace(topology.edge, rates=rates, timeouts=timeouts)
    health = msgspec.structs.replace(topology.health, timeout=HEALTH_TIMEOUT_S)
    return msgspec.structs.replace(topology, edge=edge, health=health)

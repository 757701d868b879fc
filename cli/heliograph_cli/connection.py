"""How the command reaches what runs: which address, and as whom.

Producers publish and recipients listen with the SDK; other calls are made here. With a mesh everything goes the way of
strangers: producers and recipients through the edge with TLS, operators to the sidecar of the service they ask, with a
certificate. In direct mode calls go to the services' own sockets. Must not make a call without a deadline.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
import msgspec

from heliograph_cli.failures import REFUSED, USAGE, CommandFailed
from heliograph_cli.folders import DEFAULT_STATE_DIR, Folders, folders
from heliograph_cli.record import UpRecord, read_running
from heliograph_client import FileCursorStore, Publisher, RetryPolicy, Subscriber, Tls, Transport, Update
from mesh import channel
from mesh.errors import StartError
from mesh.identity import CALLER_HEADER, TOKEN_HEADER

Req = TypeVar("Req")
Res = TypeVar("Res")
Metadata = tuple[tuple[str, str], ...]

OPERATOR = "dev"
TIMEOUT_S = 10.0
TOKEN_LIFETIME_S = 3600.0


class Reach(msgspec.Struct, frozen=True):
    """Where to find a mesh, as the command line says it.

    Attributes:
        state_dir: of a mesh on this machine.
        edge: "host:port" of an edge elsewhere; empty: the one of this machine.
        ca: file with the roots to trust there.
        token: a token to use instead of one signed here.
    """

    state_dir: Path = DEFAULT_STATE_DIR
    edge: str = ""
    ca: Path | None = None
    token: str = ""


class Actor(msgspec.Struct, frozen=True):
    """As whom a call is made."""

    role: str
    name: str
    tenant: str = ""


class Connection:
    """Channels to one mesh; use `connect`."""

    def __init__(self, reach: Reach, place: Folders, running: UpRecord | None) -> None:
        self._reach = reach
        self._place = place
        self.running = running
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}

    @property
    def direct(self) -> bool:
        """True when there is no sidecar and no edge."""
        return self.running is not None and self.running.direct

    @property
    def edge(self) -> str:
        """The edge's "host:port"; empty in direct mode."""
        return self._reach.edge or (self.running.edge if self.running is not None else "")

    async def call(
        self,
        service: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Req, Res]],
        request: Req,
        actor: Actor,
    ) -> Res:
        """Makes a call; a refusal is raised as it came, as a `mesh.errors.Failure`.

        Args:
            service: which of the six serves it.
            method: picks the stub's method of a channel.
            request: its request.
            actor: as whom.

        Raises:
            Failure: it was refused or could not be made.
            CommandFailed: a key, a certificate or an address is missing here.
        """
        stub = method(self._channel(service, actor))
        return await channel.call(stub, request, timeout=TIMEOUT_S, metadata=self._metadata(actor))

    def publisher(self, actor: Actor, policy: RetryPolicy | None = None) -> Publisher:
        """Returns a publisher of the SDK, to be opened."""
        policy = policy or RetryPolicy(time_limit=TIMEOUT_S)
        if self.direct:
            assert self.running is not None
            target, caller = f"unix:{self.running.run_dir}/ingest.sock", f"producer/{actor.tenant}/{actor.name}"
            if self._reach.token:
                return Publisher(target, token=self._reach.token, policy=policy)
            return Publisher(target, metadata=((CALLER_HEADER, caller),), policy=policy)
        if self.running is None or self._reach.token:
            return Publisher(self.edge, tls=Tls(ca_file=self.roots), token=self.token(actor), policy=policy)
        folder = self._place.certs / "producer" / actor.tenant / actor.name / "current"
        if not folder.exists():
            raise CommandFailed(
                f"producer {actor.tenant}/{actor.name}: has no certificate; add it to the registry of producers and "
                "start again, or give --token",
                REFUSED,
            )
        tls = Tls(
            ca_file=self.roots,
            certificate_file=folder / "cert.pem",
            key_file=folder / "key.pem",
            server_name=self.running.producer_host,
        )
        return Publisher(self.edge, tls=tls, policy=policy)

    def subscriber(
        self,
        actor: Actor,
        device_id: str,
        *,
        node: str = "",
        remember: bool = False,
        auto_ack: bool = True,
        on_update: Callable[[Update], None] | None = None,
        transport: Transport = "websocket",
    ) -> Subscriber:
        """Returns a subscriber of the SDK, to be opened.

        Args:
            actor: the recipient.
            device_id: its device.
            node: a gateway node, in direct mode; empty: the first one.
            remember: go on where this device stood when it was used last on this machine.
            auto_ack: ack what arrives.
            on_update: called with everything that is not a notification.
            transport: what carries the session.

        Raises:
            CommandFailed: the node is unknown.
        """
        file = self._place.state / "devices" / f"{actor.tenant}+{quote(actor.name, '')}+{quote(device_id, '')}.json"
        if remember:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Subscriber(
            self._live_target(node) if transport == "grpc" else self._live_url(node),
            transport=transport,
            # A fresh one for each connection: a token given on the command line is all there is.
            token=self._reach.token or (lambda: self.token(actor)),
            device_id=device_id,
            tls=None if self.direct else Tls(ca_file=self.roots),
            store=FileCursorStore(file) if remember else None,
            auto_ack=auto_ack,
            on_update=on_update,
            client_name="heliograph-cli",
        )

    def token(self, actor: Actor, lifetime: float = TOKEN_LIFETIME_S) -> str:
        """Returns the token given on the command line, or one signed with the development key."""
        return self._reach.token or sign(self._place, actor, lifetime)

    @property
    def roots(self) -> Path | None:
        """The file with the roots to trust at the edge; None stands for those of this system."""
        if self._reach.ca is not None:
            return self._reach.ca
        return None if self.running is None else self._place.certs / "ca" / "bundle.pem"

    async def close(self) -> None:
        """Closes all channels."""
        for one in self._channels.values():
            await one.close()

    def _channel(self, service: str, actor: Actor) -> grpc.aio.Channel:
        key = (service, actor.role)
        found = self._channels.get(key)
        if found is None:
            found = self._channels[key] = self._open(service, actor)
        return found

    def _open(self, service: str, actor: Actor) -> grpc.aio.Channel:
        if self.direct:
            assert self.running is not None
            return grpc.aio.insecure_channel(f"unix:{self.running.run_dir}/{service}.sock")
        if actor.role == "operator":
            return self._open_inbound(service)
        if not self.edge:
            raise CommandFailed("no edge runs here; give --edge HOST:PORT", USAGE)
        return grpc.aio.secure_channel(self.edge, Tls(ca_file=self.roots).credentials())

    def _open_inbound(self, service: str) -> grpc.aio.Channel:
        """Opens a channel to a service's sidecar with the operator's certificate."""
        if self.running is None:
            raise CommandFailed("operators' commands need the state folder of a mesh on this machine", USAGE)
        folder = self._place.certs / "operator" / OPERATOR / "current"
        name = f"{service}.{self.running.trust_domain}"
        tls = Tls(ca_file=self.roots, certificate_file=folder / "cert.pem", key_file=folder / "key.pem")
        return grpc.aio.secure_channel(
            self.running.inbound[service], tls.credentials(), options=[("grpc.ssl_target_name_override", name)]
        )

    def _live_url(self, node: str) -> str:
        if self.running is None or not self.direct:
            return f"wss://{self.edge}"
        return self.running.live_urls[self._node(self.running, node)]

    def _live_target(self, node: str) -> str:
        if self.running is None or not self.direct:
            return self.edge
        return f"unix:{self.running.run_dir}/{self._node(self.running, node)}.sock"

    def _node(self, running: UpRecord, node: str) -> str:
        nodes = list(running.live_urls)
        if not nodes or (node and node not in nodes):
            known = ", ".join(nodes) or "none"
            raise CommandFailed(f"{node or 'a gateway node'}: does not run here; there are {known}")
        return node or nodes[0]

    def _metadata(self, actor: Actor) -> Metadata:
        if actor.role == "operator":
            return ((CALLER_HEADER, f"operator/{actor.name}"),) if self.direct else ()
        return ((TOKEN_HEADER, f"Bearer {self.token(actor)}"),)


@asynccontextmanager
async def connect(reach: Reach, place: Folders | None = None) -> AsyncIterator[Connection]:
    """Opens a connection to the mesh that the command line means.

    Args:
        reach: what the command line says.
        place: the folders of that mesh; found by the state folder if left out.

    Raises:
        CommandFailed: nothing runs there.
    """
    place = place or folders(reach.state_dir)
    running = None if reach.edge else read_running(place.record)
    connection = Connection(reach, place, running)
    try:
        yield connection
    finally:
        await connection.close()


def sign(place: Folders, actor: Actor, lifetime: float) -> str:
    """Returns a token signed with the development key of a state folder.

    Raises:
        CommandFailed: there is no key.
    """
    from mesh.tokens import TokenSigner

    try:
        signer = TokenSigner(place.token_key)
    except StartError as error:
        raise CommandFailed(f"{error}; `heliograph up` makes one, or give --token", REFUSED) from None
    return signer.sign(actor.name, actor.tenant, actor.role, lifetime, time.time())

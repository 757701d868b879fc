"""How the command reaches what runs: which channel, and as whom.

With a mesh everything goes the way of strangers: producers and recipients through the edge with TLS, operators to the
sidecar of the service they ask, with a certificate. In direct mode calls go to the services' own sockets. Must not
make a call without a deadline.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import msgspec

from heliograph_cli.failures import REFUSED, USAGE, CommandFailed
from heliograph_cli.folders import DEFAULT_STATE_DIR, Folders, folders
from heliograph_cli.record import UpRecord, read_running
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

    def token(self, actor: Actor, lifetime: float = TOKEN_LIFETIME_S) -> str:
        """Returns the token given on the command line, or one signed with the development key."""
        return self._reach.token or sign(self._place, actor, lifetime)

    def trusted(self) -> bytes | None:
        """Returns the roots to trust at the edge; None stands for those of this system.

        Raises:
            CommandFailed: their file cannot be read.
        """
        if self._reach.ca is None and self.running is None:
            return None
        return read_file(self._reach.ca or self._place.certs / "ca" / "bundle.pem")

    def certificate(self, path: str) -> tuple[bytes, bytes]:
        """Returns key and certificate of an identity of the development authority."""
        folder = self._place.certs / path / "current"
        return read_file(folder / "key.pem"), read_file(folder / "cert.pem")

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
        if actor.role == "producer" and self.running is not None and not self._reach.token:
            key, certificate = self.certificate(f"producer/{actor.tenant}/{actor.name}")
            credentials = grpc.ssl_channel_credentials(self.trusted(), key, certificate)
            return grpc.aio.secure_channel(self.edge, credentials, options=_named(self.running.producer_host))
        return grpc.aio.secure_channel(self.edge, grpc.ssl_channel_credentials(self.trusted()))

    def _open_inbound(self, service: str) -> grpc.aio.Channel:
        """Opens a channel to a service's sidecar with the operator's certificate."""
        if self.running is None:
            raise CommandFailed("operators' commands need the state folder of a mesh on this machine", USAGE)
        key, certificate = self.certificate(f"operator/{OPERATOR}")
        credentials = grpc.ssl_channel_credentials(self.trusted(), key, certificate)
        name = f"{service}.{self.running.trust_domain}"
        return grpc.aio.secure_channel(self.running.inbound[service], credentials, options=_named(name))

    def _metadata(self, actor: Actor) -> Metadata:
        if actor.role == "operator":
            return ((CALLER_HEADER, f"operator/{actor.name}"),) if self.direct else ()
        if actor.role == "producer" and self.running is not None and not self.direct and not self._reach.token:
            # Its certificate says who it is.
            return ()
        return ((TOKEN_HEADER, f"Bearer {self.token(actor)}"),)


def _named(host: str) -> list[tuple[str, str]]:
    """Returns the option by which TLS asks for another name than the address that is called."""
    return [("grpc.ssl_target_name_override", host)]


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


def read_file(path: Path) -> bytes:
    """Returns a file's content.

    Raises:
        CommandFailed: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}", USAGE) from None

"""Puts the real services on simulated machines: each service's own `wire`, with what touches the machine replaced.

The replacements are made once for the process, and the world they belong to with each run. It must not know what a run
is about.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc.aio
import structlog

import heliograph_client.streams
import mesh.lanes.sqlite
import mesh.sqlite
import svc_delivery.main
import svc_delivery.store.cassandra_store
import svc_fanout.main
import svc_gateway.main
import svc_gateway.worker
import svc_ingest.main
import svc_prefs.main
import svc_presence.main
from mesh import server as mesh_server
from mesh.app import App
from mesh.channel import Channels
from mesh.server import CallCount
from mesh.tokens import TokenSigner, create_signing_key
from svc_delivery.settings import DeliverySettings
from svc_fanout.settings import FanoutSettings
from svc_gateway.settings import GatewaySettings
from svc_ingest.settings import IngestSettings
from svc_prefs.service import PrefsService
from svc_prefs.settings import PrefsSettings
from svc_presence.settings import PresenceSettings
from tests.simulation.channel import Provider, Sender
from tests.simulation.effects import BreakingRows, HookedParked, HookedRedriver, HookedWalker, RefusingWriter
from tests.simulation.network import Channel, Network
from tests.simulation.presence import ForgetfulPresence
from tests.simulation.replicas import Ring, SimulatedSession
from tests.simulation.script import Script
from tests.simulation.storage import SimulatedBell, SimulatedLock, SimulatedThreads
from tests.simulation.world import WALL_BASE_S, Host, World, current
from tests.support.next_channel import CHANNEL, ChannelledPrefs

ROOT = Path(__file__).resolve().parents[2]
SINGLE = ("ingest", "fanout", "prefs", "presence", "delivery")
NODES = ("gw-sim-0", "gw-sim-1")
SERVICES = (*SINGLE, *NODES)

_DRAIN_LIMIT_S = 5.0
# Replicas go by the name of the file that they stand for.
_INBOXES = "inbox.db"


class SimulatedChannels(Channels):
    """Channels over the simulated network."""

    def _open(self, process: str, name: str, *, own_connection: bool) -> grpc.aio.Channel:
        channel: Any = Channel(process)
        return channel  # type: ignore[no-any-return] # it has what is used of one


class SimulatedServer(mesh_server.Server):
    """A server on the simulated network: guard and methods are the real ones."""

    network: Network

    async def start(self) -> None:
        """Listens."""
        host = current()
        assert host is not None
        self._host = host
        self.network.listen(self._socket.name.removesuffix(".sock"), host, self._registered)

    async def stop(self, grace: float) -> None:
        """Takes no new calls."""
        self._guard.close()
        self.network.close(self._socket.name.removesuffix(".sock"), self._host)

    def count_calls(self) -> CallCount:
        """Calls are taken up at once here."""
        return CallCount(0, 0)

    def set_serving(self, serving: bool) -> None:
        """Nobody asks for health."""

    def set_dependency(self, name: str, here: bool) -> None:
        """Nobody asks for health."""


class _NoListener:
    """No WebSockets: devices connect with streams, and the session behind is the same."""

    def __init__(self, **_: object) -> None:
        pass

    async def open(self, address: str) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""

    def sweep(self, now: float) -> None:
        """Does nothing."""

    def stop_accepting(self) -> None:
        """Does nothing."""


class _NoFreezer:
    """The collector is left alone."""

    frozen = 0

    def note(self, joined: int) -> None:
        """Does nothing."""


class Logs:
    """What services log, kept for whoever looks at a violation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.world: World | None = None

    def __call__(self, _logger: object, _name: str, event: Any) -> Any:
        if self.world is not None:
            host = current()
            if host is None or host.alive:
                name = "-" if host is None else host.name
                fields = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("service", "process"))
                self.lines.append(f"{self.world.loop.time():9.3f} {name} {fields}")
        raise structlog.DropEvent

    def note(self, line: str) -> None:
        """Adds a line of the simulation's own."""
        if self.world is not None:
            self.lines.append(f"{self.world.loop.time():9.3f} - {line}")


LOGS = Logs()


@lru_cache(maxsize=1)
def replace_once() -> None:
    """Replaces what touches the machine; the same for all runs of this process."""
    for module in (
        svc_ingest.main,
        svc_fanout.main,
        svc_prefs.main,
        svc_presence.main,
        svc_delivery.main,
        svc_gateway.main,
    ):
        _set(module, "Server", SimulatedServer)
        if hasattr(module, "Channels"):
            _set(module, "Channels", SimulatedChannels)
    _set(svc_gateway.main, "Listener", _NoListener)
    _set(svc_gateway.main, "_session_limit", lambda app, wanted: wanted)
    _set(svc_gateway.worker, "Freezer", _NoFreezer)
    _set(mesh.sqlite, "Threads", SimulatedThreads)
    _set(mesh.sqlite, "FileLock", SimulatedLock)
    _set(mesh.lanes.sqlite, "FileLock", SimulatedLock)
    _set(mesh.lanes.sqlite, "Bell", SimulatedBell)
    _set(mesh.lanes.sqlite.SqliteLaneWriter, "_ring", lambda self: SimulatedBell.ring(Path(self._bell)))
    _set(svc_delivery.main, "PlanWalker", HookedWalker)
    _set(svc_delivery.main, "Redriver", HookedRedriver)
    _set(svc_delivery.main, "FreshWriter", RefusingWriter)
    _set(svc_delivery.main, "Rows", BreakingRows)
    _set(svc_fanout.main, "ParkedRecords", HookedParked)
    _set(svc_prefs.main, "PrefsService", _open_prefs)
    _set(svc_presence.main, "open_store", _open_presence)
    _set(svc_delivery.store.cassandra_store, "require", _is_ready)
    _set(svc_delivery.store.cassandra_store, "open_session", _open_session)
    _set(heliograph_client.streams, "_open_channel", lambda address, name: Channel(address.target))
    structlog.configure(processors=[LOGS], cache_logger_on_first_use=False)


def _open_prefs(**parts: Any) -> PrefsService:
    return (PrefsService if Cluster.provider is None else ChannelledPrefs)(**parts)


def _wire_delivery(app: App, settings: DeliverySettings) -> None:
    provider = Cluster.provider
    senders = {} if provider is None else {CHANNEL: Sender(SimulatedThreads.world, provider)}
    svc_delivery.main.wire(app, settings, senders)


async def _is_ready(*_: object) -> None:
    """The replicas have their schema from the start."""


def _open_presence(_: str, *, lease: float, **__: object) -> ForgetfulPresence:
    Cluster.presence = ForgetfulPresence(repeat_for=lease)
    return Cluster.presence


async def _open_session(_: object) -> SimulatedSession:
    host = current()
    assert host is not None, "a store is opened on a machine"
    return SimulatedSession(Cluster.ring, SimulatedThreads.world, host, _INBOXES)


def _set(owner: object, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: the simulation must follow the code"
    setattr(owner, name, value)


_WIRES: Mapping[str, tuple[Callable[[App, Any], Any], Any]] = {
    "ingest": (svc_ingest.main.wire, IngestSettings),
    "fanout": (svc_fanout.main.wire, FanoutSettings),
    "prefs": (svc_prefs.main.wire, PrefsSettings),
    "presence": (svc_presence.main.wire, PresenceSettings),
    "delivery": (_wire_delivery, DeliverySettings),
    "gateway": (svc_gateway.main.wire, GatewaySettings),
}


class Cluster:
    """The six services with two gateway nodes on a world.

    Args:
        world: the machines.
        folder: for the files of all stores.
        skews: seconds by which a process's wall clock is off.
        script: says how services are set.
        provider: of the channel behind live; None: there is none.
    """

    ring: Ring
    presence: ForgetfulPresence
    provider: Provider | None

    def __init__(
        self, world: World, folder: Path, skews: Mapping[str, float], script: Script, provider: Provider | None
    ) -> None:
        replace_once()
        self.world = world
        self.network = Network(world)
        self.folder = folder
        self.signer = _signer(folder)
        self._skews = skews
        self._script = script
        Cluster.ring = Ring(choose=world.random, latency=world.latency, now=lambda: WALL_BASE_S + world.loop.time())
        Cluster.provider = provider
        SimulatedThreads.world = world
        SimulatedServer.network = Channel.network = self.network
        SimulatedBell._hung.clear()
        LOGS.lines.clear()
        LOGS.world = world
        # Services draw their jitter from the module's generator.
        random.seed(world.seed)

    def start(self, name: str) -> Host:
        """Starts a service's process."""
        host = self.world.boot(name, self._skews.get(name, 0.0))
        self.world.start(host, self._run(name, host), f"main {name}")
        return host

    async def _run(self, name: str, host: Host) -> None:
        service = "gateway" if name.startswith("gw-") else name
        wire, model = _WIRES[service]
        settings = model(**self._settings(name, service))
        app = App(name=service, settings=settings, clock=host.clock, random=random.random)
        try:
            wire(app, settings)
            await app.run()
        except Exception as error:
            # A process that cannot go on ends; whoever supervises it starts the next one.
            LOGS.note(f"{name} ended: {error!r}")
        self.world.crash(host)

    def _settings(self, name: str, service: str) -> dict[str, Any]:
        common: dict[str, Any] = {
            "process": name,
            "run_dir": self.folder / "run",
            "data_dir": self.folder / "data",
            "direct": True,
            "tokens_file": self.folder / "keys.json",
            "drain_limit": _DRAIN_LIMIT_S,
        }
        if service in ("ingest", "fanout", "prefs"):
            common["categories_file"] = ROOT / "deploy" / "categories.toml"
        if service == "ingest":
            common["producers_file"] = ROOT / "deploy" / "producers.example.toml"
        if service == "gateway":
            common["node_id"] = name
            common["round_interval"] = self._script.round
        if service == "fanout":
            common["large_audience"] = self._script.large
            common["slice_size"] = 1 if self._script.large < 10 else 2_000
        if service == "delivery" and self._script.channel:
            # What a store refuses is given up while the run lasts.
            common["retry_delays"] = (1.0, 2.0)
        if service == "delivery" and self._script.store == "replicas":
            common["store_url"] = "cassandra://replicas:9042/heliograph"
            common["follow_ups_url"] = "sqlite:///retry"
        return common

    async def serving(self, host: Host) -> None:
        """Waits until a process listens, or is dead again."""
        # Looked at again and again, as `heliograph up` does it.
        while host.alive and host.name not in self.network.servers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """Ends all machines, and removes their files."""
        for host in list(self.world.hosts.values()):
            self.world.crash(host)
        shutil.rmtree(self.folder, ignore_errors=True)


def _signer(folder: Path) -> TokenSigner:
    create_signing_key(folder / "key.pem", folder / "keys.json")
    return TokenSigner(folder / "key.pem")

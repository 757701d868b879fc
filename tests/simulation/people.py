"""People on a simulated cluster: devices with the SDK, a producer, and the way in for whoever reads at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc.aio

from heliograph.prefs.v1 import topic_service_pb2, topic_service_pb2_grpc
from heliograph_cli.connection import Actor
from heliograph_client import Publisher
from heliograph_client.cursor_store import CursorStore
from heliograph_client.wires import NotOpened, Wire
from mesh import channel
from mesh.identity import CALLER_HEADER, TOKEN_HEADER
from tests.faults.actors import NotedSubscriber, Screen
from tests.faults.history import Device, Recorder
from tests.simulation.network import Channel
from tests.simulation.wiring import NODES, Cluster
from tests.simulation.world import Host

Req = TypeVar("Req")
Res = TypeVar("Res")

TENANT = "acme"
PRODUCER = "demo"
_CALL_LIMIT_S = 10.0
_TOKEN_LIFETIME_S = 3 * 3600.0


class DeviceClock:
    """A device's clocks."""

    def __init__(self, host: Host) -> None:
        self._clock = host.clock

    def wall(self) -> float:
        """Returns Unix time."""
        return self._clock.wall()

    def monotonic(self) -> float:
        """Returns seconds."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        await asyncio.sleep(max(0.0, seconds))


class RoamingSubscriber(NotedSubscriber):
    """A device that finds another node with each connection, as an edge would choose one."""

    choose: Callable[[], str]

    async def _open(self, token: str) -> Wire | NotOpened:
        # The address is looked up with each connection; the SDK itself keeps one.
        from heliograph_client.streams import StreamAddress

        self._address = StreamAddress(target=self.choose())
        return await super()._open(token)


def subscriber(cluster: Cluster, host: Host, screen: Screen, store: CursorStore) -> RoamingSubscriber:
    """Returns a device's subscriber, on its machine."""
    who, world = screen.device, cluster.world
    token = cluster.signer.sign(who.recipient, who.tenant, "recipient", _TOKEN_LIFETIME_S, host.clock.wall())
    made = RoamingSubscriber(
        f"unix:{NODES[0]}.sock",
        token=token,
        device_id=who.name,
        transport="grpc",
        on_update=screen.heard,
        store=store,
        clock=DeviceClock(host),
        random=world.random.random,
    )
    made.choose = lambda: f"unix:{world.random.choice(NODES)}.sock"
    made.screen = screen
    screen.subscriber = made
    return made


class SimulatedPublisher(Publisher):
    """The SDK's publisher on the simulated network."""

    def _open_channel(self) -> grpc.aio.Channel:
        made: Any = Channel("ingest")
        return made  # type: ignore[no-any-return] # it has what is used of one


def publisher(cluster: Cluster, host: Host) -> Publisher:
    """Returns a producer's publisher; its ids come from the run's seed."""
    return SimulatedPublisher(
        "unix:ingest.sock",
        metadata=((CALLER_HEADER, f"producer/{TENANT}/{PRODUCER}"),),
        clock=DeviceClock(host),
        random=cluster.world.random.random,
        entropy=cluster.world.random.randbytes,
    )


class Calls:
    """Calls of recipients and operators, made on a machine of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def call(
        self,
        service: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Req, Res]],
        request: Req,
        actor: Actor,
    ) -> Res:
        """Makes a call as somebody."""
        made: Any = Channel(service)
        if actor.role == "operator":
            metadata = ((CALLER_HEADER, f"operator/{actor.name}"),)
        else:
            now = self._cluster.world.hosts["reader"].clock.wall()
            token = self._cluster.signer.sign(actor.name, actor.tenant, actor.role, _TOKEN_LIFETIME_S, now)
            metadata = ((TOKEN_HEADER, f"Bearer {token}"),)
        return await channel.call(method(made), request, timeout=_CALL_LIMIT_S, metadata=metadata)


async def subscribe(cluster: Cluster, topic: str, recipients: Sequence[str]) -> None:
    """Has people subscribe to a topic, each as themselves."""
    for recipient in recipients:
        await Calls(cluster).call(
            "prefs",
            lambda channel: topic_service_pb2_grpc.TopicServiceStub(channel).Subscribe,
            topic_service_pb2.SubscribeRequest(topic_ids=[topic]),
            Actor("recipient", recipient, TENANT),
        )


def screen_of(recipient: str, index: int, secret: bytes, recorder: Recorder, clock: Callable[[], float]) -> Screen:
    """Returns a person's device."""
    return Screen(Device(TENANT, recipient, f"device-{index}"), secret, recorder, clock)

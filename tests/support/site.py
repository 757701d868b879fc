"""A running Heliograph that strangers may try anything on, a healthy recipient in it, and what must not change.

Strangers come the way that strangers come: with a mesh through the edge, without one to the services' own sockets, with
whatever credentials a test gives them. `Site.undisturbed` is the proof: no lane and no inbox grew, and the recipient
next door got everything, once, over sessions that stayed open. Must not judge what a stranger was told.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import httpx2
import pytest

from heliograph.delivery.v1 import inbox_service_pb2, inbox_service_pb2_grpc
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.ingest.v1 import ingest_service_pb2, ingest_service_pb2_grpc
from heliograph.type.v1 import notification_pb2
from heliograph_cli.connection import OPERATOR, Actor
from mesh.channel import call
from mesh.envoy import pki
from mesh.identity import CALLER_HEADER, TOKEN_HEADER
from tests.support.cluster import PRODUCER, TENANT, Cluster, Shape
from tests.support.device import Device, connected
from tests.support.publishing import publish_request
from tests.support.shapes import LOOP, kind_of, way_of
from tests.support.stored import appended_count
from tests.support.wait import until

Req = TypeVar("Req")
Res = TypeVar("Res")
Metadata = tuple[tuple[str, str], ...]

OTHER_TENANT = "globex"
ORIGIN = "https://app.example"
NEIGHBOUR = "neighbour"
VICTIMS = ((TENANT, "alice"), (TENANT, "bob"), (OTHER_TENANT, "alice"))
# Who may publish what at a site: another tenant's producer, one of acme with few grants, one with none left. And some
# whose quotas are small: what those let through lasts for one test each.
PRODUCERS = """
[producers."acme/demo"]
categories = ["*"]
priorities = ["high", "normal", "bulk"]

[producers."acme/billing"]
categories = ["billing"]
priorities = ["normal"]

[producers."acme/silenced"]
categories = ["*"]
priorities = ["high", "normal", "bulk"]
quota = { events_per_second = 0 }

[producers."acme/measured"]
categories = ["*"]
priorities = ["normal"]
quota = { events_per_second = 0.01, burst = 2 }

[producers."acme/metered"]
categories = ["*"]
priorities = ["normal"]
quota = { events_per_second = 0.01, burst = 2 }

[producers."acme/hasty"]
categories = ["*"]
priorities = ["normal"]
quota = { events_per_second = 4, burst = 1 }

[producers."acme/wordy"]
categories = ["*"]
priorities = ["normal"]
quota = { recipients_per_second = 0.01, recipients_burst = 3 }

[producers."globex/demo"]
categories = ["*"]
priorities = ["high", "normal", "bulk"]

[producers."umbrella/first"]
categories = ["*"]
priorities = ["normal"]

[producers."umbrella/second"]
categories = ["*"]
priorities = ["normal"]

[tenants.umbrella]
quota = { events_per_second = 0.01, burst = 2 }
"""

# For what only a mesh has: certificates, an edge, REST. The fixture `site` has this shape too, so both share one site.
IN_A_MESH = pytest.mark.parametrize(
    "site", [pytest.param("mesh", marks=[pytest.mark.mesh, pytest.mark.timeout(60)])], indirect=True, scope="session"
)
# For what is to be shown in one loop too, where nothing has to be a process or stand at an edge.
IN_EVERY_SHAPE = pytest.mark.parametrize(
    "site",
    [
        LOOP,
        pytest.param("processes", marks=[pytest.mark.processes, pytest.mark.timeout(60)]),
        pytest.param("mesh", marks=[pytest.mark.mesh, pytest.mark.timeout(60)]),
    ],
    indirect=True,
    scope="session",
)

_LANES = {
    "high": notification_pb2.PRIORITY_HIGH,
    "normal": notification_pb2.PRIORITY_NORMAL,
    "bulk": notification_pb2.PRIORITY_BULK,
}
_LIMIT_S = 10.0


class Site:
    """The cluster, its neighbour's devices, and ways in for anybody.

    Attributes:
        cluster: what runs.
        devices: the neighbour's; one speaks JSON, the other one serialised messages.
        gifts: ids of two notifications that alice of acme has.
    """

    def __init__(self, cluster: Cluster, devices: Sequence[Device]) -> None:
        self.cluster = cluster
        self.devices = tuple(devices)
        self.gifts: tuple[str, ...] = ()
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}

    @property
    def mesh(self) -> bool:
        """Whether there are sidecars and an edge."""
        return self.cluster.shape == "mesh"

    @property
    def certs_dir(self) -> Path:
        """Certificates and keys."""
        return self.cluster.place.certs

    async def close(self) -> None:
        """Closes the channels that strangers used."""
        for channel in self._channels.values():
            await channel.close()

    # ------------------------------------------------------------ credentials

    def bearer(self, role: str, subject: str, tenant: str = TENANT) -> Metadata:
        """Returns a valid token as metadata."""
        return ((TOKEN_HEADER, f"Bearer {self.cluster.token(subject, role=role, tenant=tenant)}"),)

    def as_operator(self) -> Metadata:
        """Returns what an operator of a site without certificates says."""
        return ((CALLER_HEADER, f"operator/{OPERATOR}"),)

    def leaf(self, path: str) -> pki.Leaf:
        """Returns the certificate of an identity of this site."""
        current = self.certs_dir / path / "current"
        return pki.Leaf((current / "cert.pem").read_bytes(), (current / "key.pem").read_bytes())

    def roots(self) -> bytes:
        """Returns what clients trust."""
        return (self.certs_dir / "ca" / "bundle.pem").read_bytes()

    def tls(self) -> ssl.SSLContext | None:
        """Returns how to speak TLS with the edge; None where there is none."""
        return ssl.create_default_context(cadata=self.roots().decode()) if self.mesh else None

    # ------------------------------------------------------------ ways in

    @property
    def live_url(self) -> str:
        """Where sessions connect; of several nodes the first."""
        return next(iter(self.cluster.running.live_urls.values()))

    def door(self, service: str) -> grpc.aio.Channel:
        """Returns a stranger's channel: to the edge, or to the service's own socket where there is no edge."""
        key = ("" if self.mesh else service, "")
        if key not in self._channels:
            running = self.cluster.running
            self._channels[key] = (
                self.dial(running.edge)
                if self.mesh
                else grpc.aio.insecure_channel(f"unix:{running.run_dir}/{service}.sock")
            )
        return self._channels[key]

    def dial(self, target: str, leaf: pki.Leaf | None = None, name: str = "localhost") -> grpc.aio.Channel:
        """Opens a channel with TLS; the caller closes it.

        Args:
            target: "host:port".
            leaf: the certificate that is shown; None shows none.
            name: the name that is called.
        """
        credentials = grpc.ssl_channel_credentials(
            self.roots(), leaf.key if leaf else None, leaf.certificate if leaf else None
        )
        # One connection for each: a channel must not profit from another's certificate.
        options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(target, credentials, options=options)

    async def call(
        self,
        service: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Req, Res]],
        request: Req,
        credentials: Metadata = (),
    ) -> Res:
        """Makes a call as a stranger; raises the `Failure` that it ends with."""
        return await call(method(self.door(service)), request, timeout=_LIMIT_S, metadata=credentials)

    async def publish(
        self, request: ingest_service_pb2.PublishRequest, credentials: Metadata | None = None
    ) -> ingest_service_pb2.PublishResponse:
        """Publishes, as the demo's producer unless told otherwise."""
        who = self.bearer("producer", PRODUCER) if credentials is None else credentials
        return await self.call(
            "ingest", lambda channel: ingest_service_pb2_grpc.IngestServiceStub(channel).Publish, request, who
        )

    async def batch(
        self, requests: Sequence[ingest_service_pb2.PublishRequest], credentials: Metadata | None = None
    ) -> ingest_service_pb2.BatchPublishResponse:
        """Publishes several."""
        who = self.bearer("producer", PRODUCER) if credentials is None else credentials
        return await self.call(
            "ingest",
            lambda channel: ingest_service_pb2_grpc.IngestServiceStub(channel).BatchPublish,
            ingest_service_pb2.BatchPublishRequest(requests=requests),
            who,
        )

    async def inbox(
        self, recipient: str, tenant: str = TENANT, **fields: object
    ) -> inbox_service_pb2.ListInboxResponse:
        """Lists an inbox as its recipient."""
        # Any keyword of the message; the message refuses what it does not have.
        request = inbox_service_pb2.ListInboxRequest(**{"page_size": 200, **fields})  # type: ignore[arg-type] # checked by the message
        return await self.call(
            "delivery",
            lambda channel: inbox_service_pb2_grpc.InboxServiceStub(channel).ListInbox,
            request,
            self.bearer("recipient", recipient, tenant),
        )

    @asynccontextmanager
    async def rest(self, *, certificate: Path | None = None) -> AsyncIterator[httpx2.AsyncClient]:
        """Opens an HTTP client for the edge; with a folder of certificate and key, as their owner."""
        context = ssl.create_default_context(cadata=self.roots().decode())
        if certificate is not None:
            context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        url = f"https://{self.cluster.running.edge.replace('127.0.0.1', 'localhost')}"
        async with httpx2.AsyncClient(verify=context, base_url=url, timeout=_LIMIT_S, trust_env=False) as client:
            yield client

    # ------------------------------------------------------------ what must not change

    @asynccontextmanager
    async def undisturbed(self, *, stored: int = 0) -> AsyncIterator[None]:
        """Checks that what happens inside changed no lane, no victim's inbox and nothing for the neighbour.

        Args:
            stored: so many events were accepted inside, rightly; none of them is for a victim.
        """
        positions, inboxes = await self.appended_count(), await self._inboxes()
        gone = [device.closed for device in self.devices]
        assert gone == [None] * len(self.devices), "a device of the neighbour was closed before"
        frames = [len(device.ids) for device in self.devices]
        yield
        assert await self.appended_count() - positions == stored
        # One more event through every lane: what was appended before it is in an inbox by the time it arrives.
        ids = await self._greet()
        for device, before in zip(self.devices, frames, strict=True):
            await device.has(*ids)
            assert sorted(device.ids[before:]) == sorted(ids), "the neighbour got something else, or something twice"
            assert device.closed is None
            assert device.refusals == []
            number = await device.mark(notification_pb2.MARK_KIND_RECEIVED, *ids)
            await device.has_confirmed(number)
        assert await self._inboxes() == inboxes

    async def has_nothing_left(self) -> None:
        """Waits until fan-out has read every lane to its end, and checks that it could read everything there."""
        await until(self._caught_up, _LIMIT_S, "fan-out has nothing left to read")
        async with self.cluster.connection() as connection:
            answer = await connection.call(
                "fanout",
                lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).ListParked,
                fanout_service_pb2.ListParkedRequest(),
                Actor("operator", OPERATOR),
            )
        assert list(answer.records) == []

    async def metric(self, process: str, name: str, **labels: str) -> float:
        """Returns a number that a process exports; 0 when it was never counted."""
        argv = self.cluster.process(process).argv
        port = argv[argv.index("--metrics-port") + 1]
        pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        wanted = f"{name}{{{pairs}}}" if pairs else name
        async with httpx2.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return float(values.get(wanted, 0.0))

    async def appended_count(self) -> int:
        """Returns how many events were accepted since the site began."""
        return sum([await appended_count(self.cluster, lane) for lane in _LANES])

    async def _inboxes(self) -> list[bytes]:
        lists = await asyncio.gather(*(self.inbox(recipient, tenant) for tenant, recipient in VICTIMS))
        return [one.SerializeToString(deterministic=True) for one in lists]

    async def _greet(self) -> list[str]:
        requests = [publish_request("Good day", to=[NEIGHBOUR], priority=priority) for priority in _LANES.values()]
        answer = await self.batch(requests)
        return [result.accepted.event_id for result in answer.results]

    async def _caught_up(self) -> bool:
        async with self.cluster.connection() as connection:
            answer = await connection.call(
                "fanout",
                lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).GetLag,
                fanout_service_pb2.GetLagRequest(),
                Actor("operator", OPERATOR),
            )
        return all(lane.record_count == 0 for lane in answer.lanes)


@asynccontextmanager
async def open_site(folder: Path, shape: Shape) -> AsyncIterator[Site]:
    """Starts a site in a short folder, with a neighbour that is connected and an alice that has notifications."""
    producers = folder / "producers.toml"
    producers.write_text(PRODUCERS, encoding="utf-8")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            kind_of(shape)(
                folder,
                shape=way_of(shape),
                environ={"HELIOGRAPH_GATEWAY_ALLOWED_ORIGINS": ORIGIN},
                arguments=("--producers", str(producers)),
            )
        )
        urls = list(cluster.running.live_urls.values())
        site = Site(cluster, ())
        devices = []
        for url, form in ((urls[0], "json"), (urls[-1], "proto")):
            device = await stack.enter_async_context(
                connected(url, form="json" if form == "json" else "proto", context=site.tls())
            )
            await device.hello(cluster.token(NEIGHBOUR), f"device-{form}")
            await device.ready()
            devices.append(device)
        site = Site(cluster, devices)
        stack.push_async_callback(site.close)
        gifts = await site.batch([publish_request("For alice alone", to=["alice"]) for _ in range(2)])
        site.gifts = tuple(result.accepted.event_id for result in gifts.results)

        async def given() -> bool:
            return len((await site.inbox("alice")).items) == len(site.gifts)

        await until(given, _LIMIT_S, "alice has what she is to have")
        yield site
        await site.has_nothing_left()

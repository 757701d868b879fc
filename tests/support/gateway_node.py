"""One gateway node whose loops are run step by step, against a real presence under a manual clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph.delivery.v1.inbox_service_pb2 import ReplayInboxRequest, ReplayInboxResponse
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from heliograph.presence.v1 import presence_service_pb2 as presence_pb
from heliograph.type.v1.notification_pb2 import Mark
from mesh.clock import ManualClock
from mesh.errors import Failure, InvalidArgument
from mesh.telemetry import Telemetry
from svc_gateway import wire
from svc_gateway.auth import FrontDesk
from svc_gateway.decisions import Identity, Limits, State
from svc_gateway.host import ClientConnection
from svc_gateway.lease import NodeLease
from svc_gateway.marks import MarkLedger
from svc_gateway.metrics import Metrics
from svc_gateway.queues import PresenceQueue, SessionQueue
from svc_gateway.service import Gateway
from svc_gateway.sessions import Sessions, session_of
from svc_gateway.topics import TopicQueue
from svc_gateway.worker import InboxWorker, PresenceWorker
from svc_presence.metrics import Metrics as PresenceMetrics
from svc_presence.service import PresenceService
from svc_presence.store import open_store
from tests.support.connections import Bench, masked
from tests.support.sessions import Inbox

# Any: presence does not look at its context.
_NO_CONTEXT: Any = None


class NamedTokens(FrontDesk):
    """A desk whose tokens are the recipients' names."""

    def verify(self, token: str) -> Identity:
        """Believes everybody."""
        return Identity(recipient_key=f"acme/{token}", expire_time=2e9, seconds_left=1e9)


class InProcess:
    """Presence and inbox without a network, as their ports promise."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.failure: Failure | None = None
        self.inbox = Inbox()
        self.marks: list[Mark] = []
        self.calls: list[list[str]] = []
        self.refused: dict[str, InvalidArgument] = {}
        self.largest_answer = 100
        self.restart_presence()

    def restart_presence(self) -> None:
        """Presence loses its memory."""
        self.presence = PresenceService(
            store=open_store("memory://", lease=15.0, clock=self.clock),
            clock=self.clock,
            metrics=PresenceMetrics(Telemetry("presence")),
            lease=15.0,
        )

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def renew(self, node: presence_pb.Node) -> presence_pb.RenewNodeResponse:
        self._check()
        return await self.presence.RenewNode(presence_pb.RenewNodeRequest(node=node), _NO_CONTEXT)

    async def report(self, request: presence_pb.ReportSessionsRequest) -> presence_pb.ReportSessionsResponse:
        self._check()
        return await self.presence.ReportSessions(request, _NO_CONTEXT)

    async def present(self, recipient_key: str) -> bool:
        request = presence_pb.BatchGetPresenceRequest(recipient_keys=[recipient_key])
        return bool((await self.presence.BatchGetPresence(request, _NO_CONTEXT)).groups)

    async def replay(self, requests: Sequence[ReplayInboxRequest]) -> Sequence[ReplayInboxResponse | InvalidArgument]:
        self._check()
        self.calls.append([request.recipient_key for request in requests])
        answers = [self.inbox.replay(request, self.clock.wall()) for request in requests]
        return [self.refused.get(one.recipient_key, page) for one, page in zip(requests, answers, strict=True)][
            : self.largest_answer
        ]

    async def heads(self, recipient_keys: Sequence[str]) -> Sequence[int]:
        self._check()
        return [self.inbox.head for _ in recipient_keys]

    async def mark(self, marks: Sequence[Mark]) -> None:
        self._check()
        self.marks.extend(marks)


class World:
    """One node whose loops are run step by step."""

    def __init__(self) -> None:
        self.clock = ManualClock(monotonic=1_000.0)
        self.peers = InProcess(self.clock)
        sessions = Sessions()
        self.gateway = Gateway(
            desk=NamedTokens(
                tokens=_NO_CONTEXT,
                sessions=sessions,
                clock=self.clock,
                random=lambda: 0.5,
                node_id="gw-0",
                session_limit=100,
                session_age=1e6,
                retry_delay=1.0,
            ),
            limits=Limits(heartbeat_interval=1e6),
            sessions=sessions,
            marks=MarkLedger[ClientConnection](limit=100, now=self.clock.monotonic()),
            presence=PresenceQueue("gw-0"),
            replays=SessionQueue(),
            checkpoints=SessionQueue(),
            rounds=SessionQueue(),
            topics=TopicQueue(limit=10),
            clock=self.clock,
            random=lambda: 0.52,
            metrics=Metrics(Telemetry("gateway")),
            backlog_bytes=1_000_000,
            trace=None,
        )
        self.lease = NodeLease(node_id="gw-0", address="", lifetime=15.0, wall=self.clock.wall())
        self.presence = PresenceWorker(
            gateway=self.gateway,
            lease=self.lease,
            presence=self.peers,
            clock=self.clock,
            random=lambda: 0.5,
            renew_interval=5.0,
        )
        self.inbox = InboxWorker(gateway=self.gateway, inbox=self.peers, clock=self.clock, random=lambda: 0.5)

    def connect(self, recipient: str = "alice") -> Bench:
        """Opens a connection and says hello."""
        bench = Bench()
        bench.listener.host = self.gateway
        self.gateway.opened(bench.connection)
        frame = ConnectRequest(frame_number=1)
        frame.hello.token, frame.hello.device_id = recipient, "phone"
        bench.feed(masked(wire.BINARY, frame.SerializeToString()))
        return bench

    async def settle(self) -> None:
        """Runs reports and replays until nothing waits."""
        while len(self.gateway.presence) and await self.presence.report():
            pass
        while len(self.gateway.replays):
            await self.inbox.replay(await self.gateway.replays.take(10))

    async def live(self) -> Bench:
        """Returns a session that is live."""
        await self.presence.renew()
        bench = self.connect()
        await self.settle()
        assert session_of(bench.connection).state is State.LIVE
        return bench


def written(bench: Bench) -> list[ConnectResponse]:
    """Returns what was written since the last time; frames are short here."""
    data, found = bytes(bench.transport.sent), []
    while data and data[0] != 0x88:
        size, start = data[1], 2
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        found.append(ConnectResponse.FromString(data[start : start + size]))
        data = data[start + size :]
    bench.transport.sent.clear()
    return found


async def join(world: World, recipients: Sequence[str]) -> list[Bench]:
    """Opens sessions that presence knows and whose replays wait."""
    await world.presence.renew()
    benches = [world.connect(recipient) for recipient in recipients]
    assert await world.presence.report()
    return benches

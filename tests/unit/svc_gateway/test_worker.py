"""The loops of a node, one step at a time, against a real presence under a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from heliograph.delivery.v1.inbox_service_pb2 import ReplayInboxRequest, ReplayInboxResponse
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from heliograph.presence.v1 import presence_service_pb2 as presence_pb
from heliograph.type.v1.notification_pb2 import Mark
from mesh.clock import ManualClock
from mesh.errors import Failure, InvalidArgument, Unavailable
from mesh.telemetry import Telemetry
from svc_gateway import wire
from svc_gateway.auth import FrontDesk
from svc_gateway.decisions import CloseCode, Identity, Limits, Offer, State
from svc_gateway.frames import notify
from svc_gateway.host import ClientConnection, Form
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
from tests.support.sessions import Inbox, id_of

# Any: presence does not look at its context.
_NO_CONTEXT: Any = None
_FOR_LONG = 3_600.0
_AWAY = Unavailable("away", reason="PEER_UNAVAILABLE")


class _AllRead(Exception):
    """Nothing waits any more."""


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


def _frames(bench: Bench) -> list[ConnectResponse]:
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


async def test_a_session_is_reported_and_then_read() -> None:
    """Presence knows it, and its checkpoint was written."""
    world = World()
    bench = await world.live()
    assert await world.peers.present("acme/alice")
    assert [frame.WhichOneof("frame") for frame in _frames(bench)] == ["welcome", "replayed"]


async def test_nothing_is_reported_without_a_lease_and_nothing_is_lost() -> None:
    """A failed report comes again."""
    world = World()
    world.connect()
    world.peers.failure = _AWAY
    assert not await world.presence.report()
    assert len(world.gateway.presence) == 1
    world.peers.failure = None
    await world.presence.renew()
    await world.settle()
    assert await world.peers.present("acme/alice")


async def test_a_presence_that_lost_its_memory_is_told_everything_and_gaps_are_read() -> None:
    """Sessions stay open; what was not offered meanwhile comes with a replay."""
    world = World()
    bench = await world.live()
    world.peers.restart_presence()
    world.peers.inbox.write(id_of(1), 1, world.clock.wall())
    _frames(bench)
    await world.presence.renew()
    await world.settle()
    assert await world.peers.present("acme/alice")
    kinds = [frame.WhichOneof("frame") for frame in _frames(bench)]
    assert kinds == ["notify", "replayed"]


async def test_a_lease_that_ran_out_is_followed_by_a_new_epoch() -> None:
    """A node that slept too long takes a new epoch before it says anything else."""
    world = World()
    bench = await world.live()
    epoch = world.lease.epoch
    world.clock.advance(16.0)
    assert not await world.peers.present("acme/alice")
    await world.presence.renew()
    assert world.lease.epoch > epoch
    await world.settle()
    assert await world.peers.present("acme/alice")
    assert session_of(bench.connection).state is State.LIVE


async def test_a_refused_report_takes_a_new_epoch() -> None:
    """LEASE_STALE says that presence does not know this epoch."""
    world = World()
    await world.live()
    epoch = world.lease.epoch
    world.peers.restart_presence()
    world.connect("bob")
    assert not await world.presence.report()
    assert world.lease.epoch > epoch
    await world.presence.renew()
    await world.settle()
    assert await world.peers.present("acme/bob")
    assert await world.peers.present("acme/alice")


async def test_a_refused_lease_takes_a_new_epoch_at_once() -> None:
    """A twin of this node with a younger epoch is passed."""
    world = World()
    twin = NodeLease(node_id="gw-0", address="", lifetime=15.0, wall=world.clock.wall() + 5.0)
    await world.peers.renew(twin.node(0))
    assert await world.presence.renew() < 1.0
    world.clock.advance(6.0)
    await world.presence.renew()
    await world.presence.renew()
    assert world.lease.alive
    assert world.lease.epoch > twin.epoch


async def _join(world: World, recipients: Sequence[str]) -> list[Bench]:
    """Opens sessions that presence knows and whose replays wait."""
    await world.presence.renew()
    benches = [world.connect(recipient) for recipient in recipients]
    assert await world.presence.report()
    return benches


async def _elsewhere(world: World, connect_number: int) -> None:
    """Alice's phone is known to presence on another node."""
    node = presence_pb.Node(node_id="gw-1", epoch=1, state=presence_pb.NODE_STATE_SERVING)
    await world.peers.renew(node)
    entry = presence_pb.SessionEntry(recipient_key="acme/alice", device_id="phone", connect_number=connect_number)
    await world.peers.report(presence_pb.ReportSessionsRequest(node_id="gw-1", epoch=1, joined=[entry]))


async def test_a_device_that_returns_from_a_node_with_a_fast_clock_is_asked_to_connect_again() -> None:
    """The node may be dead, and its session older: a final code would keep the device away for good."""
    world = World()
    await world.presence.renew()
    await _elsewhere(world, round((world.clock.wall() + 0.5) * 1_000_000))
    bench = world.connect()
    await world.settle()
    assert bench.close_sent == 4000
    world.clock.advance(1.0)
    bench = world.connect()
    await world.settle()
    assert session_of(bench.connection).state is State.LIVE


async def test_a_session_that_presence_had_accepted_is_superseded_for_good() -> None:
    """Two apps with one device id do not chase each other away for ever."""
    world = World()
    bench = await world.live()
    world.clock.advance(1.0)
    await _elsewhere(world, round((world.clock.wall() + 5.0) * 1_000_000))
    await world.presence.renew()
    assert bench.close_sent == 4500


async def test_many_sessions_are_read_in_one_call() -> None:
    """In the order in which they wait."""
    world = World()
    names = ["alice", "bob", "carol"]
    benches = await _join(world, names)
    await world.settle()
    assert world.peers.calls == [[f"acme/{name}" for name in names]]
    assert all(session_of(bench.connection).state is State.LIVE for bench in benches)


async def test_those_without_an_answer_ask_again() -> None:
    """An answer that is too large for all of them has the first ones."""
    world = World()
    benches = await _join(world, ["alice", "bob", "carol"])
    world.peers.largest_answer = 1
    await world.settle()
    assert [len(call) for call in world.peers.calls] == [3, 2, 1]
    assert all(session_of(bench.connection).state is State.LIVE for bench in benches)


async def test_further_pages_are_read_together() -> None:
    """Each session gets all of its own, and nothing twice."""
    world = World()
    for number in range(7):
        world.peers.inbox.write(id_of(number), 1, world.clock.wall())
    benches = await _join(world, ["alice", "bob"])
    await world.settle()
    assert [len(call) for call in world.peers.calls] == [2, 2, 2]
    for bench in benches:
        kinds = [frame.WhichOneof("frame") for frame in _frames(bench)]
        assert kinds == ["welcome", *["notify"] * 7, "replayed"]


async def test_a_refused_replay_is_one_session_s_alone() -> None:
    """The others of the call go on; a call that fails is repeated for all of them."""
    world = World()
    alice, bob = await _join(world, ["alice", "bob"])
    world.peers.refused["acme/bob"] = InvalidArgument("no such page", reason="FIELD_INVALID")
    await world.settle()
    assert [frame.WhichOneof("frame") for frame in _frames(alice)] == ["welcome", "replayed"]
    assert [frame.WhichOneof("frame") for frame in _frames(bob)] == ["welcome"]
    assert session_of(bob.connection).retry_due < float("inf")
    world.peers.failure = _AWAY
    carol, dave = world.connect("carol"), world.connect("dave")
    world.gateway.registered([carol.connection, dave.connection])
    await world.settle()
    assert all(session_of(bench.connection).retry_due < float("inf") for bench in (carol, dave))


async def _given_a_hundred(world: World) -> list[Bench]:
    """Opens ten sessions that wait for a checkpoint."""
    benches = await _join(world, [f"reader-{number}" for number in range(10)])
    await world.settle()
    world.clock.advance(10.0)
    for bench in benches:
        session = session_of(bench.connection)
        for number in range(100):
            session.offer(id_of(number), 1, "", b"", world.clock.monotonic(), float("inf"))
        world.gateway.run(bench.connection, session, session.frames_passed(world.clock.monotonic()))
        _frames(bench)
    return benches


async def test_busy_sessions_get_their_checkpoints_a_few_at_a_time() -> None:
    """Eight, then the two that are left; none is in the way of replays."""
    world = World()
    benches = await _given_a_hundred(world)
    assert len(world.gateway.replays) == 0
    for waiting in (2, 0):
        await world.inbox.checkpoint(await world.gateway.checkpoints.take(8))
        done = [bench for bench in benches if session_of(bench.connection).since_checkpoint == 0]
        assert (len(world.gateway.checkpoints), len(benches) - len(done)) == (waiting, waiting)
    assert all([frame.WhichOneof("frame") for frame in _frames(bench)] == ["replayed"] for bench in benches)


async def test_checkpoints_rest_as_long_as_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of two seconds is followed by a rest of two."""
    world = World()
    passed: list[tuple[str, float]] = []

    async def read(connections: Sequence[ClientConnection]) -> None:
        passed.append(("read", len(connections)))
        world.clock.advance(2.0)

    async def rest(seconds: float) -> None:
        passed.append(("rest", seconds))
        if not len(world.gateway.checkpoints):
            raise _AllRead

    monkeypatch.setattr(world.inbox, "checkpoint", read)
    monkeypatch.setattr(asyncio, "sleep", rest)
    for _ in range(18):
        world.gateway.checkpoints.add(Bench().connection)
    with pytest.raises(_AllRead):
        await world.inbox.checkpoint_for_ever()
    assert passed == [("read", 8), ("rest", 2.0), ("read", 8), ("rest", 2.0), ("read", 2), ("rest", 2.0)]


async def test_a_session_that_ends_waits_for_no_checkpoint() -> None:
    """It is taken out of the queue."""
    world = World()
    benches = await _given_a_hundred(world)
    session = session_of(benches[0].connection)
    world.gateway.run(benches[0].connection, session, session.close(CloseCode.SUPERSEDED, "SUPERSEDED"))
    assert len(world.gateway.checkpoints) == 9


async def test_a_round_asserts_the_session_and_reads_only_what_is_new() -> None:
    """An inbox without changes costs one look at its head."""
    world = World()
    bench = await world.live()
    session = session_of(bench.connection)
    for is_new in (False, True):
        if is_new:
            world.peers.inbox.write(id_of(1), 1, world.clock.wall())
        session.heard, session.round_due = world.clock.monotonic(), world.clock.monotonic()
        world.gateway.run(bench.connection, session, session.tick(world.clock.monotonic(), 0.52))
        assert len(world.gateway.presence) == 1
        await world.inbox.round(await world.gateway.rounds.take(10))
        assert len(world.gateway.replays) == int(is_new)
        _frames(bench)
        await world.settle()
    assert [frame.WhichOneof("frame") for frame in _frames(bench)] == ["notify", "replayed"]


async def test_a_round_that_is_not_answered_is_left_out() -> None:
    """The session is as it was."""
    world = World()
    bench = await world.live()
    world.peers.failure = _AWAY
    await world.inbox.round([bench.connection])
    assert session_of(bench.connection).state is State.LIVE


async def test_marks_wait_for_a_link_before_they_are_stored_by_calls() -> None:
    """Two seconds; an absent inbox loses nothing; one that refuses them for good holds nobody up."""
    world = World()
    bench = await world.live()
    world.gateway.offer("acme/alice", id_of(1), 1, "delivery", notify(b""), _FOR_LONG)
    _say_received(bench, 2)
    assert not await world.inbox.store()
    world.clock.advance(1_000.0)
    world.peers.failure = _AWAY
    assert not await world.inbox.store()
    assert world.gateway.marks.count == 1
    world.peers.failure = None
    _frames(bench)
    assert await world.inbox.store()
    assert len(world.peers.marks) == 1
    assert [frame.confirmed.frame_number for frame in _frames(bench)] == [2]
    _say_received(bench, 3)
    world.peers.failure = InvalidArgument("never", reason="FIELD_INVALID")
    assert await world.inbox.store()
    assert world.gateway.marks.count == 0


def _say_received(bench: Bench, number: int) -> None:
    frame = ConnectRequest(frame_number=number)
    frame.mark.kind = 1  # type: ignore[assignment]  # RECEIVED
    frame.mark.refs.add(notification_id=id_of(1), revision=1)
    bench.feed(masked(wire.BINARY, frame.SerializeToString()))


async def test_marks_without_room_are_refused_and_the_session_goes_on() -> None:
    """The client sends them again later."""
    world = World()
    bench = await world.live()
    world.gateway.offer("acme/alice", id_of(1), 1, "delivery", notify(b""), _FOR_LONG)
    for number in range(2, 103):
        _say_received(bench, number)
    frames = _frames(bench)
    assert frames[-1].refused.refusal.reason == "OVERLOADED"
    assert frames[-1].refused.frame_number == 102
    assert world.gateway.marks.count == 100
    assert session_of(bench.connection).state is State.LIVE


async def test_a_notification_without_json_form_disturbs_nobody() -> None:
    """It is counted and left out for those who cannot get it."""
    world = World()
    bench = await world.live()
    bench.connection.form = Form.TEXT
    _frames(bench)
    assert world.gateway.offer("acme/alice", id_of(1), 1, "delivery", notify(b"\xff"), _FOR_LONG) is Offer.SEND
    assert bench.transport.sent == b""
    assert world.gateway.metrics.undecodable._value.get() == 1.0


async def test_a_frame_that_cannot_be_read_is_refused() -> None:
    """The session goes on."""
    world = World()
    bench = await world.live()
    _frames(bench)
    bench.feed(masked(wire.BINARY, b"\xff\xff"))
    assert [frame.refused.refusal.reason for frame in _frames(bench)] == ["FRAME_INVALID"]
    assert session_of(bench.connection).alive


@pytest.mark.parametrize("count", [1, 3])
async def test_a_broken_connection_leaves_nothing_behind(count: int) -> None:
    """Table, queues and presence forget it."""
    world = World()
    await world.presence.renew()
    benches = [world.connect(f"r{number}") for number in range(count)]
    await world.settle()
    for bench in benches:
        bench.connection.connection_lost(ConnectionResetError())
    await world.settle()
    assert world.gateway.sessions.count == 0
    assert not await world.peers.present("acme/r0")

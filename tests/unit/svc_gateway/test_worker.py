"""The loops of a node, one step at a time: lease, reports, marks without a link, and what connections bring."""

from __future__ import annotations

import pytest

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest
from heliograph.presence.v1 import presence_service_pb2 as presence_pb
from mesh.errors import InvalidArgument, Unavailable
from svc_gateway import wire
from svc_gateway.decisions import Offer, State
from svc_gateway.frames import notify
from svc_gateway.host import Form
from svc_gateway.lease import NodeLease
from svc_gateway.sessions import session_of
from tests.support.connections import Bench, masked
from tests.support.gateway_node import World, written
from tests.support.sessions import id_of

_FOR_LONG = 3_600.0
_AWAY = Unavailable("away", reason="PEER_UNAVAILABLE")


async def test_a_session_is_reported_and_then_read() -> None:
    """Presence knows it, and its checkpoint was written."""
    world = World()
    bench = await world.live()
    assert await world.peers.present("acme/alice")
    assert [frame.WhichOneof("frame") for frame in written(bench)] == ["welcome", "replayed"]


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
    written(bench)
    await world.presence.renew()
    await world.settle()
    assert await world.peers.present("acme/alice")
    kinds = [frame.WhichOneof("frame") for frame in written(bench)]
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
    written(bench)
    assert await world.inbox.store()
    assert len(world.peers.marks) == 1
    assert [frame.confirmed.frame_number for frame in written(bench)] == [2]
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
    frames = written(bench)
    assert frames[-1].refused.refusal.reason == "OVERLOADED"
    assert frames[-1].refused.frame_number == 102
    assert world.gateway.marks.count == 100
    assert session_of(bench.connection).state is State.LIVE


async def test_a_notification_without_json_form_disturbs_nobody() -> None:
    """It is counted and left out for those who cannot get it."""
    world = World()
    bench = await world.live()
    bench.connection.form = Form.TEXT
    written(bench)
    assert world.gateway.offer("acme/alice", id_of(1), 1, "delivery", notify(b"\xff"), _FOR_LONG) is Offer.SEND
    assert bench.transport.sent == b""
    assert world.gateway.metrics.undecodable._value.get() == 1.0


async def test_a_frame_that_cannot_be_read_is_refused() -> None:
    """The session goes on."""
    world = World()
    bench = await world.live()
    written(bench)
    bench.feed(masked(wire.BINARY, b"\xff\xff"))
    assert [frame.refused.refusal.reason for frame in written(bench)] == ["FRAME_INVALID"]
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

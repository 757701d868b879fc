"""The links to all nodes: which there are, what new epochs inherit, and that nobody waits for a frozen one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from mesh.channel import Channels
from mesh.clock import ManualClock
from mesh.errors import Unavailable
from mesh.links import Pace
from mesh.streams import live_calls
from mesh.telemetry import Telemetry
from svc_delivery.links import Link
from svc_delivery.metrics import Metrics
from svc_delivery.nodes import Links
from svc_delivery.ports import NodeAddress
from tests.support.delivering import InProcessMarks, InProcessPresence
from tests.support.dispatching import id_of, make_envelope
from tests.support.far_ends import GatewayEnd, calling, gateway_end, running
from tests.support.wait import until

PACE = Pace(ping=0.005, silence=3.0, first_retry=0.002, last_retry=0.01)
FIRST, SECOND = NodeAddress("gw-a-0", 1, ""), NodeAddress("gw-a-1", 1, "")


class Nodes:
    """Links over a presence that says which nodes there are."""

    def __init__(self, channels: Channels, poll: float) -> None:
        self.presence = InProcessPresence()
        self.marks = InProcessMarks()
        self.clock = ManualClock()
        self.metrics = Metrics(Telemetry("delivery"))
        self.channels = channels
        self.links = Links(channels=channels, presence=self.presence, make_link=self.make_link, poll=poll)

    def make_link(self, node: NodeAddress) -> Link:
        """A link as the process makes it."""
        return Link(
            node,
            process="delivery",
            epoch=99,
            channels=self.channels,
            marks=self.marks,
            clock=self.clock,
            metrics=self.metrics,
            queue_limit=1_000,
            trace=None,
            pace=PACE,
        )

    def offer(self, node_id: str, number: int) -> bool:
        """Offers event `number` to alice on a node."""
        return self.links.offer(node_id, make_envelope(number), ["acme/alice"])


@pytest.fixture
async def nodes(run_dir: Path) -> AsyncIterator[Nodes]:
    """Links that are not running yet and look at the list all the time."""
    async with calling(run_dir, "delivery") as channels:
        yield Nodes(channels, poll=0.005)
    await until(lambda: live_calls() == 0, what="all streams closed")


@contextlib.asynccontextmanager
async def two_ends(run_dir: Path) -> AsyncIterator[tuple[GatewayEnd, GatewayEnd]]:
    """Two gateway nodes that take what they get."""
    first, second = GatewayEnd(), GatewayEnd()
    first.takes_batches = second.takes_batches = True
    async with gateway_end(run_dir, "gw-a-0", first), gateway_end(run_dir, "gw-a-1", second):
        yield first, second


def events(end: GatewayEnd) -> list[str]:
    """The events that arrived at a node, in order."""
    return [delivery.envelope.event_id for batch in end.batches for delivery in batch.deliveries]


async def test_each_listed_node_has_one_link(nodes: Nodes, run_dir: Path) -> None:
    """Offers and changes go to the node that they name."""
    nodes.presence.listed = [FIRST, SECOND]
    async with two_ends(run_dir) as (first, second), running(nodes.links.run):
        await until(lambda: len(first.streams) == len(second.streams) == 1)
        assert nodes.offer("gw-a-1", 1)
        assert nodes.links.change("gw-a-0", pb.Change(recipient_key="acme/bob"))
        await until(lambda: len(events(second)) == len(first.changes) == 1)
        listings = nodes.presence.listings
        await until(lambda: nodes.presence.listings >= listings + 3)
        assert (len(first.streams), len(second.streams)) == (1, 1)
        assert events(first) == []
        await until(lambda: nodes.links.unfinished == 0)


async def test_a_node_that_is_gone_from_the_list_is_dropped(nodes: Nodes, run_dir: Path) -> None:
    """Its stream ends, and what is for it has no place any more; the other one is not touched."""
    nodes.presence.listed = [FIRST, SECOND]
    async with two_ends(run_dir) as (first, second), running(nodes.links.run):
        await until(lambda: len(first.streams) == len(second.streams) == 1)
        nodes.presence.listed = [SECOND]
        await until(lambda: live_calls() == 2, what="one stream, seen from both sides")
        nodes.offer("gw-a-0", 1)
        listings = nodes.presence.listings
        await until(lambda: nodes.presence.listings >= listings + 3)
        nodes.presence.listed = [FIRST, SECOND]
        await until(lambda: len(first.streams) == 2)
        assert nodes.offer("gw-a-1", 2)
        await until(lambda: events(second) == [id_of(2)])
        assert events(first) == []
        assert len(second.streams) == 1


async def test_a_silent_presence_drops_no_link(nodes: Nodes, run_dir: Path) -> None:
    """A link notices by itself when its node is gone."""
    nodes.presence.listed = [FIRST]
    async with two_ends(run_dir) as (first, _), running(nodes.links.run):
        await until(lambda: len(first.streams) == 1)
        nodes.presence.failure = Unavailable("no presence", reason="PEER_UNAVAILABLE")
        listings = nodes.presence.listings
        await until(lambda: nodes.presence.listings >= listings + 3)
        assert nodes.offer("gw-a-0", 1)
        await until(lambda: events(first) == [id_of(1)])
        assert len(first.streams) == 1


async def test_sessions_look_once_presence_answers_again(nodes: Nodes, run_dir: Path) -> None:
    """What was offered to nobody may be acked by another device: each node is told to look, and seldom."""
    nodes.presence.listed = [FIRST, SECOND]
    async with two_ends(run_dir) as (first, second), running(nodes.links.run):
        await until(lambda: nodes.links.unfinished == 0 and len(first.streams) == len(second.streams) == 1)
        assert nodes.offer("gw-a-0", 1)
        assert nodes.offer("gw-a-1", 2)
        await until(lambda: len(events(first)) == len(events(second)) == 1)
        nodes.presence.failure = Unavailable("no presence", reason="PEER_UNAVAILABLE")
        nodes.links.missed()
        listings = nodes.presence.listings
        await until(lambda: nodes.presence.listings >= listings + 3)
        assert (first.look_count, second.look_count) == (0, 0)
        nodes.presence.failure = None
        await until(lambda: first.look_count == second.look_count == 1)
        nodes.links.missed()
        listings = nodes.presence.listings
        await until(lambda: nodes.presence.listings >= listings + 3)
        assert (first.look_count, second.look_count) == (1, 1)


async def test_a_new_epoch_gets_a_new_link_and_what_was_left(nodes: Nodes, run_dir: Path) -> None:
    """A node that came back, or lost its lease, gets what the old link had not got rid of, in order."""
    nodes.presence.listed = [FIRST]
    async with two_ends(run_dir) as (first, _), running(nodes.links.run):
        await until(lambda: len(first.streams) == 1)
        first.takes_batches = False
        nodes.offer("gw-a-0", 1)
        await until(lambda: events(first) == [id_of(1)])
        assert first.ready is not None
        first.ready.window_count = 1
        first.streams[0].cut()
        await until(lambda: len(first.streams) == 2 and len(first.batches) == 2)
        nodes.offer("gw-a-0", 2)
        nodes.presence.listed = [NodeAddress("gw-a-0", 2, "")]
        first.takes_batches = True
        await until(lambda: len(first.opens) == 3)
        assert [opening.node_epoch for opening in first.opens] == [1, 1, 2]
        await until(lambda: events(first)[2:] == [id_of(1), id_of(2)])


async def test_a_node_that_lives_on_under_a_new_epoch_does_not_pass_over_batches(nodes: Nodes, run_dir: Path) -> None:
    """Its process knows the numbers of ours; the new link goes on behind them."""
    nodes.presence.listed = [FIRST]
    async with two_ends(run_dir) as (first, _), running(nodes.links.run):
        await until(lambda: len(first.streams) == 1)
        for number in range(3):
            nodes.offer("gw-a-0", number)
            await until(lambda wanted=number + 1: len(first.batches) == wanted, what="sent")  # type: ignore[misc]  # bound now
        await until(lambda: nodes.links.unfinished == 0)
        assert first.ready is not None
        first.ready.taken_sequence = 3
        nodes.presence.listed = [NodeAddress("gw-a-0", 2, "")]
        await until(lambda: len(first.streams) == 2)
        nodes.offer("gw-a-0", 9)
        await until(lambda: len(first.batches) == 4)
        assert first.batches[-1].sequence == 4


async def test_what_comes_before_its_nodes_link_waits_for_it(run_dir: Path) -> None:
    """Presence names a node before the list showed it: the list is read at once, long before its time."""
    async with calling(run_dir, "delivery") as channels:
        nodes = Nodes(channels, poll=3_600.0)
        async with two_ends(run_dir) as (first, _), running(nodes.links.run):
            await until(lambda: nodes.presence.listings == 1)
            nodes.presence.listed = [FIRST]
            assert nodes.offer("gw-a-0", 1)
            assert nodes.links.change("gw-a-0", pb.Change(recipient_key="acme/bob"))
            await until(lambda: events(first) == [id_of(1)] and len(first.changes) == 1)
            assert nodes.presence.listings == 2


async def test_what_waits_for_a_link_outlasts_a_silent_presence(nodes: Nodes, run_dir: Path) -> None:
    """The list cannot be read for a while: what is set aside waits on, in its order, and so much of it as ever."""
    nodes.presence.failure = Unavailable("no presence", reason="PEER_UNAVAILABLE")
    async with two_ends(run_dir) as (first, _), running(nodes.links.run):
        for number in (1, 2):
            assert nodes.offer("gw-a-0", number)
            assert nodes.links.change("gw-a-0", pb.Change(recipient_key=f"acme/r{number}"))
            listings = nodes.presence.listings
            await until(lambda seen=listings: nodes.presence.listings >= seen + 3)  # type: ignore[misc]  # bound now
        assert nodes.links.offer("gw-a-0", make_envelope(3), ["acme/r"] * 9_996)
        assert not nodes.links.change("gw-a-0", pb.Change(recipient_key="acme/too-many"))
        nodes.presence.listed, nodes.presence.failure = [FIRST], None
        await until(lambda: len(events(first)) >= 2 and len(first.changes) == 2)
        assert events(first)[:2] == [id_of(1), id_of(2)]
        assert [one.recipient_key for one in first.changes] == ["acme/r1", "acme/r2"]
        # There is room again.
        assert nodes.offer("gw-b-0", 4)


async def test_what_comes_for_no_node_is_bounded_and_dropped(nodes: Nodes) -> None:
    """A node that the list does not show either is gone again; until then only so much waits for it."""
    assert nodes.links.offer("gw-x-0", make_envelope(1), ["acme/r"] * 9_999)
    assert nodes.offer("gw-y-0", 2)
    assert not nodes.offer("gw-y-0", 3)
    assert not nodes.links.change("gw-y-0", pb.Change())
    async with running(nodes.links.run):
        await until(lambda: nodes.presence.listings >= 2)
        assert nodes.offer("gw-y-0", 3)


async def test_a_frozen_node_does_not_delay_another(nodes: Nodes, run_dir: Path) -> None:
    """One node answers nothing and its queue fills; the other gets everything, as if there were only it."""
    nodes.presence.listed = [FIRST, SECOND]
    async with two_ends(run_dir) as (frozen, healthy), running(nodes.links.run):
        frozen.takes_batches = False
        await until(lambda: len(frozen.streams) == len(healthy.streams) == 1)
        refused = 0
        for number in range(1_400):
            refused += not nodes.offer("gw-a-0", number)
            assert nodes.offer("gw-a-1", number)
            if number % 100 == 99:
                await until(lambda wanted=number + 1: len(events(healthy)) == wanted, limit_s=1.0)  # type: ignore[misc]  # bound now
        assert refused > 100
        assert events(healthy) == [id_of(number) for number in range(1_400)]
        assert len(frozen.batches) <= 4


async def test_links_end_with_their_loop(nodes: Nodes, run_dir: Path) -> None:
    """Cancelled in the middle of everything, no stream lives on."""
    nodes.presence.listed = [FIRST, SECOND]
    async with two_ends(run_dir) as (first, second):
        async with running(nodes.links.run):
            await until(lambda: len(first.streams) == len(second.streams) == 1)
            nodes.offer("gw-a-0", 1)
            first.streams[0].cut()
        await until(lambda: live_calls() == 0)

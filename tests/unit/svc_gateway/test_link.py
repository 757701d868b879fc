"""The rules of a link: how it opens, what ends it, which link of a process counts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.type.v1.notification_pb2 import MarkKind
from mesh.times import set_micros
from tests.support.nodes import Node, delivery_of
from tests.support.sessions import id_of
from tests.support.wait import until

ALICE = "acme/alice"


@pytest.fixture
def node(run_dir: Path, tmp_path: Path) -> Node:
    """A node that does not run yet."""
    return Node(run_dir, tmp_path)


async def test_a_link_has_one_opening(node: Node) -> None:
    """A second one breaks the protocol."""
    async with node.running(), node.link() as link:
        link.open("delivery")
        assert (await link.end()).reason == "FRAME_INVALID"


@pytest.mark.parametrize(
    ("opening", "reason"), [({"version": 2}, "VERSION_UNSUPPORTED"), ({"name": ""}, "FIELD_INVALID")]
)
async def test_an_opening_that_does_not_fit_is_refused(node: Node, opening: dict[str, Any], reason: str) -> None:
    """The status says why."""
    async with node.running(), node.link(**opening) as link:
        assert (await link.end()).reason == reason


async def test_a_silent_peer_loses_its_link(node: Node) -> None:
    """Three seconds without a frame."""
    async with node.running(), node.link() as link:
        link.answers = False
        assert "silent" in (await link.end()).message


async def test_a_newer_link_of_a_process_takes_the_place_of_the_older_one(node: Node) -> None:
    """Marks go over the newer one, and what the older one confirms late counts for nothing."""
    async with node.running(), node.device() as device, node.link(stores=False) as older:
        await older.result(older.offer(delivery_of(id_of(1), ALICE)))
        await device.has(id_of(1))
        number = await device.mark(MarkKind.MARK_KIND_RECEIVED, id_of(1))
        await until(lambda: bool(older.marks), 5.0, "the mark has arrived")
        async with node.link(stores=False) as newer:
            await until(lambda: bool(newer.marks), 5.0, "the mark has arrived again")
            older.send(stored=pb.MarksStored(sequence=1))
            assert (await older.end()).reason == "PEER_UNAVAILABLE"
            assert device.confirmed < number
            newer.send(stored=pb.MarksStored(sequence=1))
            await device.has_confirmed(number)


async def test_what_was_over_before_it_arrived_is_offered_to_nobody(node: Node) -> None:
    """It waited out its time in a queue; what is in the same batch and still matters arrives."""
    async with node.running(), node.device() as device, node.link() as link:
        over, current = delivery_of(id_of(1), ALICE), delivery_of(id_of(2), ALICE)
        set_micros(over.envelope.expire_time, 1_700_000_000_000_000)
        set_micros(current.envelope.expire_time, 4_000_000_000_000_000)
        result = await link.result(link.offer(over, current))
        assert result.refusals == []
        await device.has(id_of(2))
        assert device.ids == [id_of(2)]


async def test_sessions_look_when_they_are_told_to(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What delivery stored and could offer to nobody comes by a look, long before the next round."""
    # The link is there first: its opening has nobody look.
    async with node.running(), node.link() as link, node.device() as device:
        await link.result(link.offer(delivery_of(id_of(1), ALICE)))
        await device.has(id_of(1))
        monkeypatch.setattr("svc_gateway.link._LOOK_WITHIN", 0.0)
        node.inbox.of(ALICE).write(id_of(2), 1, time.time())
        link.send(look=pb.LinkLook())
        await device.has(id_of(2))


async def test_frames_of_an_unknown_kind_are_counted_and_ignored(node: Node) -> None:
    """A newer peer may say more than this node knows."""
    async with node.running(), node.link() as link:
        # Field 15 of a later contract.
        unknown = pb.DeliverRequest.FromString(b"\x7a\x00")
        assert link.stream.send(unknown)
        await link.result(link.offer(delivery_of(id_of(1), ALICE)))


async def test_batches_may_be_missing_after_a_restart_of_the_node(node: Node) -> None:
    """A process goes on with its numbers; what a node has not seen is no gap of its own."""
    async with node.running(), node.link() as link, node.device() as device:
        await link.result(link.offer(delivery_of(id_of(1), ALICE), sequence=57))
        await link.result(link.offer(delivery_of(id_of(2), ALICE), sequence=57))
        await link.result(link.offer(delivery_of(id_of(3), ALICE), sequence=58))
        await device.has(id_of(3))
        assert device.ids == [id_of(1), id_of(3)]

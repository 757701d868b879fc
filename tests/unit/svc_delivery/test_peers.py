"""Presence over gRPC, against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc.aio
import pytest

from heliograph.presence.v1 import presence_service_pb2 as pb
from heliograph.presence.v1 import presence_service_pb2_grpc as pb_grpc
from mesh.channel import Channels
from mesh.errors import Failure, Unavailable
from svc_delivery.peers import GrpcPresence
from svc_delivery.ports import NodeAddress
from tests.support.far_ends import calling, serving

# Any: unary methods do not use it.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class PresenceEnd(pb_grpc.PresenceServiceServicer):
    """Presence as delivery sees it; what delivery must not call is not there."""

    def __init__(self) -> None:
        self.asked: list[pb.BatchGetPresenceRequest] = []
        self.pages: list[list[pb.Node]] = [[]]
        self.failure: Failure | None = None

    async def BatchGetPresence(
        self, request: pb.BatchGetPresenceRequest, context: _Context
    ) -> pb.BatchGetPresenceResponse:
        """Alice is on two nodes, bob on one, others nowhere."""
        if self.failure is not None:
            raise self.failure
        self.asked.append(request)
        both = pb.PresenceGroup(node_ids=["gw-a-0", "gw-a-1"], recipient_keys=["acme/alice"])
        one = pb.PresenceGroup(node_ids=["gw-a-0"], recipient_keys=["acme/bob", "acme/carol"])
        return pb.BatchGetPresenceResponse(groups=[both, one])

    async def ListNodes(self, request: pb.ListNodesRequest, context: _Context) -> pb.ListNodesResponse:
        """Pages whose token is their number."""
        if self.failure is not None:
            raise self.failure
        page = int(request.page_token or "0")
        following = str(page + 1) if page + 1 < len(self.pages) else ""
        return pb.ListNodesResponse(nodes=self.pages[page], next_page_token=following)

    async def RenewNode(self, request: pb.RenewNodeRequest, context: _Context) -> pb.RenewNodeResponse:
        """Not for delivery."""
        raise NotImplementedError

    async def ReportSessions(self, request: pb.ReportSessionsRequest, context: _Context) -> pb.ReportSessionsResponse:
        """Not for delivery."""
        raise NotImplementedError


@pytest.fixture
async def channels(run_dir: Path) -> AsyncIterator[Channels]:
    """Delivery's outgoing channels."""
    async with calling(run_dir, "delivery") as made:
        yield made


@pytest.fixture
async def end(run_dir: Path) -> AsyncIterator[PresenceEnd]:
    """A presence that serves."""
    servicer = PresenceEnd()
    service = pb.DESCRIPTOR.services_by_name["PresenceService"]
    async with serving(run_dir, "presence", service, pb_grpc.add_PresenceServiceServicer_to_server, servicer):
        yield servicer


async def test_a_look_up_tells_the_nodes_of_each_recipient(channels: Channels, end: PresenceEnd) -> None:
    """Packed groups are unfolded; who is missing is nowhere; sessions are not asked for."""
    found = await GrpcPresence(channels).look_up(["acme/alice", "acme/bob", "acme/carol", "acme/dave"])
    assert found == {
        "acme/alice": ("gw-a-0", "gw-a-1"),
        "acme/bob": ("gw-a-0",),
        "acme/carol": ("gw-a-0",),
    }
    assert list(end.asked[0].recipient_keys) == ["acme/alice", "acme/bob", "acme/carol", "acme/dave"]
    assert not end.asked[0].with_sessions


async def test_nodes_are_listed_over_all_pages(channels: Channels, end: PresenceEnd) -> None:
    """With epoch and address, draining ones too: they still take deliveries."""
    end.pages = [
        [pb.Node(node_id="gw-a-0", epoch=7, address="10.0.0.1:7401", state=pb.NODE_STATE_SERVING)],
        [],
        [pb.Node(node_id="gw-a-1", epoch=8, state=pb.NODE_STATE_DRAINING)],
    ]
    assert await GrpcPresence(channels).nodes() == [
        NodeAddress("gw-a-0", 7, "10.0.0.1:7401"),
        NodeAddress("gw-a-1", 8, ""),
    ]


async def test_a_presence_that_refuses_or_is_not_there_is_a_failure(channels: Channels, end: PresenceEnd) -> None:
    """With its own category and reason; never an empty answer."""
    presence = GrpcPresence(channels)
    end.failure = Unavailable("its store is down", reason="STORE_UNAVAILABLE")
    for calling_it in (presence.look_up(["acme/alice"]), presence.nodes()):
        with pytest.raises(Unavailable) as caught:
            await calling_it
        assert caught.value.reason == "STORE_UNAVAILABLE"


async def test_no_presence_at_all_is_a_failure(channels: Channels) -> None:
    """The socket is not there."""
    presence = GrpcPresence(channels)
    for calling_it in (presence.look_up(["acme/alice"]), presence.nodes()):
        with pytest.raises(Unavailable):
            await calling_it

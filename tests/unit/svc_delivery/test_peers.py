"""Presence and prefs over gRPC, against real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc.aio
import pytest

from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc
from heliograph.presence.v1 import presence_service_pb2 as pb
from heliograph.presence.v1 import presence_service_pb2_grpc as pb_grpc
from mesh.channel import Channels
from mesh.clock import ManualClock, SteadyClock
from mesh.errors import Failure, Unavailable
from mesh.times import set_micros
from svc_delivery.peers import GrpcPrefs, GrpcPresence
from svc_delivery.ports import NodeAddress
from tests.support.dispatching import LIVE
from tests.support.far_ends import calling, serving

# Any: unary methods do not use it.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class PresenceEnd(pb_grpc.PresenceServiceServicer):
    """Presence as delivery sees it; what delivery must not call is not there."""

    def __init__(self) -> None:
        self.asked: list[pb.BatchGetPresenceRequest] = []
        self.pages: list[list[pb.Node]] = [[]]
        self.shown: float | None = None
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
        response = pb.ListNodesResponse(nodes=self.pages[page], next_page_token=following)
        if self.shown is not None:
            set_micros(response.answer_time, round(self.shown * 1_000_000))
        return response

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
    found = await GrpcPresence(channels, SteadyClock(ManualClock())).look_up(
        ["acme/alice", "acme/bob", "acme/carol", "acme/dave"]
    )
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
    assert await GrpcPresence(channels, SteadyClock(ManualClock())).nodes() == [
        NodeAddress("gw-a-0", 7, "10.0.0.1:7401"),
        NodeAddress("gw-a-1", 8, ""),
    ]


async def test_the_clock_is_compared_with_each_answer_that_shows_one(channels: Channels, end: PresenceEnd) -> None:
    """A presence that does not know its own time says none, and changes nothing."""
    clock = SteadyClock(ManualClock(wall=1_000.0))
    presence = GrpcPresence(channels, clock)
    for shown, good in ((None, True), (1_060.0, False), (None, False), (1_000.4, True)):
        end.shown = shown
        await presence.nodes()
        assert clock.agrees() is good


async def test_a_presence_that_refuses_or_is_not_there_is_a_failure(channels: Channels, end: PresenceEnd) -> None:
    """With its own category and reason; never an empty answer."""
    presence = GrpcPresence(channels, SteadyClock(ManualClock()))
    end.failure = Unavailable("its store is down", reason="STORE_UNAVAILABLE")
    for calling_it in (presence.look_up(["acme/alice"]), presence.nodes()):
        with pytest.raises(Unavailable) as caught:
            await calling_it
        assert caught.value.reason == "STORE_UNAVAILABLE"


async def test_no_presence_at_all_is_a_failure(channels: Channels) -> None:
    """The socket is not there."""
    presence = GrpcPresence(channels, SteadyClock(ManualClock()))
    for calling_it in (presence.look_up(["acme/alice"]), presence.nodes()):
        with pytest.raises(Unavailable):
            await calling_it


class PrefsEnd(prefs_service_pb2_grpc.PrefsServiceServicer):
    """Prefs as delivery sees it; what delivery must not call is not there."""

    def __init__(self) -> None:
        self.failure: Failure | None = None

    async def BatchResolve(
        self, request: prefs_service_pb2.BatchResolveRequest, context: _Context
    ) -> prefs_service_pb2.BatchResolveResponse:
        """Everybody wants everything."""
        if self.failure is not None:
            raise self.failure
        items = [prefs_service_pb2.ItemResolution(default_resolution=LIVE) for _ in request.items]
        return prefs_service_pb2.BatchResolveResponse(items=items)

    async def GetPreferences(
        self, request: prefs_service_pb2.GetPreferencesRequest, context: _Context
    ) -> prefs_service_pb2.GetPreferencesResponse:
        """Not for delivery."""
        raise NotImplementedError

    async def UpdatePreferences(
        self, request: prefs_service_pb2.UpdatePreferencesRequest, context: _Context
    ) -> prefs_service_pb2.UpdatePreferencesResponse:
        """Not for delivery."""
        raise NotImplementedError

    async def ListWishChanges(
        self, request: prefs_service_pb2.ListWishChangesRequest, context: _Context
    ) -> prefs_service_pb2.ListWishChangesResponse:
        """Not for delivery."""
        raise NotImplementedError


async def test_wishes_are_decided_by_prefs(channels: Channels, run_dir: Path) -> None:
    """Its answer as it is; its refusals and its absence are failures, never consent."""
    prefs, end = GrpcPrefs(channels), PrefsEnd()
    item = prefs_service_pb2.ResolveItem(category="general", recipient_ids=["alice"])
    request = prefs_service_pb2.BatchResolveRequest(tenant_id="acme", items=[item])
    service = prefs_service_pb2.DESCRIPTOR.services_by_name["PrefsService"]
    add_function = prefs_service_pb2_grpc.add_PrefsServiceServicer_to_server
    async with serving(run_dir, "prefs", service, add_function, end):
        assert [one.default_resolution for one in (await prefs.resolve(request)).items] == [LIVE]
        end.failure = Unavailable("its store is down", reason="STORE_UNAVAILABLE")
        with pytest.raises(Unavailable) as caught:
            await prefs.resolve(request)
        assert caught.value.reason == "STORE_UNAVAILABLE"
    with pytest.raises(Unavailable):
        await prefs.resolve(request)

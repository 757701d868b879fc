"""Presence and prefs over gRPC.

Path step 6: where the recipient is, and which nodes there are; step 8: what is wanted before a late send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc
from heliograph.presence.v1 import presence_service_pb2 as pb
from heliograph.presence.v1 import presence_service_pb2_grpc as pb_grpc
from mesh.channel import Channels, call
from mesh.clock import SteadyClock
from mesh.times import micros_of
from svc_delivery.ports import NodeAddress

_LOOK_UP_TIMEOUT = 2.0
_NODES_TIMEOUT = 2.0
_RESOLVE_TIMEOUT = 5.0


class GrpcPresence:
    """Implements `ports.Presence` on PresenceService.

    Args:
        channels: the process's.
        clock: compared with presence's whenever nodes are listed: stamps of two machines go by clocks that agree.
    """

    def __init__(self, channels: Channels, clock: SteadyClock) -> None:
        self._channels = channels
        self._clock = clock
        self._made: pb_grpc.PresenceServiceStub | None = None

    @property
    def _stub(self) -> pb_grpc.PresenceServiceStub:
        # A channel belongs to the running loop, which is not there yet when the process is wired.
        if self._made is None:
            self._made = pb_grpc.PresenceServiceStub(self._channels.unary("presence"))
        return self._made

    async def look_up(self, recipient_keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """See the port."""
        response = await call(
            self._stub.BatchGetPresence,
            pb.BatchGetPresenceRequest(recipient_keys=recipient_keys),
            timeout=_LOOK_UP_TIMEOUT,
            metadata=self._channels.metadata(),
        )
        found: dict[str, Sequence[str]] = {}
        for group in response.groups:
            node_ids = tuple(group.node_ids)
            for key in group.recipient_keys:
                found[key] = node_ids
        return found

    async def nodes(self) -> Sequence[NodeAddress]:
        """See the port."""
        nodes: list[NodeAddress] = []
        page_token = ""
        while True:
            asked = self._clock.wall()
            response = await call(
                self._stub.ListNodes,
                pb.ListNodesRequest(page_token=page_token),
                timeout=_NODES_TIMEOUT,
                metadata=self._channels.metadata(),
            )
            if response.HasField("answer_time"):
                shown = micros_of(response.answer_time) / 1_000_000
                self._clock.compare(shown, asked=asked, answered=self._clock.wall())
            nodes += [NodeAddress(node.node_id, node.epoch, node.address) for node in response.nodes]
            page_token = response.next_page_token
            if not page_token:
                return nodes


class GrpcPrefs:
    """Implements `ports_channels.Prefs` on PrefsService."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._stub: prefs_service_pb2_grpc.PrefsServiceStub | None = None

    async def resolve(self, request: prefs_service_pb2.BatchResolveRequest) -> prefs_service_pb2.BatchResolveResponse:
        """See the port."""
        if self._stub is None:
            # A channel belongs to the running loop, which is not there yet when the process is wired.
            self._stub = prefs_service_pb2_grpc.PrefsServiceStub(self._channels.unary("prefs"))
        metadata = self._channels.metadata()
        return await call(self._stub.BatchResolve, request, timeout=_RESOLVE_TIMEOUT, metadata=metadata)

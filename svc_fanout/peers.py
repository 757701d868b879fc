"""Prefs over gRPC. Path step 4: at most one call a page for wishes, one a page of each topic."""

from __future__ import annotations

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.prefs.v1 import prefs_service_pb2_grpc as pb_grpc
from heliograph.prefs.v1 import topic_service_pb2 as topic_pb
from heliograph.prefs.v1 import topic_service_pb2_grpc as topic_pb_grpc
from mesh.channel import Channels, call

# Events of essential categories wait so long before they go by their default.
_TIMEOUT = 2.0


class GrpcPrefs:
    """Implements `ports.Prefs` on PrefsService and TopicService."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        # A channel belongs to the running loop, which is not there yet when the process is wired.
        self._wishes: pb_grpc.PrefsServiceStub | None = None
        self._topics: topic_pb_grpc.TopicServiceStub | None = None

    async def resolve(self, request: pb.BatchResolveRequest) -> pb.BatchResolveResponse:
        """See the port."""
        stub = self._wish_stub()
        return await call(stub.BatchResolve, request, timeout=_TIMEOUT, metadata=self._channels.metadata())

    async def list_changes(self, request: pb.ListWishChangesRequest) -> pb.ListWishChangesResponse:
        """See the port."""
        stub = self._wish_stub()
        return await call(stub.ListWishChanges, request, timeout=_TIMEOUT, metadata=self._channels.metadata())

    async def list_subscribers(self, request: topic_pb.ListSubscribersRequest) -> topic_pb.ListSubscribersResponse:
        """See the port."""
        if self._topics is None:
            self._topics = topic_pb_grpc.TopicServiceStub(self._channels.unary("prefs"))
        return await call(self._topics.ListSubscribers, request, timeout=_TIMEOUT, metadata=self._channels.metadata())

    def _wish_stub(self) -> pb_grpc.PrefsServiceStub:
        if self._wishes is None:
            self._wishes = pb_grpc.PrefsServiceStub(self._channels.unary("prefs"))
        return self._wishes

"""Prefs over gRPC. Path step 4: one call a page."""

from __future__ import annotations

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.prefs.v1 import prefs_service_pb2_grpc as pb_grpc
from mesh.channel import Channels, call

_TIMEOUT = 5.0


class GrpcPrefs:
    """Implements `ports.Prefs` on PrefsService."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._stub: pb_grpc.PrefsServiceStub | None = None

    async def resolve(self, request: pb.BatchResolveRequest) -> pb.BatchResolveResponse:
        """See the port."""
        if self._stub is None:
            # A channel belongs to the running loop, which is not there yet when the process is wired.
            self._stub = pb_grpc.PrefsServiceStub(self._channels.unary("prefs"))
        return await call(self._stub.BatchResolve, request, timeout=_TIMEOUT, metadata=self._channels.metadata())

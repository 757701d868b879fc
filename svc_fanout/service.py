"""FanoutService: tells operators how far behind the lanes' readers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import grpc.aio

from heliograph.fanout.v1 import fanout_service_pb2 as pb
from heliograph.fanout.v1 import fanout_service_pb2_grpc as pb_grpc
from mesh.lanes import LaneReader
from mesh.times import duration_of

# Any: no method reads requests or writes answers through its context.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class FanoutService(pb_grpc.FanoutServiceServicer):
    """Serves operators."""

    def __init__(self, readers: Mapping[str, LaneReader]) -> None:
        self._readers = readers

    async def GetLag(self, request: pb.GetLagRequest, context: _Context) -> pb.GetLagResponse:
        """Returns the lag of every lane."""
        response = pb.GetLagResponse()
        for lane, reader in self._readers.items():
            lag = await reader.lag()
            entry = response.lanes.add(lane=lane, record_count=lag.record_count)
            if lag.record_count:
                entry.oldest_age.CopyFrom(duration_of(lag.oldest_age))
        return response

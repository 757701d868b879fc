"""FanoutService: tells operators how far behind the lanes' readers are, and shows and redrives what they put aside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import grpc.aio

from heliograph.fanout.v1 import fanout_service_pb2 as pb
from heliograph.fanout.v1 import fanout_service_pb2_grpc as pb_grpc
from mesh.lanes import LaneReader
from mesh.times import duration_of
from svc_fanout.parked import ParkedRecords

# Any: no method reads requests or writes answers through its context.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class FanoutService(pb_grpc.FanoutServiceServicer):
    """Serves operators."""

    def __init__(self, readers: Mapping[str, LaneReader], parked: ParkedRecords) -> None:
        self._readers = readers
        self._parked = parked

    async def GetLag(self, request: pb.GetLagRequest, context: _Context) -> pb.GetLagResponse:
        """Returns the lag of every lane."""
        response = pb.GetLagResponse()
        for lane, reader in self._readers.items():
            lag = await reader.lag()
            entry = response.lanes.add(lane=lane, record_count=lag.record_count)
            if lag.record_count:
                entry.oldest_age.CopyFrom(duration_of(lag.oldest_age))
        return response

    async def ListParked(self, request: pb.ListParkedRequest, context: _Context) -> pb.ListParkedResponse:
        """Lists records that were put aside."""
        records, token = await self._parked.page(request.page_size, request.page_token)
        return pb.ListParkedResponse(records=records, next_page_token=token)

    async def GetParked(self, request: pb.GetParkedRequest, context: _Context) -> pb.GetParkedResponse:
        """Returns one with its bytes."""
        return pb.GetParkedResponse(record=await self._parked.get(request.parked_id))

    async def RedriveParked(self, request: pb.RedriveParkedRequest, context: _Context) -> pb.RedriveParkedResponse:
        """Tries records again."""
        parked_ids = request.parked_ids
        refused = await self._parked.redrive(parked_ids, validate_only=request.validate_only)
        return pb.RedriveParkedResponse(redriven_count=len(set(parked_ids)) - len(refused), refused_parked_ids=refused)

"""Asks a process whether it serves: gRPC health on a service's own Unix socket.

Must not wait: it asks once and answers yes or no.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from mesh.access import HEALTH_CHECK
from mesh.identity import CALLER_HEADER

_TIMEOUT_S = 1.0


async def serves(socket: Path, *, direct: bool) -> bool:
    """Says whether the service behind this socket takes work.

    Behind a sidecar the socket's owner is believed without a name; in direct mode an operator asks.
    """
    metadata = ((CALLER_HEADER, "operator/up"),) if direct else ()
    # A channel for one question: a kept one would back off while the service starts.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        check = channel.unary_unary(
            HEALTH_CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S, metadata=metadata)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

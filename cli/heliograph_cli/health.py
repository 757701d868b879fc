"""Asks a process whether it serves, what it misses and whether its clock was set.

It uses gRPC health on a service's own Unix socket.

Must not wait: it asks once and answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from mesh.access import HEALTH_CHECK, HEALTH_LIST
from mesh.identity import CALLER_HEADER

_TIMEOUT_S = 1.0


async def serves(socket: Path, *, direct: bool) -> bool:
    """Says whether the service behind this socket takes work.

    Behind a sidecar the socket's owner is believed without a name; in direct mode an operator asks.
    """
    return await _state(socket, "", direct=direct) == health_pb2.HealthCheckResponse.SERVING


async def clock_was_set(socket: Path, *, direct: bool) -> bool:
    """Says whether the service behind this socket finds the machine's clock set; False when it is silent."""
    return await _state(socket, "clock", direct=direct) == health_pb2.HealthCheckResponse.NOT_SERVING


async def _state(socket: Path, name: str, *, direct: bool) -> int | None:
    async with _channel(socket) as channel:
        check = channel.unary_unary(
            HEALTH_CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            request = health_pb2.HealthCheckRequest(service=name)
            answer = await check(request, timeout=_TIMEOUT_S, metadata=_metadata(direct))
        except grpc.aio.AioRpcError:
            return None
    return int(answer.status)


async def missing(socket: Path, *, direct: bool) -> list[str]:
    """Returns the stores outside the process that the service behind this socket finds gone; none when it is silent."""
    # Any: the package's types are older than its code and lack what belongs to List.
    types: Any = health_pb2
    async with _channel(socket) as channel:
        listing = channel.unary_unary(
            HEALTH_LIST,
            request_serializer=types.HealthListRequest.SerializeToString,
            response_deserializer=types.HealthListResponse.FromString,
        )
        try:
            answer = await listing(types.HealthListRequest(), timeout=_TIMEOUT_S, metadata=_metadata(direct))
        except grpc.aio.AioRpcError:
            return []
    gone = health_pb2.HealthCheckResponse.NOT_SERVING
    found = [(name.partition("/"), one.status) for name, one in answer.statuses.items()]
    return sorted(name for (kind, _, name), state in found if kind == "dependency" and state == gone)


def _metadata(direct: bool) -> tuple[tuple[str, str], ...]:
    return ((CALLER_HEADER, "operator/up"),) if direct else ()


@asynccontextmanager
async def _channel(socket: Path) -> AsyncIterator[grpc.aio.Channel]:
    # A channel for one question: a kept one would back off while the service starts.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield channel

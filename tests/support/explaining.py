"""Asking a running Heliograph, as an operator, why a recipient got an event or did not. Must not judge the answer."""

from __future__ import annotations

import contextlib

from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.delivery.v1 import delivery_service_pb2_grpc as stubs
from heliograph_cli.connection import OPERATOR, Actor
from mesh.errors import NotFound
from tests.support.cluster import TENANT, Cluster
from tests.support.wait import until

_LIMIT_S = 15.0


async def asked(cluster: Cluster, event_id: str, who: str) -> pb.ExplainResponse:
    """Asks once; raises NotFound when nothing is known."""
    async with cluster.connection() as connection:
        return await connection.call(
            "delivery",
            lambda channel: stubs.DeliveryServiceStub(channel).Explain,
            pb.ExplainRequest(event_id=event_id, tenant_id=TENANT, recipient_id=who),
            Actor("operator", OPERATOR),
        )


async def explained(cluster: Cluster, event_id: str, who: str) -> pb.ExplainResponse:
    """Asks until it is decided."""
    answer = pb.ExplainResponse()

    async def is_decided() -> bool:
        with contextlib.suppress(NotFound):
            answer.CopyFrom(await asked(cluster, event_id, who))
        return bool(answer.state or answer.suppress_reason)

    await until(is_decided, _LIMIT_S, f"{event_id} is decided for {who}")
    return answer

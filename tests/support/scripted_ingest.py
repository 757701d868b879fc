"""An ingest whose verdicts a test decides, over a real socket. It must not follow rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
from grpc_status import rpc_status

from heliograph.ingest.v1 import ingest_service_pb2_grpc
from heliograph.ingest.v1.ingest_service_pb2 import (
    BatchPublishRequest,
    BatchPublishResponse,
    PublishRequest,
    PublishResponse,
    PublishResult,
)
from heliograph.type.v1.refusal_pb2 import Refusal
from mesh.errors import Failure, describe
from mesh.status import to_status

Req = TypeVar("Req")
Res = TypeVar("Res")

ACCEPT_S = 1_700_000_000


class ScriptedIngest(ingest_service_pb2_grpc.IngestServiceServicer):
    """Accepts everything, unless the test says otherwise.

    Attributes:
        failures: what the next calls fail with, one each; None: they do not.
        refusals: by title of an event, what its next tries in a batch are refused with.
        singles: requests of Publish, as they came.
        batches: requests of BatchPublish, as they came.
        metadata: headers of each call.
        deadlines: seconds that each call had.
        gate: calls wait for it when it is not set.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.failures: list[Failure | None] = []
        self.refusals: dict[str, list[Failure]] = {}
        self.singles: list[PublishRequest] = []
        self.batches: list[BatchPublishRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.deadlines: list[float] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def Publish(
        self,
        request: PublishRequest,
        context: grpc.aio.ServicerContext[PublishRequest, Awaitable[PublishResponse]],
    ) -> PublishResponse:
        """Answers one event."""
        self.singles.append(request)
        await self._begin(context)
        return _accept(request)

    async def BatchPublish(
        self,
        request: BatchPublishRequest,
        context: grpc.aio.ServicerContext[BatchPublishRequest, Awaitable[BatchPublishResponse]],
    ) -> BatchPublishResponse:
        """Answers each event of a batch."""
        self.batches.append(request)
        await self._begin(context)
        return BatchPublishResponse(results=[self._judge(item) for item in request.requests])

    def _judge(self, request: PublishRequest) -> PublishResult:
        refusals = self.refusals.get(request.event.content.title)
        if refusals:
            return PublishResult(refused=describe(refusals.pop(0), Refusal()))
        return PublishResult(accepted=_accept(request))

    async def _begin(self, context: grpc.aio.ServicerContext[Req, Awaitable[Res]]) -> None:
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata() or ()})
        self.deadlines.append(context.time_remaining())
        await self.gate.wait()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            await context.abort_with_status(rpc_status.to_status(to_status(failure)))


def _accept(request: PublishRequest) -> PublishResponse:
    response = PublishResponse(event_id=request.request_id)
    response.accept_time.seconds = ACCEPT_S
    return response


@asynccontextmanager
async def scripted_ingest(run_dir: Path) -> AsyncIterator[ScriptedIngest]:
    """An ingest that listens."""
    servicer = ScriptedIngest(f"unix:{run_dir / 'ingest.sock'}")
    server = grpc.aio.server()
    ingest_service_pb2_grpc.add_IngestServiceServicer_to_server(servicer, server)
    server.add_insecure_port(servicer.target)
    await server.start()
    try:
        yield servicer
    finally:
        servicer.gate.set()
        await server.stop(0)

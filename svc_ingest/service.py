"""The gRPC side of ingest: Publish and BatchPublish. Path steps 1-3.

Both take the same way: pass the gate, judge, ask the request log, decide, charge, append, tell the log, answer. One
call is one look-up and at most one append a lane, however many events it carries. Must not hold rules: they are in
`core`, `quota` and `overload`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import grpc.aio
import msgspec

from heliograph.ingest.v1 import ingest_service_pb2, ingest_service_pb2_grpc
from heliograph.type.v1 import refusal_pb2
from mesh import context as calls
from mesh.clock import Clock
from mesh.errors import Failure, Unavailable, describe
from mesh.ids import to_text
from mesh.lanes import LaneUnavailable, LaneWriter, Record
from mesh.telemetry import logger
from mesh.times import timestamp_of
from svc_ingest import core, limits, record, repeats
from svc_ingest.gate import Gate, deadline_expired
from svc_ingest.metrics import Metrics
from svc_ingest.ports import Answer, Claim, Known, RequestLog
from svc_ingest.quota import Meter
from svc_ingest.registry import Registries

_PublishContext: TypeAlias = grpc.aio.ServicerContext[
    ingest_service_pb2.PublishRequest, Awaitable[ingest_service_pb2.PublishResponse]
]
_BatchContext: TypeAlias = grpc.aio.ServicerContext[
    ingest_service_pb2.BatchPublishRequest, Awaitable[ingest_service_pb2.BatchPublishResponse]
]
_Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


_MICROS = 1_000_000
_MICRO_NS = 1_000
_ID_BYTES = 16
# What the request log is told at once, by calls that did not wait for it.
LOG_CALLS = 1_000


class _Call(msgspec.Struct, frozen=True):
    """One Publish or BatchPublish: who calls, and when."""

    tenant_id: str
    producer_id: str
    traceparent: str
    now: float
    now_micros: int
    now_ms: int


class IngestServicer(ingest_service_pb2_grpc.IngestServiceServicer):
    """Accepts events.

    Args:
        log: the short memory of requests, open.
        lanes: the writing ends by name, open.
        registries: categories and producers.
        gate: sheds what is too much.
        clock: ingest's clock.
        metrics: where outcomes are counted.
        draw: returns so many random bytes.
        spawn: runs what may outlast a call.
        trace: log each event's steps.
    """

    def __init__(
        self,
        *,
        log: RequestLog,
        lanes: Mapping[str, LaneWriter],
        registries: Registries,
        gate: Gate,
        clock: Clock,
        metrics: Metrics,
        draw: Callable[[int], bytes],
        spawn: _Spawn,
        trace: bool,
    ) -> None:
        self._log = log
        self._lanes = lanes
        self._registries = registries
        self._gate = gate
        self._meter = Meter(registries.quotas, clock.monotonic())
        self._clock = clock
        self._metrics = metrics
        self._draw = draw
        self._spawn = spawn
        self._trace = trace
        # Calls to the log that outlast theirs.
        self._telling: set[asyncio.Task[None]] = set()

    async def Publish(
        self,
        request: ingest_service_pb2.PublishRequest,
        context: _PublishContext,
    ) -> ingest_service_pb2.PublishResponse:
        """Accepts one event."""
        (outcome,) = await self._publish([request])
        if isinstance(outcome, Failure):
            raise outcome
        response = ingest_service_pb2.PublishResponse()
        record.fill_answer(response, outcome)
        return response

    async def BatchPublish(
        self,
        request: ingest_service_pb2.BatchPublishRequest,
        context: _BatchContext,
    ) -> ingest_service_pb2.BatchPublishResponse:
        """Accepts several events, each judged by itself."""
        core.check_batch(len(request.requests))
        response = ingest_service_pb2.BatchPublishResponse()
        # Under overload hundreds of items share one refusal.
        described: dict[int, refusal_pb2.Refusal] = {}
        for outcome in await self._publish(request.requests):
            result = response.results.add()
            if isinstance(outcome, Failure):
                known = described.get(id(outcome))
                if known is None:
                    described[id(outcome)] = describe(outcome, result.refused)
                else:
                    result.refused.CopyFrom(known)
            else:
                record.fill_answer(result.accepted, outcome)
        return response

    async def _publish(self, requests: Sequence[ingest_service_pb2.PublishRequest]) -> list[repeats.Outcome]:
        """Returns what became of each request, in order."""
        call = self._call()
        grant = core.find_grant(self._registries, call.tenant_id, call.producer_id)
        self._gate.check_time(calls.remaining())
        shed = self._gate.shed(requests)
        now_ns = call.now_micros * _MICRO_NS
        with self._gate.working(len(requests) - len(shed)):
            judged = [
                shed.get(index) or core.check(request, grant, self._registries, now_ns)
                for index, request in enumerate(requests)
            ]
            drafts = [draft for draft in judged if isinstance(draft, core.Draft)]
            accepted = iter(await self._accept(drafts, call) if drafts else ())
        outcomes = [next(accepted) if isinstance(draft, core.Draft) else draft for draft in judged]
        self._metrics.count(outcomes, call.tenant_id, call.producer_id)
        self._tell_path("answered", outcomes)
        return outcomes

    def _call(self) -> _Call:
        current = calls.current()
        caller = current.caller
        now = self._clock.wall()
        micros = int(now * _MICROS)
        return _Call(caller.tenant, caller.name, current.traceparent, now, micros, micros // 1_000)

    async def _accept(self, drafts: Sequence[core.Draft], call: _Call) -> list[repeats.Outcome]:
        """Takes drafts past the request log into their lanes."""
        holder = self._draw(_ID_BYTES)
        claims = [repeats.claim_of(draft, call.tenant_id, call.producer_id, holder, call.now_ms) for draft in drafts]
        known = await self._begin(claims, call.now)
        verdicts = repeats.settle(drafts, known, call.now_ms)
        held_back = self._hold_back(drafts, verdicts, call)
        appended = {**await self._append(drafts, verdicts, held_back, call), **held_back}
        outcomes = repeats.conclude(drafts, verdicts, appended)
        # Whoever waited for the log in vain does not wait for it again.
        answered = any(fact is not None for fact in known)
        await self._remember(claims, repeats.close(drafts, verdicts, outcomes), outcomes, wait=answered)
        return outcomes

    async def _begin(self, claims: Sequence[Claim | None], now: float) -> list[Known | None]:
        """Asks the request log; without its answer within the limit every request counts as new."""
        asked = [claim for claim in claims if claim is not None]
        answers: Iterator[Known] | None = None
        if asked:
            try:
                async with asyncio.timeout(limits.REQUEST_LOG_WAIT_S):
                    answers = iter(await self._log.begin(asked, now))
            except (TimeoutError, Unavailable) as error:
                self._metrics.skip_log("begin", len(asked))
                logger().warning("request_log_skipped", step="begin", requests=len(asked), error=repr(error))
        if answers is None:
            return [None] * len(claims)
        return [None if claim is None else next(answers) for claim in claims]

    def _hold_back(
        self, drafts: Sequence[core.Draft], verdicts: Sequence[repeats.Verdict], call: _Call
    ) -> Mapping[int, Failure]:
        """Charges what would be accepted; returns by index what its quota, or the call's time, does not let through."""
        accepts = [index for index, verdict in enumerate(verdicts) if isinstance(verdict, repeats.Accept)]
        left = calls.remaining()
        if left is not None and left <= 0:
            self._metrics.refuse_late(len(accepts))
            return dict.fromkeys(accepts, deadline_expired(left, 0.0))
        now = self._clock.monotonic()
        refusals: dict[int, Failure] = {}
        for index in accepts:
            recipient_count = len(drafts[index].request.event.audience.recipient_ids)
            refusal = self._meter.charge(call.tenant_id, call.producer_id, recipient_count, now)
            if refusal is not None:
                refusals[index] = refusal
        return refusals

    async def _append(
        self,
        drafts: Sequence[core.Draft],
        verdicts: Sequence[repeats.Verdict],
        held_back: Mapping[int, Failure],
        call: _Call,
    ) -> Mapping[int, repeats.Outcome]:
        """Builds and appends what is accepted, lane by lane in the order of the call; returns outcomes by index."""
        batches: dict[str, tuple[list[int], list[Record]]] = {}
        outcomes: dict[int, repeats.Outcome] = {}
        origin = record.Origin(call.tenant_id, call.producer_id, call.traceparent, timestamp_of(call.now_micros))
        for index, verdict in enumerate(verdicts):
            if isinstance(verdict, repeats.Accept) and index not in held_back:
                draft = drafts[index]
                request_id = draft.request_id or self._draw(_ID_BYTES)
                event_id = core.derive_event_id(draft, call.tenant_id, call.producer_id, request_id, verdict.id_time_ms)
                indexes, records = batches.setdefault(record.LANES[draft.priority], ([], []))
                indexes.append(index)
                records.append(record.build_record(draft, origin, event_id, verdict.id_time_ms))
                outcomes[index] = repeats.Receipt(event_id, call.now_micros, replayed=False)
        self._tell_path("published", outcomes.values())
        appends = [self._append_one(lane, records) for lane, (_, records) in batches.items()]
        # A task each only where there is more than one.
        failures = [await appends[0]] if len(appends) == 1 else await asyncio.gather(*appends)
        for (indexes, _), failure in zip(batches.values(), failures, strict=True):
            if failure is not None:
                outcomes.update(dict.fromkeys(indexes, failure))
        self._tell_path("accepted", outcomes.values())
        return outcomes

    async def _append_one(self, lane: str, records: Sequence[Record]) -> Failure | None:
        """Appends to one lane; returns the refusal when that is not known to be done."""
        # Records take their time to build: it may have run out since the events were charged.
        left = calls.remaining()
        if left is not None and left <= 0:
            self._metrics.refuse_late(len(records))
            return deadline_expired(left, 0.0)
        try:
            with self._metrics.time_append(lane), self._gate.appending():
                await self._lanes[lane].append(records)
        except LaneUnavailable as error:
            logger().error("lane_unavailable", lane=lane, events=len(records), unknown=error.unknown, error=str(error))
            return core.lane_unavailable(lane, unknown=error.unknown)
        return None

    async def _remember(
        self,
        claims: Sequence[Claim | None],
        closings: Sequence[repeats.Closing],
        outcomes: Sequence[repeats.Outcome],
        *,
        wait: bool,
    ) -> None:
        """Tells the request log. The lane has the events: whatever happens here, the answer stands."""
        finished: list[Answer] = []
        released: list[Claim] = []
        for claim, closing, outcome in zip(claims, closings, outcomes, strict=True):
            if claim is not None and closing is repeats.Closing.FINISH and isinstance(outcome, repeats.Receipt):
                finished.append(Answer(claim, outcome.event_id, outcome.accept_micros))
            elif claim is not None and closing is repeats.Closing.RELEASE:
                released.append(claim)
        if finished:
            await self._tell_log("finish", len(finished), lambda: self._log.finish(finished), wait=wait)
        if released:
            await self._tell_log("release", len(released), lambda: self._log.release(released), wait=wait)

    async def _tell_log(self, step: str, count: int, tell: Callable[[], Awaitable[None]], *, wait: bool) -> None:
        """Waits for the log no longer than the limit; what takes longer goes on without the call, unless much does."""
        if len(self._telling) >= LOG_CALLS:
            self._metrics.skip_log(step, count)
            return
        task = self._spawn(self._tell_quietly(step, count, tell))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        if not wait:
            return
        done, _ = await asyncio.wait({task}, timeout=limits.REQUEST_LOG_WAIT_S)
        if not done:
            self._metrics.skip_log(step, count)
            logger().warning("request_log_skipped", step=step, requests=count, error="slow")

    async def _tell_quietly(self, step: str, count: int, tell: Callable[[], Awaitable[None]]) -> None:
        try:
            await tell()
        except Unavailable as error:
            self._metrics.skip_log(step, count)
            logger().warning("request_log_skipped", step=step, requests=count, error=repr(error))

    def _tell_path(self, step: str, outcomes: Iterable[repeats.Outcome]) -> None:
        if self._trace:
            for outcome in outcomes:
                if isinstance(outcome, repeats.Receipt) and outcome is not repeats.VALIDATED:
                    logger().info("path", step=step, event_id=to_text(outcome.event_id))

"""Calls of ingest that are repeated, unchanged, until there is an answer or the tries are used up.

Must not build events or queue them. Rules of repeating are in `retry.py`; here they are carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import grpc
import msgspec

from heliograph.ingest.v1.ingest_service_pb2 import BatchPublishResponse, PublishResponse
from heliograph_client.clock import Clock
from heliograph_client.events import PreparedEvent, batch_request
from heliograph_client.retry import RetryBudget, RetryPolicy, leaves_open, worth_repeating
from heliograph_client.tokens import TokenSource, fetch_token
from mesh.errors import Failure, Internal, from_description
from mesh.status import from_call

Answer = TypeVar("Answer")

_SERVICE = "/heliograph.ingest.v1.IngestService"


class Receipt(msgspec.Struct, frozen=True):
    """An event is durable: every recipient gets it, or a reason is kept.

    Attributes:
        event_id: UUID text; the id of the notification as well.
        accept_time: the server's clock when it was first accepted.
        replayed: it was accepted before.
        request_id: the id under which it was published.
    """

    event_id: str
    accept_time: datetime
    replayed: bool
    request_id: str


class PublishStats(msgspec.Struct):
    """What a publisher counted since it was made.

    Attributes:
        calls: calls made, repetitions included.
        retries: repetitions.
        retries_denied: repetitions that the budget did not allow.
        accepted: events accepted, those accepted before included.
        replayed: events that had been accepted before.
        failed: events given up or refused.
        queue_refusals: events that found no room in the queue.
    """

    calls: int = 0
    retries: int = 0
    retries_denied: int = 0
    accepted: int = 0
    replayed: int = 0
    failed: int = 0
    queue_refusals: int = 0


class PublishCalls:
    """Publishes frozen requests over one channel."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        policy: RetryPolicy,
        budget: RetryBudget,
        token: TokenSource | None,
        metadata: Sequence[tuple[str, str]],
        clock: Clock,
        random: Callable[[], float],
        stats: PublishStats,
    ) -> None:
        # The payload is bytes that were serialised once: no try can differ from the one before.
        self._single: grpc.aio.UnaryUnaryMultiCallable[bytes, PublishResponse] = channel.unary_unary(
            f"{_SERVICE}/Publish", request_serializer=None, response_deserializer=PublishResponse.FromString
        )
        self._batch: grpc.aio.UnaryUnaryMultiCallable[bytes, BatchPublishResponse] = channel.unary_unary(
            f"{_SERVICE}/BatchPublish", request_serializer=None, response_deserializer=BatchPublishResponse.FromString
        )
        self._policy = policy
        self._budget = budget
        self._token = token
        self._metadata = tuple(metadata)
        self._clock = clock
        self._random = random
        self._stats = stats

    async def publish(self, prepared: PreparedEvent) -> Receipt:
        """Publishes one event; raises the failure of the last try, which says whether any try is open."""
        end = self._begin()
        tries = 0
        is_open = False
        while True:
            tries += 1
            try:
                answer = await self._call(self._single, prepared.request, end)
            except Failure as failure:
                is_open = is_open or leaves_open(failure)
                if not await self._again([failure], tries, end):
                    self._stats.failed += 1
                    if is_open:
                        raise _left_open(failure, prepared) from failure
                    raise
            else:
                return self._accept(prepared, answer)

    async def publish_batch(self, prepared: Sequence[PreparedEvent]) -> list[Receipt | Failure]:
        """Publishes several events in one call, and repeats those that another try may help; a verdict for each."""
        verdicts: dict[int, Receipt | Failure] = {}
        left = list(range(len(prepared)))
        still_open: set[int] = set()
        end = self._begin()
        tries = 0
        while left:
            tries += 1
            items = [prepared[index] for index in left]
            verdicts.update(zip(left, await self._judge(items, end), strict=True))
            failed = {index: verdict for index in left if isinstance(verdict := verdicts[index], Failure)}
            still_open |= {index for index, failure in failed.items() if leaves_open(failure)}
            left = [index for index, failure in failed.items() if worth_repeating(failure)]
            if left and not await self._again([failed[index] for index in left], tries, end):
                break
        for index in still_open:
            verdict = verdicts[index]
            if isinstance(verdict, Failure):
                verdicts[index] = _left_open(verdict, prepared[index])
        found = [verdicts[index] for index in range(len(prepared))]
        self._stats.failed += sum(isinstance(verdict, Failure) for verdict in found)
        return found

    async def _judge(self, items: Sequence[PreparedEvent], end: float) -> list[Receipt | Failure]:
        try:
            answer = await self._call(self._batch, batch_request(items), end)
        except Failure as failure:
            return [failure for _ in items]
        if len(answer.results) != len(items):
            text = f"{len(items)} events were sent and {len(answer.results)} verdicts came back"
            return [Internal(text, reason="INTERNAL") for _ in items]
        return [
            self._accept(item, result.accepted)
            if result.WhichOneof("result") == "accepted"
            else from_description(result.refused)
            for item, result in zip(items, answer.results, strict=True)
        ]

    def _begin(self) -> float:
        now = self._clock.monotonic()
        self._budget.earn(now)
        return now + self._policy.time_limit

    async def _call(
        self, method: grpc.aio.UnaryUnaryMultiCallable[bytes, Answer], payload: bytes, end: float
    ) -> Answer:
        metadata = self._metadata
        if self._token is not None:
            metadata = (*metadata, ("authorization", f"Bearer {await fetch_token(self._token)}"))
        left = max(0.0, end - self._clock.monotonic())
        self._stats.calls += 1
        try:
            return await method(payload, timeout=min(self._policy.attempt_timeout, left), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise from_call(error) from None

    async def _again(self, failures: Sequence[Failure], tries: int, end: float) -> bool:
        """Waits for the next try; False when there is none."""
        now = self._clock.monotonic()
        random = self._random()
        longest = 0.0
        for failure in failures:
            wait = self._policy.wait(failure, tries, end - now, random)
            if wait is None:
                return False
            longest = max(longest, wait)
        if not self._budget.spend(now):
            self._stats.retries_denied += 1
            return False
        self._stats.retries += 1
        await self._clock.sleep(longest)
        return True

    def _accept(self, prepared: PreparedEvent, answer: PublishResponse) -> Receipt:
        self._stats.accepted += 1
        self._stats.replayed += answer.replayed
        return Receipt(
            event_id=answer.event_id,
            accept_time=answer.accept_time.ToDatetime(tzinfo=UTC),
            replayed=answer.replayed,
            request_id=prepared.request_id,
        )


def _left_open(failure: Failure, prepared: PreparedEvent) -> Failure:
    """Returns the failure as the producer of this event has to know it."""
    hint = f"a try may have been accepted; publishing it again unchanged under request id {prepared.request_id} is safe"
    told = type(failure)(
        f"{failure.message} ({hint})",
        reason=failure.reason,
        metadata=failure.metadata,
        violations=failure.violations,
        retry_delay=failure.retry_delay,
    )
    told.outcome_unknown = True
    return told

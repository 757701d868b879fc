"""The producer's side of the SDK: publishes events to the edge, or to ingest over a Unix socket.

Must not judge events (ingest does) and must not retry what repeating does not cure (`retry.py`).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

import grpc

from heliograph.type.v1.event_pb2 import Event
from heliograph_client.batching import BATCH_EVENTS, Batcher
from heliograph_client.clock import Clock, SystemClock
from heliograph_client.events import ENTROPY_BYTES, EventFields, PreparedEvent, build_event, prepare_event
from heliograph_client.publish_calls import PublishCalls, PublishStats, Receipt
from heliograph_client.retry import RetryBudget, RetryPolicy
from heliograph_client.tls import Tls
from heliograph_client.tokens import TokenSource
from mesh.errors import FailedPrecondition, Failure, InvalidArgument

Part = TypeVar("Part")

_OPTIONS: tuple[tuple[str, int], ...] = (
    # Repeating is decided in one place; a second one below it would multiply.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
)


class Publisher:
    """Publishes events. Use it as an async context manager; leaving it publishes what is queued.

    Each request gets an id with the time in it and is frozen before the first try, so that every repetition, also one
    from another process (`prepare`), is absorbed. Failures are raised as `heliograph_client.errors`.

    Args:
        target: `host:port` of the edge, or `unix:PATH` of a socket.
        tls: certificates; None: no encryption, for Unix sockets and tests.
        token: a producer's token, or what returns the current one; asked before each try.
        metadata: headers of every call, such as `("x-heliograph-caller", "producer/acme/demo")` without a mesh.
        authority: the name that the request is addressed to, where the target is only an address.
        policy: how hard to try.
        budget: keeps repetitions a small part of all calls; may be shared by publishers.
        queue_limit: events that may wait for `enqueue`.
        calls_in_flight: batches of `enqueue` on the way at once; with one, events keep their order.
        close_limit: seconds that leaving may take to publish what is queued.
        clock: where time comes from.
        random: numbers in [0, 1) for the waits between tries.
        entropy: returns so many random bytes, for ids.
    """

    def __init__(
        self,
        target: str,
        *,
        tls: Tls | None = None,
        token: TokenSource | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        authority: str | None = None,
        policy: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
        queue_limit: int = 10_000,
        calls_in_flight: int = 1,
        close_limit: float = 30.0,
        clock: Clock | None = None,
        random: Callable[[], float] = random.random,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.stats = PublishStats()
        self._target = target
        self._tls = tls
        self._authority = authority
        self._token = token
        self._metadata = tuple(metadata)
        self._policy = policy or RetryPolicy()
        self._budget = budget or RetryBudget()
        self._queue_limit = queue_limit
        self._calls_in_flight = calls_in_flight
        self._close_limit = close_limit
        self._clock: Clock = clock or SystemClock()
        self._random = random
        self._entropy = entropy
        self._channel: grpc.aio.Channel | None = None
        self._calls: PublishCalls | None = None
        self._batcher: Batcher | None = None

    async def __aenter__(self) -> Publisher:
        """Makes the channel; the connection follows with the first call.

        Raises:
            InvalidArgument: a certificate's file cannot be read.
        """
        self._channel = self._open_channel()
        self._calls = PublishCalls(
            self._channel,
            policy=self._policy,
            budget=self._budget,
            token=self._token,
            metadata=self._metadata,
            clock=self._clock,
            random=self._random,
            stats=self.stats,
        )
        self._batcher = Batcher(self._calls.publish_batch, limit=self._queue_limit, lanes=self._calls_in_flight)
        self._batcher.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error of the caller's nothing is waited for: the events fail, and their ids can be repeated.
        await self.close(limit=self._close_limit if error is None else 0.0)

    async def close(self, *, limit: float | None = None) -> None:
        """Publishes what is queued, then closes the channel; may be called twice.

        Args:
            limit: seconds that it may take; None: `close_limit`.
        """
        batcher, channel = self._batcher, self._channel
        self._batcher = self._channel = self._calls = None
        try:
            if batcher is not None:
                await batcher.close(self._close_limit if limit is None else limit)
        finally:
            if channel is not None:
                await channel.close()

    # ------------------------------------------------------------ publishing

    async def publish(
        self,
        event: Event | PreparedEvent | None = None,
        *,
        request_id: str | None = None,
        validate_only: bool = False,
        **fields: Unpack[EventFields],
    ) -> Receipt:
        """Publishes one event and returns when it is durable.

        Args:
            event: what to publish; None: it is built from the keywords (see `build_event`).
            request_id: lower-case UUID text of the producer's own; None: one is drawn.
            validate_only: let it be judged only.
            **fields: category, to, title and so on, instead of an event.

        Raises:
            Failure: the category says what went wrong with the last try. With `outcome_unknown` a try may have been
                accepted all the same, whatever the category: publishing it again under its id (`prepare`) is safe.
        """
        calls = _opened(self._calls)
        prepared = self.prepare(event, request_id=request_id, validate_only=validate_only, **fields)
        return await calls.publish(prepared)

    async def publish_batch(self, events: Sequence[Event | PreparedEvent]) -> list[Receipt | Failure]:
        """Publishes several events, 100 a call; returns a receipt or a failure for each, in their order."""
        calls = _opened(self._calls)
        prepared = [self.prepare(event) for event in events]
        verdicts: list[Receipt | Failure] = []
        for start in range(0, len(prepared), BATCH_EVENTS):
            verdicts += await calls.publish_batch(prepared[start : start + BATCH_EVENTS])
        return verdicts

    def enqueue(
        self,
        event: Event | PreparedEvent | None = None,
        *,
        request_id: str | None = None,
        **fields: Unpack[EventFields],
    ) -> asyncio.Future[Receipt]:
        """Queues an event and returns at once; events that wait together leave together.

        Args:
            event: what to publish; None: it is built from the keywords (see `build_event`).
            request_id: lower-case UUID text of the producer's own; None: one is drawn.
            **fields: category, to, title and so on, instead of an event.

        Returns:
            A future: the receipt, or the failure that `publish` would raise.

        Raises:
            ResourceExhausted: so many wait already that the producer must slow down.
        """
        batcher = _opened(self._batcher)
        try:
            return batcher.put(self.prepare(event, request_id=request_id, **fields))
        except Failure:
            self.stats.queue_refusals += 1
            raise

    async def flush(self) -> None:
        """Returns when every event that was queued has its verdict."""
        await _opened(self._batcher).flush()

    def prepare(
        self,
        event: Event | PreparedEvent | None = None,
        *,
        request_id: str | None = None,
        validate_only: bool = False,
        **fields: Unpack[EventFields],
    ) -> PreparedEvent:
        """Freezes an event under its request id, to be published now or kept and repeated later.

        Args:
            event: what to publish; None: it is built from the keywords. A frozen one is returned as it is.
            request_id: lower-case UUID text of the producer's own; None: one is drawn.
            validate_only: let it be judged only.
            **fields: category, to, title and so on, instead of an event.

        Raises:
            InvalidArgument: the request id is no UUID text, or both an event and keywords are given.
        """
        if event is not None and fields:
            raise InvalidArgument("give an event or keywords, not both", reason="FIELD_INVALID")
        if isinstance(event, PreparedEvent):
            return event
        return prepare_event(
            build_event(**fields) if event is None else event,
            request_id=request_id,
            wall=self._clock.wall(),
            entropy=self._entropy(ENTROPY_BYTES),
            validate_only=validate_only,
        )

    def _open_channel(self) -> grpc.aio.Channel:
        options: list[tuple[str, int | str]] = list(_OPTIONS)
        if self._authority is not None:
            options.append(("grpc.default_authority", self._authority))
        if self._tls is None:
            return grpc.aio.insecure_channel(self._target, options=options)
        if self._tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return grpc.aio.secure_channel(self._target, self._tls.credentials(), options=options)


def _opened(part: Part | None) -> Part:
    if part is None:
        raise FailedPrecondition("the publisher is not open: use it in an async with block", reason="")
    return part

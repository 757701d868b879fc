"""Events that wait to be published together: what arrives while a call is in flight becomes the next batch.

No timer makes an event linger: when nothing is in flight, it leaves at once. The queue is bounded and refuses aloud.
Must not call anything itself: it is given what publishes a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from heliograph_client.events import PreparedEvent
from heliograph_client.publish_calls import Receipt
from mesh.errors import FailedPrecondition, Failure, ResourceExhausted, Unavailable

PublishBatch: TypeAlias = Callable[[Sequence[PreparedEvent]], Awaitable[Sequence[Receipt | Failure]]]

BATCH_EVENTS = 100
# Servers take 4 MiB a request; an event with many recipients has more than a megabyte.
BATCH_BYTES = 1 << 20


class _Waiting(NamedTuple):
    prepared: PreparedEvent
    verdict: asyncio.Future[Receipt]


class Batcher:
    """A queue in front of BatchPublish.

    Args:
        publish: publishes a batch; a verdict for each event.
        limit: events that may wait.
        lanes: calls in flight at once; with one, events leave in the order in which they came, repetitions included.
    """

    def __init__(self, publish: PublishBatch, *, limit: int, lanes: int) -> None:
        self._publish = publish
        self._limit = limit
        self._lanes = lanes
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy = 0
        self._loops: list[asyncio.Task[None]] = []
        self._closed = False

    def open(self) -> None:
        """Starts the loops."""
        self._loops = [asyncio.create_task(self._run(), name=f"publish {lane}") for lane in range(self._lanes)]

    def put(self, prepared: PreparedEvent) -> asyncio.Future[Receipt]:
        """Queues an event; the future has its receipt, or raises why there is none.

        Raises:
            ResourceExhausted: the queue is full.
            FailedPrecondition: it is closed.
        """
        if self._closed:
            raise FailedPrecondition("the publisher is closed", reason="")
        if len(self._queue) >= self._limit:
            text = f"{self._limit} events wait already"
            raise ResourceExhausted(text, reason="OVERLOADED", metadata={"limit": str(self._limit)})
        verdict: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(prepared, verdict))
        self._idle.clear()
        self._arrived.set()
        return verdict

    async def flush(self) -> None:
        """Returns when every queued event has its verdict."""
        await self._idle.wait()

    async def close(self, limit: float) -> None:
        """Publishes what waits, for so many seconds at most; what is left then fails with Unavailable."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self.flush()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for waiting in self._queue:
            _fail(waiting, _unsent())
        self._queue.clear()
        self._idle.set()

    async def _run(self) -> None:
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            batch = self._take()
            if batch:
                await self._send(batch)
            if not self._queue and not self._busy:
                self._idle.set()

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and len(batch) < BATCH_EVENTS:
            waiting = self._queue[0]
            size += len(waiting.prepared.request)
            if batch and size > BATCH_BYTES:
                break
            self._queue.popleft()
            # Nobody waits for a cancelled one, and it was not sent yet.
            if not waiting.verdict.done():
                batch.append(waiting)
        return batch

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        self._busy += 1
        try:
            verdicts = await self._publish([waiting.prepared for waiting in batch])
        except asyncio.CancelledError:
            for waiting in batch:
                _fail(waiting, _unanswered())
            raise
        except Exception as error:
            # Whatever it is, such as a token that could not be fetched: those who wait learn of it, and others go on.
            for waiting in batch:
                _fail(waiting, error)
            return
        finally:
            self._busy -= 1
        for waiting, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, Failure):
                _fail(waiting, verdict)
            elif not waiting.verdict.done():
                waiting.verdict.set_result(verdict)


def _fail(waiting: _Waiting, failure: Exception) -> None:
    if not waiting.verdict.done():
        waiting.verdict.set_exception(failure)


def _unsent() -> Unavailable:
    return Unavailable("closed before it was sent: publish it again under its request id", reason="")


def _unanswered() -> Unavailable:
    failure = Unavailable("closed without an answer: publish it again under its request id, which is safe", reason="")
    failure.outcome_unknown = True
    return failure

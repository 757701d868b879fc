"""A stream to a peer that is kept open: connect, open, show life, end, back off, connect again.

Path step: under every stream that a service holds to another one. What is said on it is a `Talk`, one object over any
number of streams. Must not know what frames mean.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

import msgspec
from structlog.typing import FilteringBoundLogger

from mesh.backoff import full_jitter
from mesh.clock import Clock
from mesh.errors import Failure, Unavailable
from mesh.loops import why_ended
from mesh.streams import Bidi

Out = TypeVar("Out")
In = TypeVar("In")


class Pace(msgspec.Struct, frozen=True):
    """How a link keeps time, in seconds.

    Attributes:
        ping: from one ping to the next, and from one look at the silence to the next.
        silence: so long may the peer say nothing; also the end of the wait for its answer to the opening.
        first_retry: bound of the first wait before a new stream.
        last_retry: largest bound.
        steady: a stream that lived so long starts the back-off anew.
    """

    ping: float = 1.0
    silence: float = 3.0
    first_retry: float = 0.1
    last_retry: float = 2.0
    steady: float = 5.0


PACE = Pace()


class Talk(Protocol[Out, In]):
    """What one side says and hears. Every method but `beside` returns at once."""

    def connect(self) -> AbstractAsyncContextManager[Bidi[Out, In]]:
        """Begins a new stream; see `mesh.streams.connect`."""
        ...

    def opening(self) -> Out:
        """Returns the first frame."""
        ...

    def opened(self, stream: Bidi[Out, In], answer: In) -> None:
        """Takes the answer to the opening; from here on the stream may be used, until `closed`.

        Raises:
            Failure: it is no answer, or one that ends the stream.
        """
        ...

    async def beside(self) -> None:
        """Does what is to be done while the stream is open; it is cancelled with it, and may return."""
        ...

    def ping(self, number: int) -> Out:
        """Returns a sign of life; asked for every now and then, also while it is not needed."""
        ...

    def take(self, frame: In) -> None:
        """Takes a frame; raises a Failure to end the stream."""
        ...

    def closed(self) -> None:
        """The stream is over, whether it was open or not."""
        ...

    def lost(self, failure: Failure | None) -> bool:
        """Tells of the end of a stream, and returns whether the next try is to be as quick as a first one."""
        ...

    @property
    def leaves(self) -> bool:
        """Whether the peer has said that it leaves service."""
        ...


class KeptStream(Generic[Out, In]):
    """One stream, opened again whenever it ends.

    Attributes:
        heard: when the peer last said something, monotonic seconds.
    """

    def __init__(
        self, talk: Talk[Out, In], *, peer: str, clock: Clock, log: FilteringBoundLogger, pace: Pace = PACE
    ) -> None:
        """Does nothing yet.

        Args:
            talk: what is said.
            peer: how failures call the other side.
            clock: for silence and the age of streams.
            log: where a bug is told of.
            pace: how time is kept.
        """
        self.heard = 0.0
        self._talk = talk
        self._peer = peer
        self._clock = clock
        self._log = log
        self._pace = pace

    async def run(self) -> None:
        """Keeps a stream open, with full-jitter back-off between tries, until cancelled."""
        attempt = 0
        while True:
            began = self._clock.monotonic()
            failure = await why_ended(self._live, log=self._log)
            at_once = self._talk.lost(failure)
            attempt = 0 if at_once or self._clock.monotonic() - began > self._pace.steady else attempt + 1
            await self.pause(attempt)

    async def pause(self, attempt: int) -> None:
        """Waits before another try of something."""
        pace = self._pace
        await asyncio.sleep(full_jitter(attempt, base=pace.first_retry, cap=pace.last_retry, random=random.random()))

    async def _live(self) -> None:
        try:
            async with self._talk.connect() as stream, asyncio.TaskGroup() as group:
                group.create_task(stream.write_loop())
                answer = await self._shake_hands(stream)
                self.heard = self._clock.monotonic()
                self._talk.opened(stream, answer)
                group.create_task(self._keep_alive(stream))
                group.create_task(self._talk.beside())
                while (frame := await stream.read()) is not None:
                    self.heard = self._clock.monotonic()
                    self._talk.take(frame)
                raise Unavailable(
                    f"{self._peer} ended the stream", reason="DRAINING" if self._talk.leaves else "PEER_UNAVAILABLE"
                )
        finally:
            self._talk.closed()

    async def _shake_hands(self, stream: Bidi[Out, In]) -> In:
        stream.send(self._talk.opening())
        try:
            # Cancelling a read ends the call: that is what a peer deserves that takes a stream and says nothing.
            async with asyncio.timeout(self._pace.silence):
                answer = await stream.read()
        except TimeoutError:
            raise Unavailable(f"{self._peer} did not answer the opening", reason="PEER_UNAVAILABLE") from None
        if answer is None:
            raise Unavailable(f"{self._peer} ended the stream at its opening", reason="PEER_UNAVAILABLE")
        return answer

    async def _keep_alive(self, stream: Bidi[Out, In]) -> None:
        number = 0
        while True:
            await asyncio.sleep(self._pace.ping)
            ping = self._talk.ping(number + 1)
            if not stream.pending:
                # What waits to be written is a sign of life too, and pings must not take its room.
                number += 1
                stream.send(ping)
            if self._clock.monotonic() - self.heard > self._pace.silence:
                raise Unavailable(f"{self._peer} was silent for {self._pace.silence:g} s", reason="PEER_UNAVAILABLE")

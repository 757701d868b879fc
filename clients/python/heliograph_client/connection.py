"""One connection of a subscriber: reads frames, writes what the session says, keeps its times.

Must not decide anything: the session does. Three loops, none of which outlives the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine

from heliograph_client.clock import Clock
from heliograph_client.inbound import receive
from heliograph_client.session import Actions, Leave, Renew, Session, Show, Tell
from heliograph_client.tokens import TokenSource, fetch_token
from heliograph_client.wires import Wire, WireClosed
from mesh.errors import DataLoss, Failure

_NEVER = float("inf")
# A token that could not be fetched is asked for again after so long.
_TOKEN_RETRY_S = 5.0
_BAD_DATA = 1007
_LAST_WORDS_S = 1.0
_REASON_BYTES = 120


class Connection:
    """Runs one connection.

    Args:
        wire: it is open.
        session: the rules.
        clock: where time comes from.
        token: where fresh tokens come from.
        deliver: takes what is for the application.
        room: returns when the application can take more.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        session: Session,
        clock: Clock,
        token: TokenSource,
        deliver: Callable[[Show | Tell], None],
        room: Callable[[], Awaitable[None]],
    ) -> None:
        self._wire = wire
        self._session = session
        self._clock = clock
        self._token = token
        self._deliver = deliver
        self._room = room
        self._outgoing = asyncio.Event()
        self._armed = _NEVER
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()

    def wake(self) -> None:
        """There is something to write."""
        self._outgoing.set()

    async def run(self, token: str) -> tuple[int, str]:
        """Says hello and goes on until the connection is gone.

        Returns:
            The close code (1006 when it broke) and the peer's words.
        """
        try:
            async with self._group:
                await self._live(token)
        except BaseExceptionGroup as errors:
            # One loop failed and the others were cancelled for it.
            raise errors.exceptions[0] from None
        return self._wire.end()

    async def _live(self, token: str) -> None:
        hello = self._session.hello(token, self._clock.monotonic())
        try:
            with contextlib.suppress(WireClosed):
                await self._wire.send(hello)
            self._start(self._write())
            self._arm()
            await self._read()
        except asyncio.CancelledError:
            await self._last_words()
            raise
        finally:
            for task in self._tasks:
                task.cancel()

    async def _read(self) -> None:
        while True:
            try:
                frame = await self._wire.receive()
            except WireClosed:
                return
            except DataLoss as failure:
                await self._wire.close(_BAD_DATA, failure.message.encode()[:_REASON_BYTES].decode(errors="ignore"))
                return
            actions = receive(self._session, frame, self._clock.monotonic(), self._clock.wall())
            await self._carry_out(actions)
            self._outgoing.set()
            self._arm()
            await self._room()

    async def _write(self) -> None:
        """What was said while a frame was being written, or in one go of the loop, leaves together."""
        while True:
            await self._outgoing.wait()
            self._outgoing.clear()
            for frame in self._session.take_frames(self._clock.monotonic()):
                try:
                    await self._wire.send(frame)
                except WireClosed:
                    # The session keeps what was not confirmed.
                    return

    def _arm(self) -> None:
        """Has `tick` called when the session wants it, if that is sooner than it is planned."""
        due = self._session.due()
        if due < self._armed:
            self._armed = due
            self._start(self._tick_at(due))

    async def _tick_at(self, due: float) -> None:
        await self._clock.sleep(due - self._clock.monotonic())
        if due != self._armed:
            # A sooner one was planned meanwhile and has taken over.
            return
        self._armed = _NEVER
        await self._carry_out(self._session.tick(self._clock.monotonic()))
        self._outgoing.set()
        self._arm()

    async def _carry_out(self, actions: Actions) -> None:
        for action in actions:
            if isinstance(action, Leave):
                await self._leave(action)
            elif isinstance(action, Renew):
                self._start(self._renew())
            else:
                self._deliver(action)

    async def _leave(self, leave: Leave) -> None:
        if leave.cut:
            self._wire.abort()
        else:
            await self._wire.close()

    async def _renew(self) -> None:
        try:
            token = await fetch_token(self._token)
        except (Failure, OSError):
            # The old one is still good for a while; when it is not, the server says so.
            self._session.link.token_due = self._clock.monotonic() + _TOKEN_RETRY_S
        else:
            self._session.renewed(token, self._clock.monotonic(), self._clock.wall())
        self._outgoing.set()
        self._arm()

    async def _last_words(self) -> None:
        """The subscriber is being closed: what is already said leaves, and then the closing frame."""
        with contextlib.suppress(WireClosed, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                for frame in self._session.take_frames(self._clock.monotonic()):
                    await self._wire.send(frame)
                await self._wire.close()

    def _start(self, loop: Coroutine[None, None, None]) -> None:
        task = self._group.create_task(loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

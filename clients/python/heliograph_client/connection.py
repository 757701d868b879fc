"""One connection of a subscriber: reads frames, writes what the session says, keeps its times.

Must not decide anything: the session does. Three loops, none of which outlives the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from heliograph_client.clock import Clock
from heliograph_client.frames import Encoding, decode, encode
from heliograph_client.inbound import receive
from heliograph_client.session import Actions, Leave, Renew, Session, Show, Tell
from heliograph_client.tokens import TokenSource, fetch_token
from mesh.errors import DataLoss, Failure

_NEVER = float("inf")
# A token that could not be fetched is asked for again after so long.
_TOKEN_RETRY_S = 5.0
_NORMAL, _BAD_DATA, _BROKEN = 1000, 1007, 1006
_LAST_WORDS_S = 1.0
_REASON_BYTES = 120


class Connection:
    """Runs one connection.

    Args:
        websocket: it is open.
        session: the rules.
        encoding: of the frames.
        clock: where time comes from.
        token: where fresh tokens come from.
        deliver: takes what is for the application.
        room: returns when the application can take more.
    """

    def __init__(
        self,
        websocket: ClientConnection,
        *,
        session: Session,
        encoding: Encoding,
        clock: Clock,
        token: TokenSource,
        deliver: Callable[[Show | Tell], None],
        room: Callable[[], Awaitable[None]],
    ) -> None:
        self._websocket = websocket
        self._session = session
        self._encoding: Encoding = encoding
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
            The close code (1006 when it broke) and the closing frame's words.
        """
        try:
            async with self._group:
                await self._live(token)
        except BaseExceptionGroup as errors:
            # One loop failed and the others were cancelled for it.
            raise errors.exceptions[0] from None
        code, text = self._websocket.close_code, self._websocket.close_reason
        return _BROKEN if code is None else code, text or ""

    async def _live(self, token: str) -> None:
        hello = self._session.hello(token, self._clock.monotonic())
        try:
            with contextlib.suppress(ConnectionClosed):
                await self._websocket.send(encode(hello, self._encoding))
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
                message = await self._websocket.recv()
            except ConnectionClosed:
                return
            try:
                frame = decode(message, self._encoding)
            except DataLoss as failure:
                await self._websocket.close(_BAD_DATA, failure.message.encode()[:_REASON_BYTES].decode(errors="ignore"))
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
                    await self._websocket.send(encode(frame, self._encoding))
                except ConnectionClosed:
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
            # A peer that is silent answers no closing frame either.
            self._websocket.transport.abort()
        else:
            await self._websocket.close(_NORMAL)

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
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                for frame in self._session.take_frames(self._clock.monotonic()):
                    await self._websocket.send(encode(frame, self._encoding))
                await self._websocket.close(_NORMAL)

    def _start(self, loop: Coroutine[None, None, None]) -> None:
        task = self._group.create_task(loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

"""The recipient's side of the SDK: one device's live notifications, across broken connections and restarts.

Carries out what `session.py` decides: connects, waits, hands over. Must not hold rules of its own.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import cast

from heliograph.type.v1.notification_pb2 import MarkKind
from heliograph_client.clock import Clock, SystemClock
from heliograph_client.connection import Connection
from heliograph_client.cursor_store import CursorStore
from heliograph_client.frames import Encoding
from heliograph_client.opening import address_of, open_wire
from heliograph_client.resume import Resume
from heliograph_client.session import Limits, Retry, Session, Show, Stop, Tell
from heliograph_client.tls import Tls
from heliograph_client.tokens import TokenSource, fetch_token, renewable
from heliograph_client.values import (
    AckLevel,
    Disconnected,
    MarksConfirmed,
    MarksRefused,
    Notification,
    SubscriberStats,
    TopicsChanged,
    Update,
)
from heliograph_client.wires import NotOpened, Transport, Wire
from mesh.errors import DeadlineExceeded, FailedPrecondition, Failure, Unavailable

# How often the resume state is saved at most: saving writes a file, notifications come by the hundred.
_SAVE_PAUSE_S = 0.2


class Subscriber:
    """Receives one device's notifications. Use it as an async context manager and iterate over it.

    It connects, says what the device has, acks what arrives, shows each revision of a notification once, and connects
    again whenever that is allowed. The iteration ends when the subscriber is closed, and raises a failure when the
    server forbids to connect again (superseded, token invalid, …). Acks and marks are kept until they are confirmed.

    Args:
        url: `ws://HOST:PORT`, `wss://HOST:PORT` or `unix:PATH` of a gateway or the edge; over gRPC `HOST:PORT` of the
            edge or `unix:PATH` of a node's gRPC socket.
        token: a recipient's token, or what returns the current one: asked before each connection and before the token
            ends. It raises a retriable Failure or OSError when none can be had right now.
        device_id: the app or browser installation; it holds one session.
        transport: "websocket", or "grpc" for apps; the session is the same.
        encoding: of the frames over WebSocket.
        tls: certificates; over gRPC None means no encryption, for Unix sockets and tests.
        tls_context: certificates for `wss://`, instead of `tls`; with neither those of the system.
        server_name: the name to expect in the server's certificate, where the URL is only an address.
        headers: additional headers of the opening request or call.
        origin: an Origin header, as a browser would send it.
        store: keeps what is needed to resume after a restart; None: a new start gets the whole window.
        auto_ack: what arrives is acked as received; otherwise `ack` does.
        on_update: called with everything that is not a notification; it must return quickly.
        client_name: for the server's logs.
        queue_limit: notifications that may wait to be taken; when as many wait, nothing more is read.
        limits: times and waits.
        clock: where time comes from.
        random: numbers in [0, 1) for the waits.
    """

    def __init__(
        self,
        url: str,
        *,
        token: TokenSource,
        device_id: str,
        transport: Transport = "websocket",
        encoding: Encoding = "proto",
        tls: Tls | None = None,
        tls_context: ssl.SSLContext | None = None,
        server_name: str | None = None,
        headers: Mapping[str, str] | None = None,
        origin: str | None = None,
        store: CursorStore | None = None,
        auto_ack: bool = True,
        on_update: Callable[[Update], None] | None = None,
        client_name: str = "heliograph-python",
        queue_limit: int = 1_000,
        limits: Limits | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        head = headers or {}
        self._address = address_of(
            url, transport, tls=tls, tls_context=tls_context, server_name=server_name, headers=head, origin=origin
        )
        self._token = token
        self._encoding: Encoding = encoding
        self._store = store
        self._on_update = on_update
        self._client_name = client_name
        self._queue_limit = queue_limit
        self._clock: Clock = clock or SystemClock()
        self._session = Session(
            Resume(device_id),
            random=random,
            client_name=client_name,
            auto_ack=auto_ack,
            renewable=renewable(token),
            limits=limits,
        )
        self._queue: deque[Notification] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._settled = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._connection: Connection | None = None
        # Who waits for a change of topics, by its number.
        self._changes: dict[int, asyncio.Future[None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._over = False
        self._failure: BaseException | None = None

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> Subscriber:
        """Begins to connect; it does not wait for the connection.

        Raises:
            FailedPrecondition: what was saved cannot be read, or the subscriber was used before.
        """
        if self._running is not None:
            raise FailedPrecondition("a subscriber is used once; make another one", reason="")
        state = None if self._store is None else await self._store.load()
        if state is not None:
            self._session.resume.load(state, self._clock.monotonic())
        self._running = asyncio.create_task(self._run(), name=f"subscriber {self._session.resume.device_id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Sends what was said, leaves, saves; the iteration ends after what already arrived. May be called twice."""
        running = self._running
        if running is None or self._over:
            return
        running.cancel()
        await asyncio.wait([running])
        await self._save()

    def __aiter__(self) -> Subscriber:
        """Iterates over the notifications as they come."""
        return self

    async def __anext__(self) -> Notification:
        while True:
            if self._queue:
                self._taken.set()
                self._note_change()
                return self._queue.popleft()
            if self._over:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    # ------------------------------------------------------------ what the application says

    def ack(self, notification: Notification | str, level: AckLevel = AckLevel.RECEIVED) -> None:
        """Says how far a notification, or the one with this id, has come on this device; repeating it is harmless.

        Raises:
            NotFound: it never came to this device.
            ResourceExhausted: too much is unconfirmed.
        """
        self._mark(cast("MarkKind.ValueType", int(level)), [notification])

    def mark_read(self, *notifications: Notification | str) -> None:
        """Says that they were read; raises as `ack`."""
        self._mark(MarkKind.MARK_KIND_READ, notifications)

    def mark_unread(self, *notifications: Notification | str) -> None:
        """Takes "read" back; raises as `ack`."""
        self._mark(MarkKind.MARK_KIND_UNREAD, notifications)

    def hide(self, *notifications: Notification | str) -> None:
        """Removes them from the list; raises as `ack`."""
        self._mark(MarkKind.MARK_KIND_HIDDEN, notifications)

    async def subscribe(self, *topic_ids: str, limit: float = 10.0) -> None:
        """Subscribes this device's recipient to topics; every event that is accepted after it returned finds it.

        Args:
            *topic_ids: 1 to 100.
            limit: seconds to wait, also for a connection.

        Raises:
            InvalidArgument: a topic is malformed, or they would be too many.
            DeadlineExceeded: it is not confirmed; it may be done all the same.
        """
        await self._change_topics(topic_ids, limit, begin=True)

    async def unsubscribe(self, *topic_ids: str, limit: float = 10.0) -> None:
        """Ends subscriptions; what is not subscribed is no error. Raises as `subscribe`."""
        await self._change_topics(topic_ids, limit, begin=False)

    async def settle(self, limit: float = 10.0) -> None:
        """Returns when everything that was said is durable.

        Args:
            limit: seconds to wait.

        Raises:
            DeadlineExceeded: something is still unconfirmed; it is not lost.
        """
        marks = self._session.resume.marks
        try:
            async with asyncio.timeout(limit):
                while len(marks) and not self._over:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"{len(marks)} acks and marks are unconfirmed after {limit:g} s", reason=""
            ) from None

    # ------------------------------------------------------------ what the application may look at

    @property
    def stats(self) -> SubscriberStats:
        """What was counted so far."""
        return self._session.stats

    @property
    def unread(self) -> int:
        """How many notifications are unread, own marks included: counted in the copy of the inbox."""
        resume = self._session.resume
        mark_of = resume.marks.mark_of if len(resume.marks) else _no_mark
        return resume.copy.unread(self._clock.wall() + self._session.clock_offset, mark_of)

    @property
    def inbox_ids(self) -> list[str]:
        """The ids of the list that this device should show, newest first."""
        return self._session.resume.copy.window(self._clock.wall() + self._session.clock_offset)[::-1]

    @property
    def server_unread(self) -> int | None:
        """The server's number, of its newest head; None before the first. Own marks change it with the next replay."""
        return None if self._session.unread is None else self._session.unread.unread_count

    @property
    def unconfirmed(self) -> int:
        """How many acks and marks are not durable yet."""
        return len(self._session.resume.marks)

    @property
    def connected(self) -> bool:
        """A session is open."""
        return self._session.link.welcomed

    # ------------------------------------------------------------ the loops

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                saving = group.create_task(self._keep_saved())
                try:
                    await self._keep_connected()
                finally:
                    saving.cancel()
        except BaseExceptionGroup as errors:
            self._failure = errors.exceptions[0]
        finally:
            self._over = True
            for event in (self._arrived, self._taken, self._settled):
                event.set()
            for answer in self._changes.values():
                if not answer.done():
                    answer.set_exception(Unavailable("the subscriber has ended", reason=""))

    async def _keep_connected(self) -> None:
        while True:
            follows = await self._connect()
            if isinstance(follows, Stop):
                raise follows.failure
            self._deliver(Tell(Disconnected(follows.reason, follows.delay)))
            await self._clock.sleep(follows.delay)

    async def _connect(self) -> Retry | Stop:
        session = self._session
        try:
            token = await fetch_token(self._token)
        except Failure as failure:
            return session.failed(failure, final=not failure.retriable)
        except OSError as error:
            return session.failed(Unavailable(f"no token: {error}", reason=""), final=False)
        opened = await self._open(token)
        if isinstance(opened, NotOpened):
            return session.failed(opened.failure, final=opened.final)
        self._connection = Connection(
            opened,
            session=session,
            clock=self._clock,
            token=self._token,
            deliver=self._deliver,
            room=self._room,
        )
        try:
            code, text = await self._connection.run(token)
        finally:
            self._connection = None
            await opened.dispose()
        return session.ended(code, text, self._clock.monotonic())

    async def _open(self, token: str) -> Wire | NotOpened:
        return await open_wire(self._address, token, self._encoding, self._client_name)

    def _deliver(self, action: Show | Tell) -> None:
        if isinstance(action, Show):
            self._queue.append(action.notification)
            self._arrived.set()
        else:
            if isinstance(action.update, MarksConfirmed | MarksRefused):
                self._settled.set()
            elif isinstance(action.update, TopicsChanged):
                self._answer(action.update)
            if self._on_update is not None:
                self._on_update(action.update)
        self._note_change()

    async def _change_topics(self, topic_ids: Sequence[str], limit: float, *, begin: bool) -> None:
        if self._running is None or self._over:
            raise FailedPrecondition("the subscriber is not open: use it in an async with block", reason="")
        topics = self._session.topics
        change = topics.say(topic_ids, begin=begin)
        answer = self._changes[change.number] = asyncio.get_running_loop().create_future()
        if self._connection is not None:
            self._connection.wake()
        try:
            async with asyncio.timeout(limit):
                await answer
        except TimeoutError:
            raise DeadlineExceeded(f"topics are not confirmed after {limit:g} s", reason="") from None
        finally:
            del self._changes[change.number]
            topics.forget(change.number)

    def _answer(self, changed: TopicsChanged) -> None:
        answer = self._changes.get(changed.change.number)
        if answer is None or answer.done():
            return
        if changed.failure is None:
            answer.set_result(None)
        else:
            answer.set_exception(changed.failure)

    async def _room(self) -> None:
        while len(self._queue) >= self._queue_limit:
            self._taken.clear()
            await self._taken.wait()

    def _mark(self, kind: MarkKind.ValueType, notifications: Iterable[Notification | str]) -> None:
        ids = [item if isinstance(item, str) else item.id for item in notifications]
        self._session.mark(kind, ids, self._clock.wall())
        self._note_change()
        if self._connection is not None:
            self._connection.wake()

    # ------------------------------------------------------------ saving

    def _note_change(self) -> None:
        self._unsaved.set()

    async def _keep_saved(self) -> None:
        if self._store is None:
            return
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            await self._save()
            await self._clock.sleep(_SAVE_PAUSE_S)

    async def _save(self) -> None:
        if self._store is not None:
            # What was not taken yet comes again after a restart.
            waiting = {notification.id for notification in self._queue}
            await self._store.save(self._session.resume.dump(waiting))


def _no_mark(_: str) -> None:
    return None

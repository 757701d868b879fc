"""Who takes part in a run and writes down what they saw: a producer, people with devices, whoever looks at the end.

Devices are the SDK's, with what goes over their wire noted beside what they show. It must not judge, and makes no
fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from heliograph.type.v1.notification_pb2 import NotificationState
from heliograph_client import PreparedEvent, Publisher, Subscriber
from heliograph_client.events import PriorityName, build_event
from heliograph_client.values import MarksConfirmed, Update
from heliograph_client.wires import NotOpened, Wire
from mesh.errors import (
    AlreadyExists,
    FailedPrecondition,
    Failure,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from tests.faults import canary, history
from tests.faults.history import Device, Recorder

_RETRY_PAUSE_S = 0.3
# Instead of an id: its time is over, and no further try changes that.
_OVER = ""
# They say that the request itself is wrong.
_REFUSALS = (AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unauthenticated)
_URGENCY: Mapping[PriorityName, int] = {"high": 3, "normal": 2, "bulk": 1}


def now() -> float:
    """The clock of all histories."""
    return time.monotonic()


# ---------------------------------------------------------------- devices


class _NotedWire:
    """A wire that notes what comes through it; everything else is the wire's own."""

    def __init__(
        self, wire: Wire, see: Callable[[ConnectResponse], None], said: Callable[[ConnectRequest], None]
    ) -> None:
        self._wire = wire
        self._see = see
        self._said = said

    async def send(self, frame: ConnectRequest) -> None:
        self._said(frame)
        await self._wire.send(frame)

    async def receive(self) -> ConnectResponse:
        frame = await self._wire.receive()
        self._see(frame)
        return frame

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self._wire.close(code, reason)

    def abort(self) -> None:
        self._wire.abort()

    async def dispose(self) -> None:
        await self._wire.dispose()

    def end(self) -> tuple[int, str]:
        return self._wire.end()


class NotedSubscriber(Subscriber):
    """The SDK's subscriber; each of its wires is noted."""

    screen: Screen

    async def _open(self, token: str) -> Wire | NotOpened:
        opened = await super()._open(token)
        if isinstance(opened, NotOpened):
            return opened
        self.screen.begin()
        return _NotedWire(opened, self.screen.see, self.screen.said)


class Screen:
    """One device of one recipient: what came to it, and what it showed.

    Attributes:
        shown: ids that a person saw.
        received: ids that came over its wires.
        late: how to ack what comes; None: the SDK does.
    """

    def __init__(self, device: Device, secret: bytes, recorder: Recorder, clock: Callable[[], float] = now) -> None:
        self.device = device
        self.late: LateAcks | None = None
        self._now = clock
        self.sessions = 0
        self.gateway = ""
        self.shown: set[str] = set()
        self.received: set[str] = set()
        self.subscriber: NotedSubscriber
        self._secret = secret
        self._recorder = recorder
        self._known: tuple[str, ...] = ()
        self._welcomed = False

    def begin(self) -> None:
        """A connection is open."""
        self._close()
        self._welcomed = False

    def said(self, frame: ConnectRequest) -> None:
        """Notes what the device says that it has."""
        if frame.HasField("hello"):
            self._known = tuple(self.subscriber.inbox_ids)

    def see(self, frame: ConnectResponse) -> None:
        """Notes a frame of the server's."""
        match frame.WhichOneof("frame"):
            case "welcome":
                self.sessions += 1
                self._welcomed = True
                self.gateway = gateway = frame.welcome.session_id.rpartition("-")[0]
                self._recorder.add(
                    history.Connected(
                        at=self._now(), device=self.device, session=self.sessions, gateway=gateway, known=self._known
                    )
                )
            case "notify":
                self.received.add(frame.notify.notification.notification_id)
                self._recorder.add(self._received(frame))
            case "replayed":
                kind = history.Reloaded if frame.replayed.reload else history.Replayed
                self._recorder.add(kind(at=self._now(), device=self.device, session=self.sessions))
            case _:
                pass

    def heard(self, update: Update) -> None:
        """Notes what the SDK says beside notifications."""
        if isinstance(update, MarksConfirmed) and self.sessions:
            self._recorder.add(
                history.AckConfirmed(
                    at=self._now(), device=self.device, session=self.sessions, notification_ids=tuple(update.ids)
                )
            )

    def mark_read(self, notification_id: str) -> None:
        """Marks as a person would; raises as the SDK's."""
        self.subscriber.mark_read(notification_id)
        self._recorder.add(
            history.Marked(at=self._now(), device=self.device, session=self.sessions, notification_id=notification_id)
        )

    async def watch(self) -> None:
        """Shows what comes, until the subscriber is closed."""
        async for notification in self.subscriber:
            self.shown.add(notification.id)
            if self.late is not None:
                self.late.take(self.subscriber, notification.id)
            self._recorder.add(
                history.Shown(
                    at=self._now(),
                    device=self.device,
                    session=self.sessions,
                    notification_id=notification.id,
                    revision=notification.revision,
                )
            )

    def finish(self) -> None:
        """Notes what the device has in the end."""
        ids = tuple(self.subscriber.inbox_ids)
        self._recorder.add(
            history.FinalList(at=self._now(), device=self.device, notification_ids=ids, unread=self.subscriber.unread)
        )

    def _received(self, frame: ConnectResponse) -> history.Received:
        message = frame.notify.notification
        text = message.content.body
        return history.Received(
            at=self._now(),
            device=self.device,
            session=self.sessions,
            notification_id=message.notification_id,
            nonce=canary.nonce_of(text),
            digest=canary.digest(text),
            canary=canary.is_for(self._secret, self.device.recipient, text),
            revision=message.revision,
            live=frame.notify.state == NotificationState.NOTIFICATION_STATE_UNSPECIFIED,
        )

    def _close(self) -> None:
        if self._welcomed:
            self._recorder.add(history.Closed(at=self._now(), device=self.device, session=self.sessions))


class LateAcks:
    """Acks the first notifications of a device so many seconds late, and those after them at once.

    Attributes:
        open: acks that are still to be said.
        said: acks that were said late.
    """

    def __init__(self, seconds: float, count: int) -> None:
        self.open = 0
        self.said = 0
        self._seconds = seconds
        self._left = count

    def take(self, subscriber: Subscriber, notification_id: str) -> None:
        """Takes note of one that was shown."""
        if self._left <= 0:
            subscriber.ack(notification_id)
            return
        self._left -= 1
        self.open += 1
        asyncio.get_running_loop().call_later(self._seconds, self._say, subscriber, notification_id)

    def _say(self, subscriber: Subscriber, notification_id: str) -> None:
        self.open -= 1
        self.said += 1
        subscriber.ack(notification_id)


@asynccontextmanager
async def watching(screen: Screen) -> AsyncIterator[Screen]:
    """Connects a screen and shows what comes while the context is open."""
    async with screen.subscriber:
        task = asyncio.create_task(screen.watch(), name=f"screen {screen.device}")
        try:
            yield screen
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


# ---------------------------------------------------------------- a producer


class Sent(msgspec.Struct, frozen=True):
    """What an accepted event is, beside whom it is for; the fields are those of the history."""

    category: str
    priority: int
    expire: float | None


class Producer:
    """Publishes contents, each until it is answered, and writes down every try.

    Attributes:
        accepted: ids that were answered OK, with their recipients.
        sent: the same ids, with what they are.
        open: contents that are not answered yet.
        refused: other contents under ids that were taken, which were refused as that.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        tenant: str,
        name: str,
        secret: bytes,
        recorder: Recorder,
        clock: Callable[[], float] = now,
        forgotten: Callable[[], Awaitable[float]] | None = None,
    ) -> None:
        self.accepted: dict[str, tuple[str, ...]] = {}
        self.sent: dict[str, Sent] = {}
        self.open = 0
        self.refused = 0
        self._forgotten = forgotten
        self._publisher = publisher
        self._now = clock
        self._tenant = tenant
        self._name = name
        self._secret = secret
        self._recorder = recorder
        self._tries = 0

    async def publish(
        self,
        recipients: Sequence[str],
        *,
        number: int,
        topics: Sequence[str] = (),
        category: str = "general",
        priority: PriorityName = "normal",
        ordering_key: str = "",
        ttl: float | None = None,
        size: int = 0,
        limit: float = 60.0,
        twins: int = 1,
        repeat_after: Callable[[], Awaitable[None]] | None = None,
        clash: bool = False,
    ) -> str | None:
        """Publishes content `number` until it is answered, for so many seconds at most; returns its id.

        Args:
            recipients: whom it is for.
            number: of the content.
            topics: instead of by name it goes to whoever subscribes to one of them: these recipients.
            category: of the event.
            priority: of the event.
            ordering_key: of the event.
            ttl: seconds after which it does not matter any more; None: it always does.
            size: of the content, characters at least.
            limit: seconds.
            twins: so many calls with the same request are made side by side each time.
            repeat_after: once it is answered this is awaited, and the same request is made again.
            clash: once it is answered another content is sent under its request id.
        """
        nonce = f"{self._name}.{number}"
        text = canary.body(self._secret, recipients, nonce, size)
        event = build_event(
            category=category,
            to=() if topics else list(recipients),
            topics=topics,
            title=f"event {number}",
            body=text,
            priority=priority,
            ordering_key=ordering_key,
            ttl=ttl,
        )
        prepared = self._publisher.prepare(event)
        expire = None if ttl is None else self._now() + ttl
        forgotten = await self._count_forgotten() if clash else 0.0
        self.open += 1
        try:
            async with asyncio.timeout(limit):
                while True:
                    answers = await asyncio.gather(
                        *(
                            self._try(
                                prepared,
                                nonce,
                                text,
                                recipients,
                                category=category,
                                priority=priority,
                                key=ordering_key,
                                expire=expire,
                            )
                            for _ in range(twins)
                        )
                    )
                    for answer in filter(None, answers):
                        self.accepted[answer] = tuple(recipients)
                        self.sent[answer] = Sent(category, _URGENCY[priority], expire)
                        if clash:
                            await self._send_other(prepared.request_id, nonce, recipients, forgotten)
                        if repeat_after is None:
                            return answer
                        # What comes between the answer and the repeat happens once.
                        await repeat_after()
                        repeat_after = None
                        break
                    if all(answer == _OVER for answer in answers):
                        return None
                    await asyncio.sleep(_RETRY_PAUSE_S)
        except TimeoutError:
            return None
        finally:
            self.open -= 1

    def has_end(self, notification_id: str) -> bool:
        """Whether an accepted event matters for a while only; what is not known to be accepted may."""
        return notification_id not in self.sent or self.sent[notification_id].expire is not None

    async def _count_forgotten(self) -> float:
        return 0.0 if self._forgotten is None else await self._forgotten()

    async def _send_other(self, request_id: str, nonce: str, recipients: Sequence[str], forgotten: float) -> None:
        """Sends another content under a request id that is taken, and writes down what became of it.

        It may pass where ingest did without its request log meanwhile: then it is an event of its own. That is known
        only afterwards, so its invoke is written down together with its end.
        """
        other = f"{nonce}.other"
        text = canary.body(self._secret, recipients, other)
        event = build_event(category="general", to=list(recipients), title="another content", body=text)
        self._tries += 1
        invoke = history.PublishInvoke(
            at=self._now(),
            operation=f"{self._name}-{self._tries}",
            tenant=self._tenant,
            producer=self._name,
            request_id=request_id,
            has_time=True,
            nonce=other,
            digest=canary.digest(text),
            category="general",
            recipients=tuple(recipients),
            priority=_URGENCY["normal"],
        )
        end: history.PublishOk | history.PublishFail | history.PublishInfo
        retries = self._publisher.stats.retries
        try:
            receipt = await self._publisher.publish(self._publisher.prepare(event, request_id=request_id))
        except AlreadyExists as failure:
            self.refused += 1
            certain = self._publisher.stats.retries == retries
            kind = history.PublishFail if certain else history.PublishInfo
            end = kind(at=self._now(), operation=invoke.operation, reason=failure.reason)
        except Failure as failure:
            if isinstance(failure, _REFUSALS):
                raise
            end = history.PublishInfo(at=self._now(), operation=invoke.operation, reason=failure.reason)
        else:
            end = history.PublishOk(at=self._now(), operation=invoke.operation, notification_id=receipt.event_id)
            self.accepted[receipt.event_id] = tuple(recipients)
            self.sent[receipt.event_id] = Sent("general", _URGENCY["normal"], None)
            if await self._count_forgotten() != forgotten:
                invoke = msgspec.structs.replace(invoke, request_id="")
        self._recorder.add(invoke)
        self._recorder.add(end)

    async def _try(
        self,
        prepared: PreparedEvent,
        nonce: str,
        text: str,
        recipients: Sequence[str],
        *,
        category: str,
        priority: PriorityName,
        key: str,
        expire: float | None,
    ) -> str | None:
        self._tries += 1
        operation = f"{self._name}-{self._tries}"
        self._recorder.add(
            history.PublishInvoke(
                at=self._now(),
                operation=operation,
                tenant=self._tenant,
                producer=self._name,
                request_id=prepared.request_id,
                has_time=True,
                nonce=nonce,
                digest=canary.digest(text),
                category=category,
                recipients=tuple(recipients),
                priority=_URGENCY[priority],
                ordering_key=key,
                expire=expire,
            )
        )
        retries = self._publisher.stats.retries
        try:
            receipt = await self._publisher.publish(prepared)
        except Failure as failure:
            # What was refused for what it is was refused before anything was done; of the rest nobody knows. Nor is
            # anything known of the SDK's earlier tries: one without an answer may have been accepted.
            certain = isinstance(failure, _REFUSALS) and self._publisher.stats.retries == retries
            kind = history.PublishFail if certain else history.PublishInfo
            self._recorder.add(
                kind(at=self._now(), operation=operation, reason=failure.reason or type(failure).__name__)
            )
            if failure.reason == "EVENT_EXPIRED":
                return _OVER
            if kind is history.PublishFail:
                raise
            return None
        self._recorder.add(
            history.PublishOk(
                at=self._now(), operation=operation, notification_id=receipt.event_id, repeated=receipt.replayed
            )
        )
        return receipt.event_id

"""A client without habits: it says exactly what a test tells it to, and remembers every frame that came.

The SDK reconnects, acks and drops duplicates by itself; here nothing happens by itself but reading. Must not judge what
it got.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Protocol
from urllib.parse import urlsplit

import msgspec
import websockets
from google.protobuf import json_format
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from heliograph.gateway.v1.client_frames_pb2 import (
    ClientMark,
    ConnectRequest,
    ConnectResponse,
    GoAway,
    Hello,
    Notify,
    Ping,
    Pong,
    Reauthenticate,
    Replayed,
    Subscribe,
    Unsubscribe,
)
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationRef, NotificationState
from mesh.ids import from_text
from tests.support.wait import until

Form = Literal["json", "proto", "grpc"]

# Generous: two cores may be busy with other things.
LIMIT_S = 15.0
# What a narrow device takes off the wire by itself: small segments keep the peer's own buffer small too.
_NARROW_BYTES, _NARROW_SEGMENT = 4_096, 536
_WINDOW_ROWS = 100


class Seen(msgspec.Struct, frozen=True):
    """One notification in a device's copy."""

    revision: int
    state: int


class Ended(Exception):
    """The connection is over, with this close code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Pipe(Protocol):
    """What carries a device's frames."""

    async def send(self, request: ConnectRequest) -> None:
        """Sends a frame."""
        ...

    async def receive(self) -> ConnectResponse:
        """Waits for a frame; raises Ended when none follows."""
        ...

    async def close(self) -> None:
        """Leaves in order."""
        ...

    def cut(self) -> None:
        """Breaks off without a word."""
        ...


class WebSocketPipe:
    """A WebSocket."""

    def __init__(self, connection: ClientConnection, form: Form) -> None:
        self._connection = connection
        self._form = form

    async def send(self, request: ConnectRequest) -> None:
        """See `Pipe`."""
        binary = self._form == "proto"
        await self._connection.send(request.SerializeToString() if binary else json_format.MessageToJson(request))

    async def receive(self) -> ConnectResponse:
        """See `Pipe`."""
        try:
            payload = await self._connection.recv()
        except ConnectionClosed:
            code = self._connection.close_code
            raise Ended(1006 if code is None else code) from None
        return _decode(payload)

    async def close(self) -> None:
        """See `Pipe`."""
        await self._connection.close()

    def cut(self) -> None:
        """See `Pipe`."""
        self._connection.transport.abort()


class Device:
    """One connection of one device.

    Attributes:
        frames: everything that came, in order.
        closed: the code it was closed with; None while it is open.
        answers: pings.
    """

    def __init__(self, pipe: Pipe) -> None:
        self.frames: list[ConnectResponse] = []
        self.closed: int | None = None
        self.answers = True
        self._pipe = pipe
        self._number = 0
        self._reading = asyncio.create_task(self._read())

    # ------------------------------------------------------------ what it says

    async def hello(
        self,
        token: str,
        device_id: str,
        *,
        cursor: str = "",
        received: Sequence[tuple[str, int]] = (),
        unconfirmed: Sequence[ClientMark] = (),
    ) -> None:
        """Opens the session."""
        refs = [NotificationRef(notification_id=id_, revision=revision) for id_, revision in received]
        hello = Hello(
            token=token, device_id=device_id, cursor=cursor, received_refs=refs, unconfirmed_marks=unconfirmed
        )
        await self._say(ConnectRequest(hello=hello))

    async def mark(self, kind: MarkKind.ValueType, *ids: str) -> int:
        """Acks or marks; returns the number that its confirmation will name."""
        return await self._say(ConnectRequest(mark=mark_of(kind, *ids)))

    async def reauthenticate(self, token: str) -> None:
        """Shows a fresh token."""
        await self._say(ConnectRequest(reauthenticate=Reauthenticate(token=token)))

    async def subscribe(self, *topic_ids: str) -> int:
        """Begins standing interests; returns the number that its confirmation will name."""
        return await self._say(ConnectRequest(subscribe=Subscribe(topic_ids=topic_ids)))

    async def unsubscribe(self, *topic_ids: str) -> int:
        """Ends them; returns the number that its confirmation will name."""
        return await self._say(ConnectRequest(unsubscribe=Unsubscribe(topic_ids=topic_ids)))

    async def ping(self) -> None:
        """Asks for a sign of life."""
        await self._say(ConnectRequest(ping=Ping()))

    async def _say(self, request: ConnectRequest) -> int:
        self._number += 1
        request.frame_number = self._number
        await self._pipe.send(request)
        return self._number

    # ------------------------------------------------------------ what came

    @property
    def session_id(self) -> str:
        """The session's id, which begins with its node's."""
        return next(frame.welcome.session_id for frame in self.frames if frame.HasField("welcome"))

    @property
    def node_id(self) -> str:
        """The gateway node that holds the session."""
        return self.session_id.rpartition("-")[0]

    @property
    def notifies(self) -> list[Notify]:
        """Every notification frame."""
        return [frame.notify for frame in self.frames if frame.HasField("notify")]

    @property
    def ids(self) -> list[str]:
        """The id of every notification frame, in order."""
        return [notify.notification.notification_id for notify in self.notifies]

    @property
    def titles(self) -> list[str]:
        """The title of every notification frame, in order."""
        return [notify.notification.content.title for notify in self.notifies]

    @property
    def checkpoints(self) -> list[Replayed]:
        """Every checkpoint."""
        return [frame.replayed for frame in self.frames if frame.HasField("replayed")]

    @property
    def farewells(self) -> list[GoAway]:
        """Every "go away"."""
        return [frame.go_away for frame in self.frames if frame.HasField("go_away")]

    @property
    def unread(self) -> int | None:
        """The unread number that came last, by whichever frame."""
        found = None
        for frame in self.frames:
            if frame.HasField("unread"):
                found = frame.unread.unread_count
            elif frame.HasField("replayed"):
                found = frame.replayed.unread.unread_count
        return found

    @property
    def confirmed(self) -> int:
        """The last frame number that was confirmed."""
        return max((frame.confirmed.frame_number for frame in self.frames if frame.HasField("confirmed")), default=0)

    @property
    def refusals(self) -> list[str]:
        """The reason of every refused frame."""
        return [frame.refused.refusal.reason for frame in self.frames if frame.HasField("refused")]

    def states(self, id_: str) -> list[int]:
        """Returns every state that was said of a notification since it came, in order."""
        found: list[int] = []
        for frame in self.frames:
            refs = frame.changed.refs if frame.HasField("changed") else ()
            if any(ref.notification_id == id_ for ref in refs):
                found.append(frame.changed.state)
        return found

    def copy(self, before: dict[str, Seen] | None = None, *, checkpoint: int | None = None) -> dict[str, Seen]:
        """Returns the copy of the inbox that a client of the contract would hold by now.

        Args:
            before: what it held when it connected.
            checkpoint: what it held when this one came, counted from one.
        """
        kept: dict[str, Seen] = dict(before or {})
        since: set[str] = set()
        for frame in self.frames if checkpoint is None else self._frames_to(checkpoint):
            if frame.HasField("notify"):
                note = frame.notify.notification
                since.add(note.notification_id)
                kept[note.notification_id] = Seen(note.revision, frame.notify.state)
            elif frame.HasField("changed"):
                for ref in frame.changed.refs:
                    since.add(ref.notification_id)
                    if ref.notification_id in kept:
                        kept[ref.notification_id] = Seen(kept[ref.notification_id].revision, frame.changed.state)
            elif frame.HasField("replayed") and frame.replayed.reload:
                kept = {id_: seen for id_, seen in kept.items() if id_ in since}
        return kept

    def _frames_to(self, checkpoint: int) -> list[ConnectResponse]:
        ends = [index for index, frame in enumerate(self.frames) if frame.HasField("replayed")]
        return self.frames[: ends[checkpoint - 1] + 1]

    # ------------------------------------------------------------ waiting

    async def ready(self, count: int = 1) -> Replayed:
        """Waits for a checkpoint and returns it."""
        await until(
            lambda: len(self.checkpoints) >= count or self.closed is not None, LIMIT_S, f"checkpoint {count} has come"
        )
        assert len(self.checkpoints) >= count, f"closed with {self.closed}: {self.refusals}"
        return self.checkpoints[count - 1]

    async def has(self, *ids: str) -> None:
        """Waits until notifications have come."""
        await until(lambda: set(ids) <= set(self.ids), LIMIT_S, f"{len(ids)} notifications have come")

    async def has_confirmed(self, number: int) -> None:
        """Waits until marks are durable."""
        await until(lambda: self.confirmed >= number, LIMIT_S, f"frame {number} is confirmed")

    async def is_told(self, id_: str, state: NotificationState.ValueType) -> None:
        """Waits until a change of state was said."""
        name = NotificationState.Name(state)
        await until(lambda: state in self.states(id_), LIMIT_S, f"{id_} is said to be {name}")

    async def counts_unread(self, count: int) -> None:
        """Waits until the server's number is this."""
        await until(lambda: self.unread == count, LIMIT_S, f"the unread number is {count}")

    async def is_closed(self, limit_s: float = LIMIT_S) -> int:
        """Waits for the end and returns the close code."""
        await until(lambda: self.closed is not None, limit_s, "the connection is closed")
        assert self.closed is not None
        return self.closed

    # ------------------------------------------------------------ reading

    def stop_reading(self) -> None:
        """Leaves everything that comes from now on in the socket."""
        self._reading.cancel()

    def go_on_reading(self) -> None:
        """Reads again."""
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Leaves."""
        self._reading.cancel()
        await self._pipe.close()

    def cut(self) -> None:
        """Breaks the connection without a word, as when the network is gone."""
        self._pipe.cut()

    async def _read(self) -> None:
        try:
            while True:
                self.frames.append(await self._pipe.receive())
                if self.answers and self.frames[-1].HasField("ping"):
                    await self._say(ConnectRequest(pong=Pong()))
        except Ended as ended:
            self.closed = ended.code


def mark_of(kind: MarkKind.ValueType, *ids: str) -> ClientMark:
    """Returns an ack or a mark."""
    return ClientMark(kind=kind, refs=[NotificationRef(notification_id=id_) for id_ in ids])


def checksum(shown: dict[str, Seen]) -> int:
    """Returns what a checkpoint must say of a complete copy, of which this is the window."""
    read = NotificationState.NOTIFICATION_STATE_READ
    lines = [f"{id_} {seen.revision} {int(seen.state == read)}\n" for id_, seen in sorted(shown.items())]
    value = zlib.crc32("".join(lines).encode())
    return value - (1 << 32) if value >= 1 << 31 else value


def window(copy: dict[str, Seen]) -> dict[str, Seen]:
    """Returns what of a copy is shown: the newest that are not hidden, of high priority and of the rest."""
    hidden = NotificationState.NOTIFICATION_STATE_HIDDEN
    visible = sorted((id_ for id_, seen in copy.items() if seen.state != hidden), reverse=True)
    high = [id_ for id_ in visible if from_text(id_)[-1] & 1]
    rest = [id_ for id_ in visible if not from_text(id_)[-1] & 1]
    return {id_: copy[id_] for id_ in (*high[:_WINDOW_ROWS], *rest[:_WINDOW_ROWS])}


@asynccontextmanager
async def connected(
    url: str, *, form: Form = "proto", context: ssl.SSLContext | None = None, narrow: bool = False
) -> AsyncIterator[Device]:
    """Opens a connection; hello is not said yet.

    Args:
        url: of a gateway node or the edge.
        form: JSON text or serialised messages.
        context: certificates for "wss://".
        narrow: give the socket so little room that the peer notices at once when nothing is read.
    """
    connection = await websockets.connect(
        url,
        subprotocols=[Subprotocol(f"heliograph.v1.{form}")],
        ssl=context,
        compression=None,
        ping_interval=None,
        max_queue=1 if narrow else 64,
        open_timeout=LIMIT_S,
        close_timeout=1.0,
        proxy=None,
        sock=await _narrow_socket(url) if narrow else None,
    )
    device = Device(WebSocketPipe(connection, form))
    try:
        yield device
    finally:
        with contextlib.suppress(TimeoutError):
            await device.close()


async def _narrow_socket(url: str) -> socket.socket:
    parts = urlsplit(url)
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NARROW_BYTES)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _NARROW_SEGMENT)
    await asyncio.get_running_loop().sock_connect(made, (parts.hostname, parts.port))
    return made


def _decode(payload: str | bytes) -> ConnectResponse:
    if isinstance(payload, bytes):
        return ConnectResponse.FromString(payload)
    return json_format.Parse(payload, ConnectResponse())

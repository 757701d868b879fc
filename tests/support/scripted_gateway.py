"""A gateway whose sessions a test plays itself, over a real socket, and its frames. It must not follow rules."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Literal

from google.protobuf import json_format
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from heliograph.gateway.v1.client_frames_pb2 import (
    Changed,
    Confirmed,
    ConnectRequest,
    ConnectResponse,
    GoAway,
    Notify,
    Refused,
    Replayed,
    Welcome,
)
from heliograph.type.v1.notification_pb2 import (
    Content,
    Notification,
    NotificationRef,
    NotificationState,
    Priority,
    Unread,
)
from heliograph.type.v1.refusal_pb2 import Refusal
from mesh.errors import Failure, describe
from mesh.ids import derive_id, to_text

BASE_MS = 1_700_000_000_000
_LIMIT_S = 5.0


def id_of(number: int, *, high: bool = False) -> str:
    """The id of notification `number`; a larger number is younger."""
    return to_text(derive_id(BASE_MS + number, [b"%d" % number], high))


# ---------------------------------------------------------------- what a gateway says


def welcome(*, heartbeat: int = 120, now: float = 1_700_000_000.0, expires: float | None = None) -> ConnectResponse:
    """The answer to hello."""
    message = Welcome(session_id="s1")
    message.heartbeat_interval.seconds = heartbeat
    message.server_time.FromMilliseconds(int(now * 1000))
    if expires is not None:
        message.token_expire_time.FromMilliseconds(int(expires * 1000))
    return ConnectResponse(welcome=message)


def notify(
    number: int,
    *,
    revision: int = 1,
    state: NotificationState.ValueType = NotificationState.NOTIFICATION_STATE_UNSPECIFIED,
    high: bool = False,
    expires: float | None = None,
) -> ConnectResponse:
    """A notification; with a state as in a replay, without one live."""
    message = Notification(
        notification_id=id_of(number, high=high),
        revision=revision,
        category="general",
        priority=Priority.PRIORITY_HIGH if high else Priority.PRIORITY_NORMAL,
        content=Content(title=f"title {number}", body="body", link="/x", data_json='{"a":1}'),
        producer_id="demo",
    )
    message.event_time.FromMilliseconds(BASE_MS + number)
    if expires is not None:
        message.expire_time.FromMilliseconds(int(expires * 1000))
    return ConnectResponse(notify=Notify(notification=message, state=state))


def checksum_of(rows: Iterable[tuple[str, int, bool]]) -> int:
    """The checksum of a window of (id, revision, read)."""
    value = zlib.crc32("".join(f"{id_} {revision} {int(read)}\n" for id_, revision, read in sorted(rows)).encode())
    return value - (1 << 32) if value >= 1 << 31 else value


def replayed(
    cursor: str,
    rows: Iterable[tuple[str, int, bool]] = (),
    *,
    reload: bool = False,
    unread: int | None = None,
    head_s: int = 0,
) -> ConnectResponse:
    """A checkpoint over a window of (id, revision, read)."""
    window = list(rows)
    message = Replayed(cursor=cursor, reload=reload, item_count=len(window), checksum=checksum_of(window))
    if unread is not None:
        message.unread.unread_count = unread
        message.unread.head_time.seconds = head_s
    return ConnectResponse(replayed=message)


def changed(state: NotificationState.ValueType, *numbers: int) -> ConnectResponse:
    """New state of notifications."""
    refs = [NotificationRef(notification_id=id_of(number)) for number in numbers]
    return ConnectResponse(changed=Changed(refs=refs, state=state))


def unread(count: int, head_s: int) -> ConnectResponse:
    """The number, counted at a head."""
    message = Unread(unread_count=count)
    message.head_time.seconds = head_s
    return ConnectResponse(unread=message)


def confirmed(number: int) -> ConnectResponse:
    """Marks up to this frame are durable."""
    return ConnectResponse(confirmed=Confirmed(frame_number=number))


def refused(number: int, failure: Failure) -> ConnectResponse:
    """A frame was refused."""
    return ConnectResponse(refused=Refused(frame_number=number, refusal=describe(failure, Refusal())))


def go_away(reason: str, *, delay: int, reconnect: bool = True) -> ConnectResponse:
    """The session is about to end."""
    message = GoAway(reason=reason, reconnect=reconnect)
    message.reconnect_delay.seconds = delay
    return ConnectResponse(go_away=message)


# ---------------------------------------------------------------- the gateway


class ScriptedSession:
    """The server's end of one connection."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._text = connection.subprotocol == "heliograph.v1.json"

    async def read(self) -> ConnectRequest:
        """The client's next frame."""
        async with asyncio.timeout(_LIMIT_S):
            message = await self.connection.recv()
        assert isinstance(message, str) == self._text
        if isinstance(message, str):
            return json_format.Parse(message, ConnectRequest())
        return ConnectRequest.FromString(message)

    async def say(self, *frames: ConnectResponse) -> None:
        """Writes frames."""
        for frame in frames:
            await self.connection.send(
                json_format.MessageToJson(frame) if self._text else frame.SerializeToString(),
            )

    async def close(self, code: int, reason: str = "") -> None:
        """Ends the session."""
        await self.connection.close(code, reason)


class ScriptedGateway:
    """Listens on a Unix socket.

    Attributes:
        url: what a subscriber connects to.
        refusals: answers to the next opening requests instead of a session: status code, headers, body.
        requests: the opening requests that came.
    """

    def __init__(self, path: Path) -> None:
        self.url = f"unix:{path}"
        self.refusals: list[tuple[int, dict[str, str], str]] = []
        self.requests: list[Request] = []
        self.subprotocols: list[Literal["heliograph.v1.proto", "heliograph.v1.json"]] = [
            "heliograph.v1.proto",
            "heliograph.v1.json",
        ]
        self._sessions: asyncio.Queue[ScriptedSession] = asyncio.Queue()

    async def session(self) -> ScriptedSession:
        """The next connection."""
        async with asyncio.timeout(_LIMIT_S):
            return await self._sessions.get()

    async def begin(self, *frames: ConnectResponse) -> tuple[ScriptedSession, ConnectRequest]:
        """The next connection after its hello, answered with welcome and these frames."""
        session = await self.session()
        hello = await session.read()
        await session.say(welcome(), *frames)
        return session, hello

    async def accept(self, connection: ServerConnection) -> None:
        """Hands a connection to the test and keeps it until it ends."""
        self._sessions.put_nowait(ScriptedSession(connection))
        await connection.wait_closed()

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuses an opening when the test wants it."""
        self.requests.append(request)
        if not self.refusals:
            return None
        code, headers, body = self.refusals.pop(0)
        response = connection.respond(HTTPStatus(code), body)
        for name, value in headers.items():
            response.headers[name] = value
        return response


@asynccontextmanager
async def scripted_gateway(run_dir: Path) -> AsyncIterator[ScriptedGateway]:
    """A gateway that listens."""
    path = run_dir / "gw.ws"
    gateway = ScriptedGateway(path)
    subprotocols = [Subprotocol(name) for name in gateway.subprotocols]
    async with unix_serve(
        gateway.accept,
        str(path),
        subprotocols=subprotocols,
        process_request=gateway.check,
        compression=None,
        ping_interval=None,
        close_timeout=0.5,
    ):
        yield gateway

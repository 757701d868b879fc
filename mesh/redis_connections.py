"""Connections to one Redis server: few, answers never mixed up, errors in words of ours.

The only importer of redis-py, of which it takes the connection and its parser. Must not know which server owns what:
that is `mesh.redis_routes`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from mesh.errors import StartError
from mesh.stores import Credentials, Host

try:
    from redis import exceptions as raised
    from redis.asyncio.connection import Connection, SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.crc import key_slot
except ImportError as error:
    raise StartError(f"the Redis client is not installed ({error}); pip install 'heliograph[engines]'") from None

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Argument, ...]

# Two are enough to keep a server busy, and few enough that what is asked at once goes together.
CONNECTIONS = 2
LARGEST_PIECE = 500
LONGEST_QUEUE = 20_000
# A server that does not answer for so long is as good as gone.
ANSWER_S = 1.0


class Lost(Exception):
    """No answer: refused, reset, late, or the server is loading.

    Attributes:
        wrong: a person must mend it: password, database, certificate. Another try will not help.
        sent: the commands may have been done.
        silent: the server takes commands and answers none.
    """

    def __init__(self, text: str, *, wrong: bool = False, sent: bool = False, silent: bool = False) -> None:
        super().__init__(text)
        self.wrong = wrong
        self.sent = sent
        self.silent = silent

    def copy(self) -> Lost:
        """Returns the same for another caller."""
        return Lost(str(self), wrong=self.wrong, sent=self.sent, silent=self.silent)


class Refusal(msgspec.Struct, frozen=True):
    """An error that a server answered one command with.

    Attributes:
        code: its first word: MOVED, NOSCRIPT, READONLY, ERR.
        text: what it said, without the code.
        host: where MOVED and ASK point to.
    """

    code: str
    text: str
    host: Host | None = None

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


# What RESP2 answers with: bytes, numbers, nothing, and lists of them.
Reply: TypeAlias = "bytes | int | list[Reply] | Refusal | None"


def slot_of(key: bytes) -> int:
    """Returns the hash slot of a key: of what stands in its first braces, or of all of it."""
    slot: int = key_slot(key)
    return slot


class Access(msgspec.Struct, frozen=True):
    """How to enter a server.

    Attributes:
        database: number; only 0 in a cluster.
        credentials: name and password.
        tls: None for plain text.
    """

    database: int = 0
    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None


class _TlsConnection(SSLConnection):
    """Takes the context as it is: redis-py would make one of its own from files."""

    def __init__(self, *, context: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self._context = context

    def _connection_arguments(self) -> Any:
        return {**super()._connection_arguments(), "ssl": self._context}


class _Waiting(msgspec.Struct, frozen=True, eq=False):
    commands: Sequence[Command]
    answered: asyncio.Future[list[Reply]]


class Server:
    """One address: what is asked while others are under way goes out together, in as few pieces as there are answers.

    Whoever gives a call up takes nothing from the others: what is sent is answered, to nobody if need be. A connection
    whose answers were not all read is dropped, whatever the reason: the next borrower would get them. While a server is
    silent one call at a time tries it, and all others fail at once.
    """

    def __init__(self, host: Host, access: Access, *, answer: float = ANSWER_S) -> None:
        self.host = host
        self._access = access
        self._answer = answer
        self._free: list[Any] = []
        self._queue: deque[_Waiting] = deque()
        self._queued = 0
        self._silent = False
        self._sending = 0
        self._exchanges: set[asyncio.Task[None]] = set()

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Sends commands in one piece and returns an answer for each, in order; refusals are among them.

        Raises:
            Lost: not every answer came.
        """
        if self._queued >= LONGEST_QUEUE:
            raise Lost(f"{self.host}: {self._queued} commands wait already")
        if self._silent and (self._sending or self._queue):
            raise self._silence()
        waiting = _Waiting(commands, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._queued += len(commands)
        if len(self._exchanges) < CONNECTIONS:
            task = asyncio.create_task(self._exchange())
            self._exchanges.add(task)
            task.add_done_callback(self._exchanges.discard)
        return await waiting.answered

    async def close(self) -> None:
        """Gives up what is under way, and closes all connections."""
        exchanges = tuple(self._exchanges)
        for task in exchanges:
            task.cancel()
        if exchanges:
            await asyncio.wait(exchanges)
        while batch := self._take():
            _tell(batch, None, self._closed())
        free, self._free = self._free, []
        for connection in free:
            await connection.disconnect(nowait=True)

    async def _exchange(self) -> None:
        """Sends what waits until nothing does."""
        while batch := self._take():
            if self._silent and self._sending:
                _tell(batch, None, self._silence())
                continue
            lost = self._closed()
            replies: list[Reply] | None = None
            try:
                replies = await self._send([command for one in batch for command in one.commands])
            except Lost as error:
                lost = error
            finally:
                _tell(batch, replies, lost)

    def _silence(self) -> Lost:
        return Lost(f"{self.host}: does not answer", silent=True)

    def _closed(self) -> Lost:
        return Lost(f"{self.host}: the client is closed", sent=True)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        count = 0
        while self._queue and count < LARGEST_PIECE:
            waiting = self._queue.popleft()
            self._queued -= len(waiting.commands)
            # Nobody waits any more for what was given up.
            if not waiting.answered.done():
                batch.append(waiting)
                count += len(waiting.commands)
        return batch

    async def _send(self, commands: Sequence[Command]) -> list[Reply]:
        connection = self._free.pop() if self._free else self._make()
        sent = False
        self._sending += 1
        try:
            async with asyncio.timeout(self._answer):
                await connection.connect()
                sent = True
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                replies = [await _reply(connection) for _ in commands]
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, raised.RedisError | OSError | TimeoutError):
                self._silent = isinstance(error, TimeoutError)
                # What else is kept is most likely dead too; its own clean-up closes it.
                self._free.clear()
                raise _lost(self.host, error, sent=sent) from error
            raise
        finally:
            self._sending -= 1
        self._silent = False
        self._free.append(connection)
        return replies

    # Any: redis-py's connections have half a type.
    def _make(self) -> Any:
        access = self._access
        options: dict[str, Any] = {
            "host": self.host.name,
            "port": self.host.port,
            "db": access.database,
            # Its own limit on a send is a `wait_for`, which swallows cancellations; ours is around all of it.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "driver_info": None,
        }
        if access.credentials is not None:
            options |= {"username": access.credentials.name, "password": access.credentials.password}
        if access.tls is not None:
            return _TlsConnection(context=access.tls, **options)
        return Connection(**options)


def _tell(batch: Sequence[_Waiting], replies: Sequence[Reply] | None, lost: Lost) -> None:
    """Gives each caller its part of the answers, or the reason why there are none."""
    begin = 0
    for one in batch:
        end = begin + len(one.commands)
        if not one.answered.done():
            if replies is None:
                one.answered.set_exception(lost.copy())
            else:
                one.answered.set_result(list(replies[begin:end]))
        begin = end


async def _reply(connection: Any) -> Reply:
    try:
        reply: Reply = await connection.read_response()
    except raised.ResponseError as error:
        return _refusal(error)
    return reply


def _refusal(error: Any) -> Refusal:
    host = None
    if isinstance(error, raised.AskError):
        host = Host(error.host, error.port)
        code = "MOVED" if isinstance(error, raised.MovedError) else "ASK"
        return Refusal(code, str(error), host)
    code = getattr(error, "status_code", None) or ""
    text = str(error)
    if not code:
        code, _, text = text.partition(" ")
    return Refusal(code, text)


# Answers to entering: it speaks, and says no.
_WRONG = (raised.AuthenticationError, raised.AuthorizationError, raised.NoPermissionError, raised.ResponseError)


def _lost(host: Host, error: BaseException, *, sent: bool) -> Lost:
    cause: BaseException | None = error
    said = ""
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Lost(f"{host}: certificate: {cause.verify_message}", wrong=True)
        if isinstance(cause, ssl.SSLError):
            return Lost(f"{host}: TLS: {cause.reason or cause}", wrong=True)
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            said = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, raised.TimeoutError | TimeoutError):
        return Lost(f"{host}: no answer in time", sent=sent, silent=True)
    text = said or str(error) or type(error).__name__
    return Lost(f"{host}: {' '.join(text.split())}", wrong=isinstance(error, _WRONG), sent=sent)

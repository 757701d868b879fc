"""Connections to one Redis server: bounded, never shared in the middle of an answer, errors in words of ours.

The only importer of redis-py, of which it takes the connection and its parser. Must not know which server owns what:
that is `mesh.redis_routes`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
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

CONNECTIONS = 32
# A server that does not answer for so long is as good as gone.
ANSWER_S = 1.0


class Lost(Exception):
    """No answer: refused, reset, late, or the server is loading.

    Attributes:
        wrong: a person must mend it: password, database, certificate. Another try will not help.
        sent: the commands may have been done.
    """

    def __init__(self, text: str, *, wrong: bool = False, sent: bool = False) -> None:
        super().__init__(text)
        self.wrong = wrong
        self.sent = sent


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


class Server:
    """Connections to one address, made when they are needed, kept, at most `CONNECTIONS`; who comes later waits.

    A connection whose answers were not all read is dropped, whatever the reason: the next borrower would get them.
    """

    def __init__(self, host: Host, access: Access, *, answer: float = ANSWER_S) -> None:
        self.host = host
        self._access = access
        self._answer = answer
        self._free: list[Any] = []
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Sends commands in one piece and returns an answer for each, in order; refusals are among them.

        Raises:
            Lost: not every answer came.
        """
        async with self._places:
            connection = self._free.pop() if self._free else self._make()
            sent = False
            try:
                await connection.connect()
                sent = True
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                replies = [await _reply(connection) for _ in commands]
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, raised.RedisError | OSError | TimeoutError):
                    # What else is kept is most likely dead too.
                    self._drop_free()
                    raise _lost(self.host, error, sent=sent) from error
                raise
            self._free.append(connection)
            return replies

    async def close(self) -> None:
        """Closes what is kept."""
        free, self._free = self._free, []
        for connection in free:
            await connection.disconnect(nowait=True)

    def _drop_free(self) -> None:
        free, self._free = self._free, []
        for connection in free:
            # Its own clean-up closes the socket; nothing is awaited in an error's path.
            del connection

    # Any: redis-py's connections have half a type.
    def _make(self) -> Any:
        access = self._access
        options: dict[str, Any] = {
            "host": self.host.name,
            "port": self.host.port,
            "db": access.database,
            "socket_timeout": self._answer,
            "socket_connect_timeout": self._answer,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "driver_info": None,
        }
        if access.credentials is not None:
            options |= {"username": access.credentials.name, "password": access.credentials.password}
        if access.tls is not None:
            return _TlsConnection(context=access.tls, **options)
        return Connection(**options)


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
        return Lost(f"{host}: no answer in time", sent=sent)
    text = said or str(error) or type(error).__name__
    return Lost(f"{host}: {' '.join(text.split())}", wrong=isinstance(error, _WRONG), sent=sent)

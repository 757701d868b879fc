"""PostgreSQL: a pool of connections to one schema, and what its failures mean. The only importer of asyncpg.

A connection is used only at a server that takes writes: a standby would answer with what was true some time ago, and
nobody reads that here. Connections that break are replaced by the next call that needs one, so a server that was
restarted, or a name that now leads to another primary, needs nobody's help.

It must not know any table: stores bring their statements and migrations (`mesh.postgres_schema`).
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec

from mesh.errors import StartError, Unavailable
from mesh.stores import EngineUrl, Host, parse_url

try:
    import asyncpg
except ImportError:
    raise StartError("PostgreSQL needs a package that is not installed; pip install 'heliograph[engines]'") from None

# A row as the driver has it: it is a sequence of the values of its columns.
Row: TypeAlias = Sequence[Any]

SCHEME: Final = "postgresql"
KNOWN: Final = "postgresql://host:port,host:port/DATABASE?schema=NAME"
OPTIONS: Final = ("schema", "role", "connections")
OLDEST: Final = 130000

# A call is over within this, waiting for a connection included: the server gives up first, so that nothing that was
# told to have failed is written later.
CALL_LIMIT_S: Final = 5.0
_STATEMENT_LIMIT_MS: Final = 4_000
_CONNECT_LIMIT_S: Final = 4.0
_IDLE_S: Final = 300.0
_MOST_CONNECTIONS: Final = 100

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")

# What the server says when it, and not the statement, is to blame; by SQLSTATE, the longest beginning counts.
_ADVICE: Final = {
    "08": "it goes on when the server is back",
    "25006": "the server takes no writes: name the primary, or switch its default_transaction_read_only off",
    "28": "correct name and password in the file that credentials= names, or what pg_hba.conf allows",
    "3D000": "make the database with `heliograph stores create`",
    "3F000": "look with `heliograph stores check`",
    "40": "repeat it",
    "42501": "look with `heliograph stores check` and grant what is missing",
    "42703": "look with `heliograph stores check`",
    "42883": "look with `heliograph stores check`",
    "42P01": "look with `heliograph stores check`",
    "53": "give the server what it lacks",
    "53100": "make room on the server's disk",
    "53300": "raise the server's max_connections, or lower connections=",
    "55": "repeat it",
    "57": "it goes on when the server is back",
    "57014": "the server is overloaded, or something holds a lock",
    "58": "look into the server's log",
    "XX": "look into the server's log",
}
# The statement was taken back as a whole: nothing of it is stored.
_NOT_DONE: Final = ("25", "28", "3D", "3F", "40", "42", "53", "55", "57014", "57P03")


class PostgresError(Unavailable):
    """The server cannot be reached or cannot do it now: one line with the place, the cause and what to do.

    `unknown` is True when what was asked for may have happened all the same.
    """

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(" ".join(message.split()), reason="STORE_UNAVAILABLE")
        self.unknown = unknown


class Place(msgspec.Struct, frozen=True):
    """A schema of a database, and how to get there.

    Attributes:
        url: as it was given.
        schema: where the tables are.
        role: who we are there when no credentials are named: by certificate, or where the server trusts.
        connections: most of them at once.
    """

    url: EngineUrl
    schema: str
    role: str
    connections: int


def parse_place(setting: str, text: str) -> Place:
    """Reads `postgresql://h:p,h:p/DATABASE?schema=…&role=…&connections=…`, with the options of `mesh.stores`.

    Raises:
        StartError: one line: the setting, what is wrong, and the form.
    """
    url = parse_url(setting, text, schemes=(SCHEME,), default_port=5432, known=KNOWN, options=OPTIONS)
    if not url.name or "/" in url.name:
        raise StartError(f"{setting}: {text!r} names no database; known: {KNOWN}")
    schema = url.options.get("schema", "heliograph")
    if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise StartError(f"{setting}: schema={schema}: must be small letters, digits and _, at most 63; known: {KNOWN}")
    connections = url.options.get("connections", "8")
    if not (connections.isascii() and connections.isdigit() and 1 <= int(connections) <= _MOST_CONNECTIONS):
        raise StartError(f"{setting}: connections={connections}: must be 1 to {_MOST_CONNECTIONS}")
    return Place(url, schema, url.options.get("role", "postgres"), int(connections))


# ---------------------------------------------------------------- failures


def failure_of(where: str, error: Exception, *, sent: bool = True) -> Exception:
    """Returns what an error of the driver means: a `PostgresError`, or the error itself when the statement is wrong.

    Args:
        where: the place, for the text.
        error: as the driver raised it.
        sent: the statement may have reached the server.
    """
    return _outage(where, error, sent) or error


def _outage(where: str, error: Exception, sent: bool) -> PostgresError | None:
    if isinstance(error, asyncpg.PostgresError):
        state: str = error.sqlstate or ""
        advice = _ADVICE.get(state) or _ADVICE.get(state[:2])
        undone = state.startswith(_NOT_DONE)
        return PostgresError(f"{where}: {error}; {advice}", unknown=sent and not undone) if advice else None
    if isinstance(error, TimeoutError):
        advice = "look whether it is reachable and not overloaded"
        return PostgresError(f"{where}: no answer in time; {advice}", unknown=sent)
    if isinstance(error, asyncpg.exceptions.TargetServerAttributeNotMatched):
        return PostgresError(f"{where}: none of the servers takes writes; name the primary")
    if isinstance(error, OSError) or _is_lost(error):
        text = str(error) or type(error).__name__
        return PostgresError(f"{where}: {text}; it goes on when the server is back", unknown=sent)
    return None


@contextmanager
def _translated(where: str, *, sent: bool = True) -> Iterator[None]:
    """Turns whatever a server or a connection says into a `PostgresError`, wrong statements too."""
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _outage(where, error, sent) or PostgresError(f"{where}: {error}") from error
    except Exception as error:
        failure = failure_of(where, error, sent=sent)
        if failure is error:
            raise
        raise failure from error


def _is_lost(error: BaseException) -> bool:
    # The driver's own complaints; a ValueError among them is about what we gave it.
    own = (asyncpg.exceptions.InterfaceError, asyncpg.exceptions.InternalClientError)
    return isinstance(error, own) and not isinstance(error, ValueError)


# ---------------------------------------------------------------- connections


class Session:
    """One connection, for upkeep; `connect` makes it. Whatever the server refuses is a `PostgresError`."""

    def __init__(self, connection: Any, where: str) -> None:
        self._connection = connection  # Any: the driver has no types
        self._where = where

    async def rows(self, statement: str, *values: object) -> Sequence[Row]:
        """Runs one statement.

        Raises:
            PostgresError: it was refused, or the connection broke.
        """
        with _translated(self._where):
            found: Sequence[Row] = await self._connection.fetch(statement, *values)
        return found

    async def run(self, script: str) -> None:
        """Runs statements that answer nothing; several are one transaction.

        Raises:
            PostgresError: one was refused, or the connection broke.
        """
        with _translated(self._where):
            await self._connection.execute(script)

    async def close(self) -> None:
        """Ends it, politely if the server answers within a second."""
        try:
            await self._connection.close(timeout=1.0)
        except Exception:  # whatever it is about, the connection is gone
            self._connection.terminate()


async def connect(place: Place, *, database: str = "") -> Session:
    """Opens one connection without limits of time for its statements: to the primary, else to any that answers.

    Args:
        place: where.
        database: another one than the place's.

    Raises:
        PostgresError: the server cannot be reached or refuses us.
        StartError: a file that the URL names cannot be used.
    """
    where = place.url.text
    words = {"database": database} if database else {}
    with _translated(where, sent=False):
        try:
            connection, _ = await _seek(place, place.url.hosts, words)
        except asyncpg.exceptions.TargetServerAttributeNotMatched:
            connection, _ = await _seek(place, place.url.hosts, {**words, "target_session_attrs": "any"})
    return Session(connection, where)


async def _seek(place: Place, hosts: Sequence[Host], words: Mapping[str, Any]) -> tuple[Any, Host]:
    """Connects to the first of some hosts that is a primary; each has its part of the time, as a dead one is silent.

    Files are read each time: a password or certificate that is replaced needs no restart.
    """
    arguments = {**_arguments(place), "timeout": _CONNECT_LIMIT_S / len(hosts), **words}
    errors: list[Exception] = []
    for host in hosts:
        try:
            return await asyncpg.connect(host=host.name, port=host.port, **arguments), host
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            errors.append(error)
    # A server that refuses us says more than one that is away, and that more than a standby.
    raise max(errors, key=_telling)


def _telling(error: Exception) -> int:
    if isinstance(error, asyncpg.exceptions.TargetServerAttributeNotMatched):
        return 0
    return 2 if isinstance(error, asyncpg.PostgresError) else 1


def _arguments(place: Place) -> dict[str, Any]:
    """Everything that the driver would otherwise take from the environment and from files of its own choice."""
    credentials = place.url.credentials()
    return {
        "user": credentials.name if credentials else place.role,
        "password": credentials.password if credentials else "",
        "database": place.url.name,
        "ssl": place.url.tls() or False,
        # Of a single host each connection learns by itself what it reached, and says so in words of ours.
        "target_session_attrs": "primary" if len(place.url.hosts) > 1 else "any",
        "server_settings": _session(place, limit_ms=0),
    }


def _session(place: Place, *, limit_ms: int) -> dict[str, str]:
    return {
        "application_name": "heliograph",
        "search_path": place.schema,
        # The functions of stores wait for a lock and then look: they must see what happened meanwhile.
        "default_transaction_isolation": "read committed",
        "jit": "off",
        "statement_timeout": str(limit_ms),
    }


class Pool:
    """Connections to one schema, made when they are needed; `open` before use, `close` at the end."""

    def __init__(self, place: Place, *, greet: Callable[[Session], Awaitable[None]] | None = None) -> None:
        """Connects nothing yet.

        Args:
            place: where.
            greet: asked of each new connection before its first use.
        """
        self._place = place
        self._where = place.url.text
        self._greet = greet
        self._hosts = deque(place.url.hosts)
        self._pool: Any = None  # Any: the driver has no types

    async def open(self) -> None:
        """Connects once.

        Raises:
            PostgresError: the server cannot be reached, refuses us, or takes no writes; or a file cannot be used.
        """
        self._pool = asyncpg.create_pool(
            connect=self._connect,
            min_size=0,
            max_size=self._place.connections,
            max_inactive_connection_lifetime=_IDLE_S,
            init=self._begin,
            # Nobody leaves anything behind in a session, so nothing has to be asked of the server between two calls.
            reset=_leave,
        )
        await self._pool
        try:
            await self.ping()
        except PostgresError:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends all connections; calls that are under way fail."""
        if self._pool is not None:
            self._pool.terminate()

    async def ping(self) -> None:
        """Asks for something that only a working server answers.

        Raises:
            PostgresError: it does not.
        """
        await self.rows("select 1")

    async def rows(self, statement: str, *values: object) -> Sequence[Row]:
        """Runs one statement, a transaction of its own.

        Raises:
            PostgresError: see `failure_of`; or there was no answer within `CALL_LIMIT_S`.
        """
        connection: Any = None  # Any: the driver has no types
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                connection = await self._pool.acquire()
                return await self._fetch(connection, statement, values)
        except StartError as error:
            raise PostgresError(str(error)) from error
        except Exception as error:
            if isinstance(error, TimeoutError) and connection is not None:
                # Not even the server's own limit was heard of: nothing comes from there on other connections either.
                await self._pool.expire_connections()
            failure = failure_of(self._where, error, sent=connection is not None)
            if failure is error:
                raise
            raise failure from error

    async def _fetch(self, connection: Any, statement: str, values: Sequence[object]) -> Sequence[Row]:
        try:
            found: Sequence[Row] = await connection.fetch(statement, *values)
        except asyncpg.PostgresError as error:
            if error.sqlstate == "25006":
                # What was the primary is none any more: all connections to it are of no use.
                await self._pool.expire_connections()
            raise
        except BaseException:
            # Given up in the middle: what comes next on this connection could be the answer to this.
            connection.terminate()
            raise
        finally:
            await self._pool.release(connection)
        return found

    async def _connect(self, _: object, **words: Any) -> Any:
        """Connects where it was right last; `words` are the pool's own."""
        words["server_settings"] = _session(self._place, limit_ms=_STATEMENT_LIMIT_MS)
        connection, host = await _seek(self._place, tuple(self._hosts), words)
        while self._hosts[0] != host:
            self._hosts.rotate(-1)
        return connection

    async def _begin(self, connection: Any) -> None:
        session = Session(connection, self._where)
        (standby, read_only), *_ = await session.rows(
            "select pg_is_in_recovery(), current_setting('default_transaction_read_only')"
        )
        if standby:
            raise PostgresError(f"{self._where}: the server is a standby that takes no writes; name the primary")
        if read_only == "on":
            raise PostgresError(f"{self._where}: {_ADVICE['25006']}")
        if self._greet is not None:
            await self._greet(session)


async def _leave(connection: Any) -> None:
    """Leaves a connection as it is when it goes back to the pool."""

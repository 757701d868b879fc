"""`cassandra+acsylla://`: the seam of `mesh.cassandra` on acsylla, asyncio over the C++ driver. Its only importer.

A statement costs a fraction of what the Python driver takes. Its defaults are not ours, and some of its settings do
something else than their names say; each is set here, with the reason beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import acsylla
from acsylla import errors

from mesh.cassandra import (
    IN_FLIGHT,
    RECONNECT_DELAY,
    WAITING,
    Bound,
    Row,
    StatementRefused,
    StoreUnavailable,
    Value,
    check_versions,
    one_line,
)
from mesh.errors import StartError
from mesh.stores import EngineUrl

_CONNECT_TIMEOUT: Final = 3.0
_HEARTBEAT: Final = 5
_IDLE_TIMEOUT: Final = 8
_PAGE: Final = 1_000
# Certificate and address: its own name for this means the certificate alone.
_VERIFY: Final = 0x01 | 0x02
# It reconnects by itself, but gives a node up for good whose certificate, credentials or keyspace were wrong once. So
# when nothing has been connected for so long, a session of its own is begun each second.
_LOST: Final = 3.0
_LOOK: Final = 1.0
_BEGIN_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"

# What binding raises when a value does not fit into its column.
_ENCODE_ERRORS: Final = (TypeError, ValueError, OverflowError, AttributeError)
_REFUSED: Final = (
    errors.CassErrorServerInvalidQuery,
    errors.CassErrorServerSyntaxError,
    errors.CassErrorServerConfigError,
    errors.CassErrorServerAlreadyExists,
    errors.CassErrorServerFunctionFailure,
    errors.CassErrorLibIndexOutOfBounds,
    errors.CassErrorLibInvalidItemCount,
    errors.CassErrorLibInvalidValueType,
    errors.CassErrorLibInvalidData,
    errors.CassErrorLibMessageEncode,
    errors.CassErrorLibParameterUnset,
)
# Before a statement was sent to anybody, or when it was turned away at the door.
_NEVER_BEGUN: Final = (
    errors.CassErrorLibNoHostsAvailable,
    errors.CassErrorLibNoStreams,
    errors.CassErrorLibNoAvailableIoThread,
    errors.CassErrorLibRequestQueueFull,
    errors.CassErrorServerUnavailable,
    errors.CassErrorServerOverloaded,
    errors.CassErrorServerIsBootstrapping,
    errors.CassErrorServerUnauthorized,
    errors.CassErrorServerBadCredentials,
)


async def open_acsylla(url: EngineUrl, *, keyspace: str | None, timeout: float) -> AcsyllaSession:
    """Connects.

    Args:
        url: where, with TLS and credentials; every host has the same port, and `ca` is one certificate.
        keyspace: the one that names without a keyspace belong to; None for none.
        timeout: seconds for each request.

    Raises:
        StartError: one line.
    """
    cluster = _cluster(url, timeout)
    session = None
    try:
        session = await _begin(cluster, keyspace)
        versions, datacenter = await _nodes(session)
        check_versions(url, versions)
    except errors.CassException as error:
        await _close(cluster, session)
        raise StartError(f"{url.text}: {_why_not_connected(url, error, keyspace)}") from None
    except BaseException:
        await _close(cluster, session)
        raise
    datacenter = url.options.get("datacenter") or datacenter
    return AcsyllaSession(cluster, session, keyspace=keyspace, datacenter=datacenter, timeout=timeout)


class AcsyllaSession:
    """Implements `mesh.cassandra.Session`."""

    def __init__(self, cluster: Any, session: Any, *, keyspace: str | None, datacenter: str, timeout: float) -> None:
        self._cluster = cluster
        self._session = session
        self._keyspace = keyspace
        self._datacenter = datacenter
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._prepared: dict[str, Any] = {}
        self._preparing: dict[str, asyncio.Task[Any]] = {}
        self._turns = Turns(timeout)
        self._closed = False
        self._keeper = self._loop.create_task(self._keep_connected())

    @property
    def datacenter(self) -> str:
        """See `Session`."""
        return self._datacenter

    @property
    def connected(self) -> bool:
        """See `Session`."""
        # Its listener of hosts is not used: it may be called after it was freed.
        return not self._closed and bool(self._session.metrics().stats_total_connections)

    async def prepare(self, statements: Sequence[str]) -> None:
        """See `Session`."""
        await asyncio.gather(*[self._prepare(text) for text in statements])

    def execute(self, statement: str, values: Sequence[Value] = ()) -> asyncio.Task[list[Row]]:
        """See `Session`."""
        return self._loop.create_task(self._execute(statement, values))

    def batch(self, statements: Sequence[Bound]) -> asyncio.Task[None]:
        """See `Session`."""
        return self._loop.create_task(self._batch(statements))

    async def close(self) -> None:
        """See `Session`."""
        if not self._closed:
            self._closed = True
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            await _close(self._cluster, self._session)

    async def _keep_connected(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK)
            if self.connected:
                last = time.monotonic()
            elif time.monotonic() - last > _LOST:
                with contextlib.suppress(errors.CassException):
                    fresh = await _begin(self._cluster, self._keyspace)
                    old, self._session = self._session, fresh
                    self._prepared.clear()
                    await _end(old)

    async def _execute(self, text: str, values: Sequence[Value]) -> list[Row]:
        prepared = self._prepared.get(text) or await self._prepare(text)
        rest = await self._turns.take()
        try:
            statement = prepared.bind(list(values), page_size=_PAGE, timeout=rest)
            result = await self._session.execute(statement)
            if not result.column_count():
                return []
            rows = [row.as_tuple() for row in result]
            while result.has_more_pages():
                statement.set_page_state(result.page_state())
                result = await self._session.execute(statement)
                rows.extend([row.as_tuple() for row in result])
            return rows
        except (errors.CassException, RuntimeError, *_ENCODE_ERRORS) as error:
            raise _translated(error) from None
        finally:
            self._turns.give()

    async def _batch(self, statements: Sequence[Bound]) -> None:
        known = self._prepared
        prepared = [known.get(text) or await self._prepare(text) for text, _ in statements]
        rest = await self._turns.take()
        try:
            batch = acsylla.create_batch_unlogged(timeout=rest)
            for one, (_, values) in zip(prepared, statements, strict=True):
                batch.add_statement(one.bind(list(values)))
            await self._session.execute_batch(batch)
        except (errors.CassException, RuntimeError, *_ENCODE_ERRORS) as error:
            raise _translated(error) from None
        finally:
            self._turns.give()

    async def _prepare(self, text: str) -> Any:
        if text in self._prepared:
            return self._prepared[text]
        running = self._preparing.get(text)
        if running is None:
            running = self._loop.create_task(self._prepare_now(text))
            self._preparing[text] = running
            running.add_done_callback(lambda _: self._preparing.pop(text, None))
        # Whoever gives up must not take the answer from the others.
        self._prepared[text] = await asyncio.shield(running)
        return self._prepared[text]

    async def _prepare_now(self, text: str) -> Any:
        try:
            return await self._session.create_prepared(text)
        except (errors.CassException, RuntimeError) as error:
            raise _translated(error) from None


class Turns:
    """Gives statements their turn, 256 at a time, in order."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> float | None:
        """Waits for a turn; returns the seconds left for the request when it had to wait, else None.

        Raises:
            StoreUnavailable: the turn does not come in time.
        """
        if self._count < IN_FLIGHT:
            self._count += 1
            return None
        if len(self._waiting) >= WAITING:
            raise StoreUnavailable("too many statements wait", outcome_unknown=False)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable("its turn did not come in time", outcome_unknown=False) from None
            raise
        return max(0.001, self._timeout - (time.monotonic() - begun))

    def give(self) -> None:
        """Ends a turn: the next in the queue has it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._count -= 1


# ---------------------------------------------------------------- connecting


def _cluster(url: EngineUrl, timeout: float) -> Any:
    ports = {host.port for host in url.hosts}
    if len(ports) > 1:
        raise StartError(f"{url.text}: this client needs the same port on every host; or use cassandra://")
    credentials = url.credentials()
    tls = _tls(url)
    cluster = acsylla.create_cluster(
        [host.name for host in url.hosts],
        port=ports.pop(),
        username=credentials.name if credentials else None,
        password=credentials.password if credentials else None,
        # Its own lines are one an attempt, and go to stderr unless somebody takes them.
        log_level="disabled",
        logging_callback=_drop,
        protocol_version=4,
        consistency=acsylla.Consistency.LOCAL_QUORUM,
        serial_consistency=acsylla.Consistency.LOCAL_SERIAL,
        retry_policy="fallthrough",
        connect_timeout=_CONNECT_TIMEOUT,
        request_timeout=timeout,
        heartbeat_interval_sec=_HEARTBEAT,
        idle_timeout_sec=_IDLE_TIMEOUT,
        # The exponential policy has defaults of 2 and 60 s and is applied after the constant one, so it wins unless
        # it is taken away: then a node that comes back is missed for as long as it was away.
        constant_reconnect_delay_ms=round(RECONNECT_DELAY * 1_000),
        exponential_reconnect_base_delay_ms=None,
        exponential_reconnect_max_delay_ms=None,
        # Means the reverse: anything but True chooses round robin over all data centres.
        load_balance_round_robin=True,
        load_balance_dc_aware=url.options.get("datacenter"),
    )
    if tls is not None:
        cluster.set_ssl(True, *tls, _VERIFY)
    return cluster


def _tls(url: EngineUrl) -> tuple[str | None, str | None, str, str] | None:
    """Returns certificate, key, the key's password and the trusted root, as texts."""
    if url.tls() is None:
        return None
    ca, cert, key = (url.options.get(name, "") for name in ("ca", "cert", "key"))
    if not ca:
        raise StartError(
            f"{url.text}: this client knows no trusted roots of its own: name ca=FILE; or use cassandra://"
        )
    root = _text(ca)
    if root.count(_BEGIN_CERTIFICATE) != 1:
        raise StartError(f"{url.text}: ca={ca}: this client takes exactly one certificate; or use cassandra://")
    return _text(cert) if cert else None, _text(key) if key else None, "", root


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _drop(_: object) -> None:
    """Takes a line of the client's log."""


async def _begin(cluster: Any, keyspace: str | None) -> Any:
    """Connects; a session that nobody waits for any more is closed."""
    beginning = asyncio.ensure_future(cluster.create_session(keyspace=keyspace))
    try:
        return await _to_the_end(beginning)
    except asyncio.CancelledError:
        if beginning.exception() is None:
            await _end(beginning.result())
        raise


async def _end(session: Any) -> None:
    with contextlib.suppress(errors.CassException):
        await _to_the_end(asyncio.ensure_future(session.close()))


async def _to_the_end(task: asyncio.Future[Any]) -> Any:
    """Awaits connecting or closing; whoever gives up waits until that has ended.

    A session that is let go before it has would stop the process for good: freeing it joins threads that do not end.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


async def _nodes(session: Any) -> tuple[Mapping[str, str], str]:
    (own,) = await session.execute(acsylla.create_statement(_LOCAL))
    peers = await session.execute(acsylla.create_statement(_PEERS))
    versions = {address: version for address, version, _ in (row.as_tuple() for row in (own, *peers)) if version}
    return versions, str(own.as_tuple()[2])


_LOCAL: Final = "select rpc_address, release_version, data_center from system.local"
_PEERS: Final = "select rpc_address, release_version, data_center from system.peers"


async def _close(cluster: Any, session: Any) -> None:
    if session is not None:
        # A session must be closed before its cluster's pipes: the client still writes into them.
        await _end(session)
    cluster.destroy()


def _why_not_connected(url: EngineUrl, error: Exception, keyspace: str | None) -> str:
    said = str(error)
    if isinstance(error, errors.CassErrorServerBadCredentials):
        return "the credentials are refused; correct the file that credentials=FILE names"
    if isinstance(error, errors.CassErrorLibUnableToSetKeyspace):
        return f"keyspace {keyspace} does not exist; make it with `heliograph stores create`"
    datacenter = url.options.get("datacenter")
    if datacenter and isinstance(error, errors.CassErrorLibNoHostsAvailable) and "Underlying" not in said:
        return f"datacenter={datacenter}: none of its nodes answers; look whether the name is right"
    return one_line(f"cannot be reached: {said}")


# ---------------------------------------------------------------- errors


def _translated(error: Exception) -> Exception:
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, _NEVER_BEGUN):
        return StoreUnavailable(said, outcome_unknown=False)
    if isinstance(error, _REFUSED):
        return StatementRefused(said)
    if isinstance(error, errors.CassException):
        return StoreUnavailable(said, outcome_unknown=True)
    if isinstance(error, RuntimeError):  # it was closed
        return StoreUnavailable(said, outcome_unknown=False)
    return StatementRefused(said)

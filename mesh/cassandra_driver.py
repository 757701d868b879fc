"""`cassandra://`: the seam of `mesh.cassandra` on DataStax's Python driver. The only importer of it.

The driver answers on a thread of its own. Its answers are collected there and handed over in bursts: the event loop is
woken once, however many have come until it looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import cassandra
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    HostStateListener,
    TokenAwarePolicy,
)
from cassandra.protocol import ErrorMessage, SyntaxException
from cassandra.query import BatchStatement, BatchType, PreparedStatement, tuple_factory

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
from mesh.telemetry import logger

T = TypeVar("T")

_CONNECT_TIMEOUT: Final = 5.0
_HEARTBEAT: Final = 5.0
_HEARTBEAT_TIMEOUT: Final = 3.0
_PAGE: Final = 1_000
# What binding raises when a value does not fit into its column.
_ENCODE_ERRORS: Final = (TypeError, ValueError, OverflowError, struct.error)
# Before a statement was sent to anybody, or when it was turned away at the door.
_NEVER_BEGUN: Final = (
    NoHostAvailable,
    cassandra.Unavailable,
    cassandra.AuthenticationFailed,
    cassandra.Unauthorized,
)

# What the driver executes: a text, a bound statement or a batch, all without types.
_Query = Any


async def open_driver(url: EngineUrl, *, keyspace: str | None, timeout: float) -> DriverSession:
    """Connects, off the event loop.

    Args:
        url: where, with TLS and credentials.
        keyspace: the one that names without a keyspace belong to; None for upkeep.
        timeout: seconds for each request.

    Raises:
        StartError: one line.
    """
    # It logs a line for each attempt to connect; we log one for each node that goes or comes.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    cluster = _cluster(url, timeout)
    try:
        session = await asyncio.to_thread(_connect, url, cluster, keyspace)
    except BaseException:
        await asyncio.to_thread(cluster.shutdown)
        raise
    return DriverSession(url, cluster, session, timeout=timeout)


class DriverSession:
    """Implements `mesh.cassandra.Session`."""

    def __init__(self, url: EngineUrl, cluster: Any, session: Any, *, timeout: float) -> None:
        self._datacenter = url.options.get("datacenter") or _contact_datacenter(cluster)
        self._cluster = cluster
        self._session = session
        self._timeout = timeout
        self._prepared: dict[str, Any] = {}
        self._preparing: dict[str, asyncio.Task[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._turns = Turns(self._loop.call_soon_threadsafe, timeout)
        self._closed = False

    @property
    def datacenter(self) -> str:
        """See `Session`."""
        return self._datacenter

    @property
    def connected(self) -> bool:
        """See `Session`."""
        return not self._closed and any(host.is_up for host in self._cluster.metadata.all_hosts())

    def datacenters(self) -> Mapping[str, int]:
        """Returns how many nodes each data centre has."""
        counted: dict[str, int] = {}
        for host in self._cluster.metadata.all_hosts():
            counted[host.datacenter] = counted.get(host.datacenter, 0) + 1
        return counted

    async def prepare(self, statements: Sequence[str]) -> None:
        """See `Session`."""
        await asyncio.gather(*[self._prepare(text) for text in statements])

    def execute(self, statement: str, values: Sequence[Value] = ()) -> asyncio.Future[list[Row]]:
        """See `Session`."""
        prepared = self._prepared.get(statement)
        if prepared is None:
            return asyncio.ensure_future(self._execute_first(statement, values))
        return self._send(lambda: prepared.bind(values))

    def batch(self, statements: Sequence[Bound]) -> asyncio.Future[None]:
        """See `Session`."""
        prepared = self._prepared
        if not all(text in prepared for text, _ in statements):
            return asyncio.ensure_future(self._batch_first(statements))

        def bind() -> _Query:
            batch = BatchStatement(BatchType.UNLOGGED)
            for text, values in statements:
                batch.add(prepared[text], values)
            return batch

        sent: asyncio.Future[Any] = self._send(bind)
        return sent

    async def run(self, text: str) -> list[Row]:
        """Runs a statement as it stands: what cannot be prepared, or is for every node alike."""
        return await self._send(lambda: text)

    async def on_each_node(self, text: str) -> Mapping[str, list[Row]]:
        """Runs a statement on every node that is up; answers by address.

        Raises:
            StoreUnavailable: no node answered. One that does not is like one that is known to be down.
        """
        hosts = [host for host in self._cluster.metadata.all_hosts() if host.is_up]
        sent = [self._send(lambda: text, host) for host in hosts]
        return answered([str(host.endpoint) for host in hosts], await asyncio.gather(*sent, return_exceptions=True))

    async def close(self) -> None:
        """See `Session`."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._cluster.shutdown)

    def _send(self, bind: Callable[[], _Query], host: Any = None) -> asyncio.Future[list[Row]]:
        future: asyncio.Future[list[Row]] = self._loop.create_future()
        try:
            query = bind()
        except _ENCODE_ERRORS as error:
            future.set_exception(StatementRefused(f"{type(error).__name__}: {error}"))
            return future
        session = self._session
        self._turns.take(future, lambda timeout: session.execute_async(query, timeout=timeout, host=host))
        return future

    async def _execute_first(self, statement: str, values: Sequence[Value]) -> list[Row]:
        await self.prepare([statement])
        return await self.execute(statement, values)

    async def _batch_first(self, statements: Sequence[Bound]) -> None:
        await self.prepare([text for text, _ in statements])
        await self.batch(statements)

    async def _prepare(self, text: str) -> None:
        if text in self._prepared:
            return
        running = self._preparing.get(text)
        if running is None:
            running = asyncio.ensure_future(asyncio.to_thread(self._prepare_now, text))
            self._preparing[text] = running
            running.add_done_callback(lambda _: self._preparing.pop(text, None))
        try:
            # The driver has its own time limit for this. Whoever gives up must not take the answer from the others.
            self._prepared[text] = await asyncio.wait_for(asyncio.shield(running), self._timeout)
        except TimeoutError:
            raise StoreUnavailable("a statement was not prepared in time", outcome_unknown=False) from None

    def _prepare_now(self, text: str) -> PreparedStatement:
        try:
            return self._session.prepare(text)
        except Exception as error:  # the driver has no base of its own
            raise translated(error) from None


def answered(addresses: Sequence[str], outcomes: Sequence[list[Row] | BaseException]) -> Mapping[str, list[Row]]:
    """Returns the answers of the nodes that gave one, by address.

    Raises:
        StoreUnavailable: none did; also what is no fault of a node.
    """
    silent = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    wrong = [
        error for error in silent if not isinstance(error, StoreUnavailable) or isinstance(error, StatementRefused)
    ]
    if silent and (wrong or len(silent) == len(outcomes)):
        raise (wrong or silent)[0]
    return {
        address: outcome
        for address, outcome in zip(addresses, outcomes, strict=True)
        if not isinstance(outcome, BaseException)
    }


class Turns:
    """Gives statements their turn, 256 at a time, and hands their answers to the event loop in bursts."""

    def __init__(self, wake: Callable[[Callable[[], None]], object], timeout: float) -> None:
        """Nobody waits yet.

        Args:
            wake: lets the event loop call something; called on any thread, once a burst.
            timeout: seconds for each statement, its wait included.
        """
        self._wake = wake
        self._timeout = timeout
        self._count = 0
        self._waiting: deque[tuple[float, asyncio.Future[list[Row]], Callable[[float], Any]]] = deque()
        self._answers: deque[tuple[asyncio.Future[list[Row]], list[Row] | None, Exception | None]] = deque()
        self._woken = False

    def take(self, future: asyncio.Future[list[Row]], begin: Callable[[float], Any]) -> None:
        """Begins now or when it is this statement's turn."""
        if self._count < IN_FLIGHT:
            self._begin(future, begin, self._timeout)
        elif len(self._waiting) >= WAITING:
            future.set_exception(StoreUnavailable("too many statements wait", outcome_unknown=False))
        else:
            self._waiting.append((time.monotonic() + self._timeout, future, begin))

    def _begin(self, future: asyncio.Future[list[Row]], begin: Callable[[float], Any], timeout: float) -> None:
        self._count += 1
        try:
            response = begin(timeout)
            _Answer(self, future, response)
        except Exception as error:  # the driver has no base of its own
            self.answer(future, None, error)

    def answer(self, future: asyncio.Future[list[Row]], rows: list[Row] | None, error: Exception | None) -> None:
        """Takes an answer, on any thread."""
        self._answers.append((future, rows, error))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._wake(self._hand_over)

    def _hand_over(self) -> None:
        # Before the first look: what comes from now on wakes again.
        self._woken = False
        answers = self._answers
        while answers:
            future, rows, error = answers.popleft()
            self._count -= 1
            if future.done():  # whoever waited has gone
                continue
            if error is None:
                future.set_result(rows or [])
            else:
                future.set_exception(translated(error))
        now = time.monotonic()
        while self._waiting and self._count < IN_FLIGHT:
            deadline, future, begin = self._waiting.popleft()
            if future.done():
                continue
            if deadline <= now:
                future.set_exception(StoreUnavailable("its turn did not come in time", outcome_unknown=False))
            else:
                self._begin(future, begin, deadline - now)


class _Answer:
    """Collects the pages of one answer, on the driver's thread."""

    __slots__ = ("_future", "_response", "_rows", "_turns")

    def __init__(self, turns: Turns, future: asyncio.Future[list[Row]], response: Any) -> None:
        self._turns = turns
        self._future = future
        self._response = response
        self._rows: list[Row] | None = None
        response.add_callbacks(self._page, self._fail)

    def _page(self, rows: list[Row] | None) -> None:
        if self._rows is None:
            self._rows = rows
        elif rows:
            self._rows.extend(rows)
        if self._response.has_more_pages:
            self._response.start_fetching_next_page()
        else:
            self._turns.answer(self._future, self._rows, None)

    def _fail(self, error: Exception) -> None:
        self._turns.answer(self._future, None, error)


# ---------------------------------------------------------------- connecting


def _cluster(url: EngineUrl, timeout: float) -> Any:
    credentials = url.credentials()
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(url.options.get("datacenter", ""))),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=cassandra.ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=cassandra.ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=timeout,
        row_factory=tuple_factory,
        speculative_execution_policy=None,
    )
    return Cluster(
        [(host.name, host.port) for host in url.hosts],
        port=url.hosts[0].port,
        auth_provider=PlainTextAuthProvider(credentials.name, credentials.password) if credentials else None,
        ssl_context=url.tls(),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(RECONNECT_DELAY, None),
        compression=False,  # it costs the client more than the network
        connect_timeout=_CONNECT_TIMEOUT,
        control_connection_timeout=_CONNECT_TIMEOUT,
        idle_heartbeat_interval=_HEARTBEAT,
        idle_heartbeat_timeout=_HEARTBEAT_TIMEOUT,
    )


def _connect(url: EngineUrl, cluster: Any, keyspace: str | None) -> Any:
    try:
        session = cluster.connect()
        if keyspace is not None:
            session.set_keyspace(keyspace)
    except Exception as error:  # the driver has no base of its own
        known = sorted({str(host.datacenter) for host in cluster.metadata.all_hosts() if host.datacenter})
        wanted = url.options.get("datacenter")
        if wanted and known and wanted not in known:
            raise StartError(f"{url.text}: datacenter={wanted}: its nodes are in {', '.join(known)}") from None
        raise StartError(f"{url.text}: {_why_not_connected(error, keyspace)}") from None
    session.use_client_timestamp = False
    session.default_fetch_size = _PAGE
    hosts = cluster.metadata.all_hosts()
    check_versions(url, {str(host.endpoint): str(host.release_version) for host in hosts})
    cluster.register_listener(_Listener())
    return session


def _why_not_connected(error: Exception, keyspace: str | None) -> str:
    # By address where it knows why, else only the addresses.
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict) and error.errors:
        return _why_not_connected(next(iter(error.errors.values())), keyspace)
    if isinstance(error, cassandra.AuthenticationFailed):
        return "the credentials are refused; correct the file that credentials=FILE names"
    if isinstance(error, cassandra.InvalidRequest) and keyspace is not None and keyspace in str(error):
        return f"keyspace {keyspace} does not exist; make it with `heliograph stores create`"
    return one_line(f"cannot be reached: {type(error).__name__}: {error}")


def _contact_datacenter(cluster: Any) -> str:
    host = cluster.get_control_connection_host() or cluster.metadata.all_hosts()[0]
    return str(host.datacenter)


class _Listener(HostStateListener):  # type: ignore[misc]  # the driver has no types
    """Logs nodes that go and come: the driver's own lines are one an attempt."""

    def on_up(self, host: Any) -> None:
        logger().info("cassandra_node_up", address=str(host.endpoint))

    def on_down(self, host: Any) -> None:
        logger().warning("cassandra_node_down", address=str(host.endpoint))

    def on_add(self, host: Any) -> None:
        logger().info("cassandra_node_added", address=str(host.endpoint), datacenter=str(host.datacenter))

    def on_remove(self, host: Any) -> None:
        logger().warning("cassandra_node_removed", address=str(host.endpoint))


# ---------------------------------------------------------------- errors


def translated(error: Exception) -> StoreUnavailable:
    """Returns what the driver says, as the seam says it."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, _NEVER_BEGUN):
        return StoreUnavailable(said, outcome_unknown=False)
    if isinstance(error, (cassandra.InvalidRequest, SyntaxException)):
        return StatementRefused(said)
    if isinstance(error, ErrorMessage):
        said = f"{type(error).__name__}: {error.message}"
    return StoreUnavailable(said, outcome_unknown=True)

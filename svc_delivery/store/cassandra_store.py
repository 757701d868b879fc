"""Rows, steps and dead letters of delivery in one keyspace of Cassandra: its connection, and its upkeep.

Must not decide anything: it opens, closes and hands out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from mesh.cassandra import Bound, Row, Session, StoreUnavailable, Value, open_session, parse
from mesh.cassandra_admin import KeyspaceAdmin
from mesh.cassandra_migrations import load_migrations
from mesh.clock import Clock, Stamper
from mesh.stores import EngineUrl, require
from svc_delivery.ports import Inbox
from svc_delivery.ports_channels import Steps
from svc_delivery.ports_dead_letters import DeadLetters
from svc_delivery.store.cassandra import CassandraInbox
from svc_delivery.store.cassandra_dead_letters import CassandraDeadLetters
from svc_delivery.store.cassandra_steps import CassandraSteps
from svc_delivery.store.sqlite import Limits

_PING: Final = "select value from store where name = 'incarnation'"


def inbox_admin(url: str) -> KeyspaceAdmin:
    """Returns the upkeep of the keyspace that a URL names.

    Raises:
        StartError: the URL is wrong.
    """
    return _admin(parse("store_url", url))


def _admin(url: EngineUrl) -> KeyspaceAdmin:
    return KeyspaceAdmin("inboxes", url, load_migrations("svc_delivery.store", "cassandra_migrations"))


class CassandraStore:
    """Implements `RowStore`; `open` before use, `close` at the end."""

    def __init__(self, url: str, *, limits: Limits, clock: Clock) -> None:
        """Connects nothing yet.

        Args:
            url: of the keyspace.
            limits: how much an inbox keeps.
            clock: for the stamps of dead letters.

        Raises:
            StartError: the URL is wrong.
        """
        self._url = parse("store_url", url)
        self._session = _LateSession()
        self._inbox = CassandraInbox(self._session, limits=limits)
        self._steps = CassandraSteps(self._session)
        self._dead_letters = CassandraDeadLetters(
            self._session, keep_days=limits.letter_days, stamp=Stamper(clock).next
        )

    @property
    def inbox(self) -> Inbox:
        """The rows."""
        return self._inbox

    @property
    def steps(self) -> Steps:
        """The steps map of rows."""
        return self._steps

    @property
    def dead_letters(self) -> DeadLetters:
        """What was given up."""
        return self._dead_letters

    async def open(self) -> None:
        """Looks whether everything is as it must be, and connects; makes nothing.

        Raises:
            StartError: it is not, or no node can be reached.
        """
        await require(_admin(self._url))
        self._session.begin(await open_session(self._url))
        try:
            await self._inbox.load()
            await self._steps.load()
            await self._dead_letters.load()
        except BaseException:
            await self.close()
            raise

    async def ping(self) -> None:
        """Asks for something that only a quorum answers.

        Raises:
            StoreUnavailable: it does not.
        """
        await self._session.execute(_PING)

    async def close(self) -> None:
        """Disconnects; harmless when not open."""
        await self._session.close()


class _LateSession:
    """A session that is handed out before it is connected; implements `Session`."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def begin(self, session: Session) -> None:
        """Everything goes to this one from now on."""
        self._session = session

    @property
    def datacenter(self) -> str:
        """See `Session`."""
        return self._now.datacenter

    @property
    def connected(self) -> bool:
        """See `Session`."""
        return self._session is not None and self._session.connected

    async def prepare(self, statements: Sequence[str]) -> None:
        """See `Session`."""
        await self._now.prepare(statements)

    def execute(self, statement: str, values: Sequence[Value] = ()) -> Awaitable[list[Row]]:
        """See `Session`."""
        return self._now.execute(statement, values)

    def batch(self, statements: Sequence[Bound]) -> Awaitable[None]:
        """See `Session`."""
        return self._now.batch(statements)

    async def close(self) -> None:
        """See `Session`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def _now(self) -> Session:
        if self._session is None:
            raise StoreUnavailable("the inbox in Cassandra is not open", outcome_unknown=False)
        return self._session

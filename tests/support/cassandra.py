"""Stores of delivery in the Cassandra of this run: two keyspaces a process, emptied for each test.

Making a keyspace takes a second, emptying one a tenth of it. Follow-ups are not for Cassandra: they are in a file
beside it. It must not assert anything about rows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from mesh.cassandra import Session, open_session, parse
from mesh.cassandra_admin import KeyspaceAdmin
from mesh.cassandra_driver import DriverSession, open_driver
from mesh.cassandra_migrations import load_migrations
from mesh.clock import Stamper, SystemClock
from mesh.stores import EngineUrl
from svc_delivery.ports import DecisionWrite, FollowUps, FollowUpWrite, Inbox, RowWrite
from svc_delivery.ports_channels import Steps
from svc_delivery.ports_dead_letters import DeadLetters, Suspects
from svc_delivery.store import InboxStore, open_store
from svc_delivery.store.cassandra import CassandraInbox
from svc_delivery.store.cassandra_dead_letters import CassandraDeadLetters
from svc_delivery.store.cassandra_steps import CassandraSteps
from svc_delivery.store.sqlite import Limits
from tests.support.engines import urls

_KEPT = frozenset({"store", "schema_lock", "schema_migrations"})
_TABLES = "select table_name from system_schema.tables where keyspace_name = ?"
_TIMEOUT = 10.0
_PREFIX = "hgtest"

# Keyspaces that were made, and which of them somebody has.
_made: list[str] = []
_taken: dict[str, CassandraOpener] = {}
_sessions: dict[asyncio.AbstractEventLoop, DriverSession] = {}


def keyspace_url(name: str, *, client: str = "cassandra") -> EngineUrl:
    """The URL of a keyspace in the node of this run."""
    address = urls()["cassandra"].removeprefix("cassandra://")
    return parse("tests", f"{client}://{address}/{name}?replicas=1")


async def make_keyspace(url: EngineUrl) -> None:
    """Makes a keyspace with the schema of delivery."""
    await KeyspaceAdmin("inbox", url, load_migrations("svc_delivery.store", "cassandra_migrations")).create(
        dry_run=False
    )


async def empty_keyspace(url: EngineUrl) -> None:
    """Removes every row, mark and tombstone."""
    session = await _upkeep()
    tables = [name for (name,) in await session.execute(_TABLES, (url.name,)) if name not in _KEPT]
    await asyncio.gather(*[session.run(f"truncate {url.name}.{name}") for name in tables])


async def _upkeep() -> DriverSession:
    """The connection that empties keyspaces: one for all tests, gone with the process."""
    loop = asyncio.get_running_loop()
    if loop not in _sessions:
        _sessions[loop] = await open_driver(keyspace_url("none"), keyspace=None, timeout=_TIMEOUT)
    return _sessions[loop]


async def _drop_left_over() -> None:
    """Drops the keyspaces of processes that are gone."""
    session = await _upkeep()
    for (name,) in await session.run("select keyspace_name from system_schema.keyspaces"):
        if _is_left_over(name):
            await session.run(f"drop keyspace if exists {name}")


def _is_left_over(name: str) -> bool:
    prefix, _, rest = name.partition("_")
    return prefix == _PREFIX and not Path("/proc", rest.partition("_")[0]).exists()


class CassandraStore:
    """What `InboxStore` is for a file: the ports of delivery on one session."""

    def __init__(self, session: Session, beside: InboxStore, limits: Limits | None = None) -> None:
        self.rows_only = CassandraInbox(session, limits=limits or Limits())
        self._beside = beside
        self.inbox: Inbox = _WithFollowUps(self.rows_only, beside.inbox)
        self.follow_ups: FollowUps = beside.follow_ups
        self.suspects: Suspects = beside.suspects
        self.steps: Steps = CassandraSteps(session)
        self.dead_letters: DeadLetters = CassandraDeadLetters(
            session, keep_days=Limits().letter_days, stamp=Stamper(SystemClock()).next
        )

    async def open(self) -> None:
        """Prepares what is used."""
        await self._beside.open()
        await self.rows_only.load()

    async def close(self) -> None:
        """Closes the file; whoever opened the session closes that."""
        await self._beside.close()


class _WithFollowUps:
    """An inbox in Cassandra whose follow-ups go into a file, after the rows."""

    def __init__(self, inbox: CassandraInbox, beside: Inbox) -> None:
        self._inbox = inbox
        self._beside = beside
        self.mark = inbox.mark
        self.window = inbox.window
        self.bodies = inbox.bodies
        self.heads = inbox.heads
        self.states = inbox.states
        self.decisions = inbox.decisions
        self.sweep = inbox.sweep

    @property
    def epoch(self) -> str:
        """See `Inbox`."""
        return self._inbox.epoch

    async def write(
        self,
        rows: Sequence[RowWrite],
        *,
        stamp: int,
        follow_up: FollowUpWrite | None = None,
        decisions: Sequence[DecisionWrite] = (),
    ) -> None:
        """See `Inbox`."""
        await self._inbox.write(rows, stamp=stamp, decisions=decisions)
        if follow_up is not None:
            await self._beside.write([], stamp=stamp, follow_up=follow_up)


@asynccontextmanager
async def opened(url: EngineUrl, data_dir: Path, limits: Limits | None = None) -> AsyncIterator[CassandraStore]:
    """Opens the store of a keyspace, with a file for the follow-ups."""
    session = await open_session(url)
    try:
        store = CassandraStore(session, open_store("sqlite:///follow_ups.db", data_dir), limits)
        await store.open()
        try:
            yield store
        finally:
            await store.close()
    finally:
        await session.close()


class CassandraOpener:
    """Opens the same store again and again; at the first time it is empty."""

    def __init__(self, client: str, data_dir: Path) -> None:
        self._client = client
        self._data_dir = data_dir
        self._name = ""

    @property
    def url(self) -> str:
        """Where the store is; known once it was open."""
        return keyspace_url(self._name, client=self._client).text

    @asynccontextmanager
    async def __call__(self, limits: Limits | None = None) -> AsyncIterator[CassandraStore]:
        """Opens the store; two that are open at once are two keyspaces."""
        if not self._name:
            self._name = await _free_keyspace()
        _taken[self._name] = self
        try:
            async with opened(keyspace_url(self._name, client=self._client), self._data_dir, limits) as store:
                yield store
        finally:
            del _taken[self._name]


async def _free_keyspace() -> str:
    for name in _made:
        if name not in _taken:
            await empty_keyspace(keyspace_url(name))
            return name
    name = f"{_PREFIX}_{os.getpid()}_{len(_made)}"
    if not _made:
        await _drop_left_over()
    _made.append(name)
    await make_keyspace(keyspace_url(name))
    return name


class CassandraPoisoner:
    """Does it by an index: a node refuses a row whose category is larger than an index takes."""

    category = "poison" * 11_000

    def __init__(self, opener: CassandraOpener) -> None:
        self._opener = opener

    async def refuse(self) -> None:
        """From now on."""
        await (await _upkeep()).run(f"create index poison on {self._keyspace}.inbox (category)")

    async def accept(self) -> None:
        """Takes it back."""
        await (await _upkeep()).run(f"drop index if exists {self._keyspace}.poison")

    @property
    def _keyspace(self) -> str:
        return parse("tests", self._opener.url).name

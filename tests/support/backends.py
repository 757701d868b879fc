"""The adapters of each storage port, as named factories: contract suites run once for each of them.

A new adapter is one line here.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import pytest

from mesh.clock import ManualClock
from svc_delivery.store import InboxStore, Limits
from svc_delivery.store import open_store as open_inbox
from svc_ingest.ports import RequestLog
from svc_prefs.ports import LogLimits
from svc_prefs.store import WishStore
from svc_prefs.store import open_store as open_wishes
from svc_presence.ports import PresenceStore
from tests.support.engines import urls
from tests.support.kafka_lanes import kafka_lane
from tests.support.lanes import sqlite_lane

S = TypeVar("S")
# Opens the same store anew with each call.
Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[S]]


def lane_backends() -> list[Any]:
    """Factories of empty lanes: (data_dir, run_dir) → a `tests.support.lanes.LaneCase`."""
    return [pytest.param(sqlite_lane, id="sqlite"), pytest.param(kafka_lane, id="kafka", marks=pytest.mark.engines)]


def presence_backends() -> list[Any]:
    """Factories of empty presence stores."""
    return [
        pytest.param(_memory_presence, id="memory"),
        pytest.param(_redis_presence("redis"), id="redis", marks=pytest.mark.engines),
        pytest.param(_redis_presence("redis_cluster"), id="redis-cluster", marks=pytest.mark.engines),
    ]


@asynccontextmanager
async def _memory_presence() -> AsyncIterator[PresenceStore]:
    from svc_presence.store import open_store

    yield open_store("memory://", lease=15.0, clock=ManualClock())


def _redis_presence(engine: str) -> Opener[PresenceStore]:
    @asynccontextmanager
    async def opener() -> AsyncIterator[PresenceStore]:
        from svc_presence.store import open_store

        store = open_store(fresh_redis(engine), lease=15.0, clock=ManualClock())
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    return opener


def wish_backends() -> list[Any]:
    """Factories of stores of wishes: (data_dir, limits of the log of changes) → an opener."""
    return [
        pytest.param(_sqlite_wishes, id="sqlite"),
        pytest.param(postgres_wishes, id="postgresql", marks=pytest.mark.engines),
    ]


def _sqlite_wishes(data_dir: Path, limits: LogLimits | None = None) -> Opener[WishStore]:
    @asynccontextmanager
    async def opener() -> AsyncIterator[WishStore]:
        store = open_wishes("sqlite:///prefs.db", data_dir=data_dir, limits=limits)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    return opener


def postgres_wishes(data_dir: Path, limits: LogLimits | None = None, url: str = "") -> Opener[WishStore]:
    """A schema of its own at the run's server, or at the one of a URL; made when it is opened for the first time."""
    from svc_prefs.store import store_admins

    url = f"{url or urls()['postgresql']}?schema=t_{uuid.uuid4().hex}"

    @asynccontextmanager
    async def opener() -> AsyncIterator[WishStore]:
        for admin in store_admins(url):
            await admin.create(dry_run=False)
        store = open_wishes(url, data_dir=data_dir, limits=limits)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    return opener


def request_log_backends() -> list[Any]:
    """Factories of request logs: data_dir → an opener."""
    return [
        *swept_request_log_backends(),
        pytest.param(_redis_request_log("redis"), id="redis", marks=pytest.mark.engines),
        pytest.param(_redis_request_log("redis_cluster"), id="redis-cluster", marks=pytest.mark.engines),
    ]


def swept_request_log_backends() -> list[Any]:
    """Factories of request logs that forget when they are swept, not by themselves."""
    return [pytest.param(_sqlite_request_log, id="sqlite")]


def _redis_request_log(engine: str) -> Callable[[Path], Opener[RequestLog]]:
    def factory(data_dir: Path) -> Opener[RequestLog]:
        from svc_ingest.store import open_store

        url = fresh_redis(engine)

        @asynccontextmanager
        async def opener() -> AsyncIterator[RequestLog]:
            log = open_store(url, data_dir)
            await log.open()
            try:
                yield log
            finally:
                await log.close()

        return opener

    return factory


def fresh_redis(engine: str) -> str:
    """Returns the URL of an engine with a prefix that nobody has used."""
    return f"{urls()[engine].rstrip('/')}/?prefix=test-{secrets.token_hex(6)}"


def _sqlite_request_log(data_dir: Path) -> Opener[RequestLog]:
    from svc_ingest.store import open_store

    @asynccontextmanager
    async def opener() -> AsyncIterator[RequestLog]:
        log = open_store("sqlite:///requests.db", data_dir)
        await log.open()
        try:
            yield log
        finally:
            await log.close()

    return opener


# The clients of Cassandra and their schemes.
CASSANDRA_CLIENTS: Final = {"cassandra": "cassandra", "acsylla": "cassandra+acsylla"}


class InboxOpener(Protocol):
    """Opens the same store of delivery again and again."""

    @property
    def url(self) -> str:
        """Where it is; known once it was open."""
        ...

    def __call__(self, limits: Limits | None = None) -> AbstractAsyncContextManager[InboxStore]:
        """Opens it, with other limits than the defaults if some are given."""
        ...


def inbox_backends() -> list[Any]:
    """Inbox stores: data_dir → an opener."""
    return [*swept_inbox_backends(), *expiring_inbox_backends()]


def swept_inbox_backends() -> list[Any]:
    """Inbox stores that forget when they are swept, not by themselves."""
    return [pytest.param(SqliteInboxOpener, id="sqlite")]


def expiring_inbox_backends() -> list[Any]:
    """Inbox stores that forget by themselves."""
    return [pytest.param(_replicas_inbox, id="replicas"), *_cassandra_backends()]


def lasting_inbox_backends() -> list[Any]:
    """Inbox stores that outlive their process."""
    return [*swept_inbox_backends(), *_cassandra_backends()]


def _cassandra_backends() -> list[Any]:
    return [
        pytest.param(_cassandra_inbox(scheme), id=client, marks=pytest.mark.engines)
        for client, scheme in CASSANDRA_CLIENTS.items()
    ]


def _cassandra_inbox(client: str) -> Callable[[Path], Opener[Any]]:
    def factory(data_dir: Path) -> Opener[Any]:
        from tests.support.cassandra import CassandraOpener

        return CassandraOpener(client, data_dir)

    return factory


def poisoned_inbox_backends() -> list[Any]:
    """Inbox stores that can be made to refuse some rows: data_dir → an opener and what makes it refuse."""
    return [
        pytest.param(lambda data_dir: (SqliteInboxOpener(data_dir), SqlitePoisoner(data_dir)), id="sqlite"),
        pytest.param(_replicas_poisoned, id="replicas"),
        *(
            pytest.param(_cassandra_poisoned(scheme), id=client, marks=pytest.mark.engines)
            for client, scheme in CASSANDRA_CLIENTS.items()
        ),
    ]


class Poisoner(Protocol):
    """Makes an open store refuse some rows, and nothing else."""

    @property
    def category(self) -> str:
        """Rows of this category are refused."""
        ...

    async def refuse(self) -> None:
        """From now on."""
        ...

    async def accept(self) -> None:
        """Takes it back."""
        ...


class SqlitePoisoner:
    """Does it by a trigger."""

    category = "poison"

    def __init__(self, data_dir: Path) -> None:
        self._poison = SqlitePoison(data_dir / "inbox.db")

    async def refuse(self) -> None:
        """From now on."""
        self._poison.refuse()

    async def accept(self) -> None:
        """Takes it back."""
        self._poison.accept()


def _replicas_inbox(data_dir: Path) -> Opener[Any]:
    from tests.support.replicas import ReplicasOpener

    return ReplicasOpener(data_dir)


def _replicas_poisoned(data_dir: Path) -> tuple[InboxOpener, Poisoner]:
    from tests.support.replicas import ReplicasOpener, ReplicasPoisoner

    opener: Any = ReplicasOpener(data_dir)
    return opener, ReplicasPoisoner(opener)


def _cassandra_poisoned(client: str) -> Callable[[Path], tuple[InboxOpener, Poisoner]]:
    def factory(data_dir: Path) -> tuple[InboxOpener, Poisoner]:
        from tests.support.cassandra import CassandraOpener, CassandraPoisoner

        opener: Any = CassandraOpener(client, data_dir)
        return opener, CassandraPoisoner(opener)

    return factory


class SqlitePoison:
    """Makes an open file refuse rows of the category "poison", by a trigger, as a damaged index would."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def refuse(self) -> None:
        """From now on."""
        self._execute(
            "create trigger poison before insert on inbox when new.category = 'poison' "
            "begin select raise(abort, 'poisoned'); end"
        )

    def accept(self) -> None:
        """Takes it back."""
        self._execute("drop trigger if exists poison")

    def _execute(self, statement: str) -> None:
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            connection.execute(statement)
            connection.commit()


class SqliteInboxOpener:
    """Opens the store of a file again and again."""

    url = "sqlite:///inbox.db"

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    @asynccontextmanager
    async def __call__(self, limits: Limits | None = None) -> AsyncIterator[InboxStore]:
        """Opens it; one at a time."""
        store = open_inbox(self.url, self._data_dir, limits=limits)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

"""Schemas in PostgreSQL: numbered SQL files, applied under a lock and remembered with their checksums.

Several stores may share one schema; each has files and numbers of its own. Nothing here runs at a start but `check`.
It must not know any table but its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from mesh.errors import StartError
from mesh.postgres import OLDEST, Place, PostgresError, Row, Session, connect
from mesh.sqlite import Migration, load_migrations
from mesh.stores import Finding

__all__ = ["Migration", "SchemaAdmin", "checksum", "load_migrations"]

# Where databases are made from: it is in every installation.
_MAINTENANCE: Final = "postgres"
_LOCK_WAIT: Final = "30s"
_NO_DATABASE: Final = "3D000"

_APPLIED: Final = """
create table if not exists heliograph_migrations (
    store text not null,
    number integer not null,
    name text not null,
    checksum text not null,
    apply_time timestamptz not null default now(),
    primary key (store, number)
)
"""
_SERVER: Final = """
select current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(),
    current_setting('default_transaction_read_only'), current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_commit'),
    (select pg_encoding_to_char(encoding) from pg_database where datname = current_database())
"""
_HAS_SCHEMA: Final = """
select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = $1
"""
# to_regclass would use the search path, which leads nowhere when the schema is not there.
_HAS_TABLE: Final = "select 1 from pg_tables where schemaname = $1 and tablename = 'heliograph_migrations'"
_DONE: Final = "select number, name, checksum from heliograph_migrations where store = $1 order by number"
_LACKING: Final = """
select relation.relname, privilege.name
from pg_class relation join pg_namespace space on space.oid = relation.relnamespace,
    unnest(array['select', 'insert', 'update', 'delete']) as privilege(name)
where space.nspname = $1 and relation.relkind in ('r', 'p') and not has_table_privilege(relation.oid, privilege.name)
    and (relation.relname <> 'heliograph_migrations' or privilege.name = 'select')
order by 1, 2 limit 1
"""


def checksum(migration: Migration) -> str:
    """Returns what tells an applied file from one that was edited afterwards."""
    return hashlib.sha256(migration.sql.encode()).hexdigest()[:32]


class SchemaAdmin:
    """Implements `mesh.stores.StoreAdmin` for the tables of one store.

    Args:
        what: what is kept there.
        place: where.
        store: whose migrations these are, in the table of those that were applied.
        migrations: all of them, by number.
    """

    def __init__(self, *, what: str, place: Place, store: str, migrations: Sequence[Migration]) -> None:
        self.what = what
        self.url = place.url.text
        self._place = place
        self._store = store
        self._migrations = migrations

    async def check(self) -> Sequence[Finding]:
        """See the port."""
        try:
            async with self._session() as session:
                return [*await _server(session), *await self._tables(session)]
        except _NoDatabaseError:
            return [Finding(f"database {self._place.url.name}", "missing", "is not there")]

    async def create(self, *, dry_run: bool) -> Sequence[str]:
        """See the port."""
        said: list[str] = []
        try:
            async with self._session() as session:
                return await self._make(session, dry_run)
        except _NoDatabaseError:
            said.append(f"database {self._place.url.name}")
        if dry_run:
            return [*said, f"schema {self._place.schema}", *self._steps(0)]
        await self._make_database()
        async with self._session() as session:
            return [*said, *await self._make(session, dry_run)]

    async def migrate(self, *, dry_run: bool) -> Sequence[str]:
        """See the port."""
        try:
            async with self._session() as session:
                if not await session.rows(_HAS_SCHEMA, self._place.schema):
                    raise StartError(
                        f"schema {self._place.schema} is not there; make it with `heliograph stores create`"
                    )
                return await self._apply(session, dry_run)
        except _NoDatabaseError as error:
            raise StartError(str(error)) from None

    # ---------------------------------------------------------------- what is there

    async def _tables(self, session: Session) -> list[Finding]:
        schema = self._place.schema
        found = await session.rows(_HAS_SCHEMA, schema)
        if not found:
            return [Finding(f"schema {schema}", "missing", "is not there")]
        if not found[0][0]:
            return [Finding(f"schema {schema}", "wrong", f"grant usage on schema {schema} to this role")]
        what = f"tables of {self._store} in schema {schema}"
        if not await session.rows(_HAS_TABLE, schema):
            return [Finding(what, "missing", "are not there")]
        # A role that may not even look learns that from the first statement it may not run.
        lacking = await session.rows(_LACKING, schema)
        if lacking:
            table, privilege = lacking[0]
            return [Finding(what, "wrong", f"grant {privilege} on {schema}.{table} to this role")]
        return [self._version(what, await session.rows(_DONE, self._store))]

    def _version(self, what: str, done: Sequence[Row]) -> Finding:
        newest = len(self._migrations)
        fault = self._fault(done)
        if fault:
            return Finding(what, "wrong", fault)
        if not done:
            return Finding(what, "missing", "are not there")
        if len(done) < newest:
            return Finding(what, "behind", f"are of version {len(done)}, must be of version {newest}")
        return Finding(f"{what}: version {newest}", "ok")

    def _fault(self, done: Sequence[Row]) -> str:
        """Says why the migrations that were applied are not the first of ours; empty when they are."""
        newest = len(self._migrations)
        for expected, (number, name, sum_) in enumerate(done, start=1):
            if number > newest:
                return f"are of version {done[-1][0]}, this program knows {newest}: run a newer program"
            if number != expected or sum_ != checksum(self._migrations[number - 1]):
                return f"migration {number:04d}_{name} is not the one of this program: restore what was edited"
        return ""

    # ---------------------------------------------------------------- changes

    async def _make(self, session: Session, dry_run: bool) -> list[str]:
        schema = self._place.schema
        said = []
        if not await session.rows(_HAS_SCHEMA, schema):
            said.append(f"schema {schema}")
            if dry_run:
                return [*said, *self._steps(0)]
            await self._lock(session)
            await session.run(f'create schema if not exists "{schema}"')
        if await self._done(session):
            # What is there is for `migrate` to change.
            return said
        return [*said, *await self._apply(session, dry_run)]

    async def _apply(self, session: Session, dry_run: bool) -> list[str]:
        if dry_run:
            done = await self._done(session)
            self._refuse(done)
            return self._steps(len(done))
        await self._lock(session)
        await session.run(_APPLIED)
        # Under the lock: another process may have been first.
        done = await self._done(session)
        self._refuse(done)
        for migration in self._migrations[len(done) :]:
            record = (
                "insert into heliograph_migrations (store, number, name, checksum) values "
                f"('{self._store}', {migration.number}, '{migration.name}', '{checksum(migration)}')"
            )
            # Sent together they are one transaction.
            await session.run(f"{migration.sql}\n;{record}")
        return self._steps(len(done))

    async def _done(self, session: Session) -> Sequence[Row]:
        if not await session.rows(_HAS_TABLE, self._place.schema):
            return ()
        return await session.rows(_DONE, self._store)

    def _refuse(self, done: Sequence[Row]) -> None:
        fault = self._fault(done)
        if fault:
            raise StartError(f"{self.url}: tables of {self._store}: {fault}")

    def _steps(self, version: int) -> list[str]:
        return [
            f"migration {one.number:04d}_{one.name} of {self._store} in schema {self._place.schema}"
            for one in self._migrations[version:]
        ]

    async def _make_database(self) -> None:
        session = await self._connected(_MAINTENANCE)
        name = self._place.url.name.replace('"', '""')
        try:
            # template0: any other may have another encoding. Order of ids does not depend on the locale.
            await session.run(f"create database \"{name}\" encoding 'UTF8' template template0")
        except PostgresError as error:
            raise StartError(error.message) from None
        finally:
            await session.close()

    async def _lock(self, session: Session) -> None:
        """Keeps other processes that change this schema away until the connection ends."""
        await session.run(f"set lock_timeout = '{_LOCK_WAIT}'")
        await session.rows("select pg_advisory_lock(hashtextextended($1, 0))", f"migrations of {self._place.schema}")

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        session = await self._connected()
        try:
            yield session
        except PostgresError as error:
            raise StartError(error.message) from error
        finally:
            await session.close()

    async def _connected(self, database: str = "") -> Session:
        try:
            return await connect(self._place, database=database)
        except PostgresError as error:
            if getattr(error.__cause__, "sqlstate", "") == _NO_DATABASE:
                raise _NoDatabaseError(error.message) from error
            if isinstance(error.__cause__, ConnectionRefusedError):
                raise StartError(
                    f"{self.url}: nobody listens there; see that it runs and that the URL is right"
                ) from None
            raise StartError(error.message) from error


class _NoDatabaseError(Exception):
    """The database is not there."""


async def _server(session: Session) -> list[Finding]:
    (number, version, standby, read_only, fsync, pages, commit, encoding), *_ = await session.rows(_SERVER)
    wrong = []
    if number < OLDEST:
        wrong.append(Finding(f"server version {version}", "wrong", f"must be {OLDEST // 10_000} or newer"))
    if standby:
        wrong.append(Finding("server", "wrong", "is a standby that takes no writes; name the primary"))
    elif read_only == "on":
        wrong.append(Finding("default_transaction_read_only", "wrong", "is on, must be off"))
    if encoding != "UTF8":
        wrong.append(Finding("encoding of the database", "wrong", f"is {encoding}, must be UTF8"))
    for name, value in (("fsync", fsync), ("full_page_writes", pages), ("synchronous_commit", commit)):
        if value == "off":
            wrong.append(
                Finding(name, "wrong", "is off, must be on: what was answered would be lost when the server is killed")
            )
    return wrong or [Finding(f"server: PostgreSQL {version.split()[0]}, a primary, UTF8", "ok")]

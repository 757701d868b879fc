"""The schema of a keyspace in Cassandra: numbered .cql files, a table that says which of them are in it, and a lock.

A file's statements must bear being run twice (`if not exists`): a process may die in the middle of it. It must not know
any table but its own two.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from importlib import resources
from typing import Final, Protocol

import msgspec

from mesh.cassandra import Row, Value
from mesh.errors import StartError

_TABLES: Final = (
    "create table if not exists schema_migrations (number int primary key, name text, checksum text, apply_us bigint)",
    "create table if not exists schema_lock (name text primary key, holder text)",
)
_TAKE: Final = "insert into schema_lock (name, holder) values ('migrations', ?) if not exists using ttl ?"
_KEEP: Final = "update schema_lock using ttl ? set holder = ? where name = 'migrations' if holder = ?"
_LEAVE: Final = "delete from schema_lock where name = 'migrations' if holder = ?"
_APPLIED: Final = "select number, checksum from schema_migrations"
_NOTE: Final = "insert into schema_migrations (number, name, checksum, apply_us) values (?, ?, ?, ?)"
# A holder that died is forgotten after so many seconds; one statement takes no longer.
_LOCK_TTL: Final = 60
_LOOK_AGAIN: Final = 0.3


class Migration(msgspec.Struct, frozen=True):
    """One numbered schema change; numbers start at 1 and have no gaps."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Tells a file from one that was changed after it had been applied."""
        return blake2b(self.text.encode(), digest_size=16).hexdigest()

    @property
    def statements(self) -> Sequence[str]:
        """Its statements, without comments."""
        bare = re.sub(r"--[^\n]*", "", self.text)
        return [part.strip() for part in re.split(r";\s*(?:\n|$)", bare) if part.strip()]

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


class Upkeep(Protocol):
    """What a session must be able to do for its schema."""

    async def run(self, text: str) -> list[Row]:
        """Runs a statement as it stands."""
        ...

    def execute(self, statement: str, values: Sequence[Value] = ()) -> Awaitable[list[Row]]:
        """Runs a prepared statement."""
        ...


def load_migrations(package: str, folder: str) -> list[Migration]:
    """Reads `<package>/<folder>/NNNN_name.cql`.

    Raises:
        StartError: a gap, a number used twice, or another name.
    """
    found: list[Migration] = []
    for entry in resources.files(package).joinpath(folder).iterdir():
        if not entry.name.endswith(".cql"):
            continue
        match = re.fullmatch(r"(\d{4})_([a-z0-9_]+)\.cql", entry.name)
        if match is None:
            raise StartError(f"{package}/{folder}/{entry.name}: name a migration NNNN_name.cql")
        found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [one.number for one in found] != list(range(1, len(found) + 1)):
        raise StartError(f"{package}/{folder}: a number is missing or used twice; number migrations 1, 2, 3 …")
    return found


async def applied(session: Upkeep) -> Mapping[int, str]:
    """Returns the checksums of the migrations that are in the keyspace; it must have its tables."""
    return {int(number): str(checksum) for number, checksum in await session.execute(_APPLIED)}


def differences(migrations: Sequence[Migration], found: Mapping[int, str]) -> list[str]:
    """Returns what is in a keyspace and not in this version: no migration mends that."""
    known = {one.number: one for one in migrations}
    wrong = [f"migration {number} is newer than this version" for number in sorted(found) if number not in known]
    changed = [
        str(known[number]) for number in sorted(found) if number in known and known[number].checksum != found[number]
    ]
    return [*wrong, *(f"{name} was applied with another content" for name in changed)]


async def migrate(session: Upkeep, migrations: Sequence[Migration], *, wait: float = 30.0) -> list[Migration]:
    """Applies what is missing, under the lock, and returns it.

    Args:
        session: connected to the keyspace.
        migrations: all of them, by number.
        wait: seconds to wait for another process that migrates.

    Raises:
        StartError: another process migrates, or the keyspace has what this version does not know.
    """
    for table in _TABLES:
        await session.run(table)
    holder = uuid.uuid4().hex
    async with _locked(session, holder, wait):
        found = await applied(session)
        if wrong := differences(migrations, found):
            raise StartError(wrong[0])
        missing = [one for one in migrations if one.number not in found]
        for one in missing:
            for statement in one.statements:
                await _keep(session, holder)
                await session.run(statement)
            await session.execute(_NOTE, (one.number, one.name, one.checksum, time.time_ns() // 1000))
    return missing


@asynccontextmanager
async def _locked(session: Upkeep, holder: str, wait: float) -> AsyncIterator[None]:
    end = time.monotonic() + wait
    while not (await session.execute(_TAKE, (holder, _LOCK_TTL)))[0][0]:
        if time.monotonic() > end:
            raise StartError(f"another process has migrated for {wait:.0f} s; try again in a minute")
        await asyncio.sleep(_LOOK_AGAIN)
    try:
        yield
    finally:
        await session.execute(_LEAVE, (holder,))


async def _keep(session: Upkeep, holder: str) -> None:
    if not (await session.execute(_KEEP, (_LOCK_TTL, holder, holder)))[0][0]:
        raise StartError("the lock of the migrations ran out; another process may migrate now")

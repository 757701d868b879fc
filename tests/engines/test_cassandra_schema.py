"""The upkeep of a keyspace on a real node: what is made, what is found wrong, and who may change it when."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Sequence

import pytest

from mesh.cassandra import parse
from mesh.cassandra_admin import KeyspaceAdmin
from mesh.cassandra_driver import DriverSession, open_driver
from mesh.cassandra_migrations import Migration, migrate
from mesh.errors import StartError
from mesh.stores import require
from tests.support.cassandra import keyspace_url

pytestmark = [pytest.mark.engines, pytest.mark.timeout(60)]

FIRST = Migration(1, "first", "create table if not exists rows (id int primary key);")
SECOND = Migration(
    2, "second", "alter table rows add if not exists name text;\nalter table rows add if not exists size int;"
)
_names = itertools.count()


@pytest.fixture
async def upkeep() -> AsyncIterator[DriverSession]:
    """A connection beside the one under test."""
    session = await open_driver(keyspace_url("none"), keyspace=None, timeout=10.0)
    try:
        yield session
    finally:
        await session.close()


@pytest.fixture
async def name(upkeep: DriverSession) -> AsyncIterator[str]:
    """The name of a keyspace that is not there; it is dropped at the end."""
    made = f"hgtest_{os.getpid()}_schema_{next(_names)}"
    yield made
    await upkeep.run(f"drop keyspace if exists {made}")


def admin(name: str, migrations: Sequence[Migration] = (FIRST,), **options: str) -> KeyspaceAdmin:
    """The upkeep of a keyspace, in development when nothing else is said."""
    address = keyspace_url(name).text.partition("?")[0]
    words = "&".join(f"{key}={value}" for key, value in ({"replicas": "1"} | options).items())
    return KeyspaceAdmin("rows", parse("tests", f"{address}?{words}"), migrations)


async def findings(one: KeyspaceAdmin) -> list[tuple[str, str]]:
    """What is not as it must be: state and detail."""
    return [(finding.state, finding.detail) for finding in await one.check() if finding.state != "ok"]


async def test_looking_and_dry_runs_make_nothing(name: str) -> None:
    """What would be made is said, and is still missing afterwards."""
    one = admin(name)
    assert await findings(one) == [("missing", "")]
    said = await one.create(dry_run=True)
    assert said == [f"keyspace {name}, 1 copies in datacenter1", "schema 0001_first"]
    assert await findings(one) == [("missing", "")]
    with pytest.raises(StartError, match=f"keyspace {name} is missing; make it with"):
        await one.migrate(dry_run=False)


async def test_what_was_made_is_right_and_made_once(name: str) -> None:
    """A start goes through; making it again makes nothing."""
    one = admin(name)
    assert len(await one.create(dry_run=False)) == 2
    assert await findings(one) == []
    await require(one)
    assert await one.create(dry_run=False) == []
    assert await one.migrate(dry_run=False) == []


async def test_an_older_schema_is_behind_until_it_is_migrated(name: str) -> None:
    """A start of the newer version says so; a start of the older one then refuses what it does not know."""
    await admin(name).create(dry_run=False)
    newer = admin(name, [FIRST, SECOND])
    assert await findings(newer) == [("behind", "without 0002_second")]
    assert await newer.migrate(dry_run=True) == ["schema 0002_second"]
    assert await findings(newer) == [("behind", "without 0002_second")]
    assert await newer.migrate(dry_run=False) == ["schema 0002_second"]
    assert await findings(newer) == []
    assert await findings(admin(name)) == [("wrong", "migration 2 is newer than this version")]


async def test_a_changed_file_is_found(name: str) -> None:
    """Nothing is applied on top of it."""
    await admin(name).create(dry_run=False)
    changed = admin(name, [Migration(1, "first", "create table if not exists others (id int primary key);"), SECOND])
    assert await findings(changed) == [("wrong", "0001_first was applied with another content")]
    with pytest.raises(StartError, match="0001_first was applied with another content"):
        await changed.migrate(dry_run=False)


async def test_a_process_that_died_in_the_middle_is_gone_on_with(name: str, upkeep: DriverSession) -> None:
    """What it had done of a file is done again without harm."""
    await admin(name).create(dry_run=False)
    await upkeep.run(f"alter table {name}.rows add name text")
    newer = admin(name, [FIRST, SECOND])
    assert await newer.migrate(dry_run=False) == ["schema 0002_second"]
    columns = await upkeep.run(
        f"select column_name from system_schema.columns where keyspace_name = '{name}' and table_name = 'rows'"
    )
    assert {column for (column,) in columns} == {"id", "name", "size"}


async def test_only_one_migrates_at_a_time(name: str, upkeep: DriverSession) -> None:
    """Of several at once each step is done by one; who finds the lock held for too long says so."""
    await admin(name).create(dry_run=False)
    done = await asyncio.gather(*[admin(name, [FIRST, SECOND]).migrate(dry_run=False) for _ in range(3)])
    assert sorted(map(len, done)) == [0, 0, 1]
    await upkeep.run(f"insert into {name}.schema_lock (name, holder) values ('migrations', 'x') if not exists")
    await upkeep.run(f"use {name}")
    with pytest.raises(StartError, match="another process has migrated"):
        await migrate(upkeep, [FIRST, SECOND], wait=0.5)


async def test_too_few_nodes_and_dead_data_centres_are_refused(name: str) -> None:
    """Nothing is made there."""
    assert await findings(admin(name, replicas="3")) == [
        ("wrong", "replicas=3 needs 2 nodes for a quorum, and it has 1; in development say replicas=1")
    ]
    assert await findings(admin(name, datacenter="east")) == [("wrong", "it has no node; there are datacenter1")]
    for one in (admin(name, replicas="3"), admin(name, datacenter="east")):
        with pytest.raises(StartError, match="datacenter"):
            await one.create(dry_run=False)

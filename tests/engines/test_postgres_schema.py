"""Schemas in PostgreSQL: made once, brought up once, and refused when they are not ours."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from mesh.errors import StartError
from mesh.postgres import Place, connect, parse_place
from mesh.postgres_schema import Migration, SchemaAdmin
from mesh.stores import Finding
from tests.support.engines import urls

pytestmark = [pytest.mark.engines, pytest.mark.timeout(90)]

FIRST = Migration(1, "one", "create table one (number integer primary key); insert into one values (1)")
SECOND = Migration(2, "two", "alter table one add column name text default 'it''s'")
THIRD = Migration(3, "three", "create function three() returns integer language plpgsql as $$ begin return 3; end $$")


@pytest.fixture
def place() -> Place:
    """A schema that is not there yet."""
    return parse_place("store_url", f"{urls()['postgresql']}?schema=t_{uuid.uuid4().hex}")


def admin(place: Place, *migrations: Migration, store: str = "things") -> SchemaAdmin:
    """The upkeep of a program that knows these migrations."""
    return SchemaAdmin(what="things", place=place, store=store, migrations=migrations)


async def ask(place: Place, statement: str) -> object:
    """One value."""
    session = await connect(place)
    try:
        return (await session.rows(statement))[0][0]
    finally:
        await session.close()


async def tables(upkeep: SchemaAdmin) -> Finding:
    """What the check says of the schema."""
    return (await upkeep.check())[-1]


async def test_a_schema_is_made_and_brought_up_step_by_step(place: Place) -> None:
    """Missing, then right, then behind for a newer program, which brings it up; each says its steps."""
    schema = place.schema
    old, new = admin(place, FIRST), admin(place, FIRST, SECOND, THIRD)
    assert await tables(old) == Finding(f"schema {schema}", "missing", "is not there")
    steps = [f"schema {schema}", f"migration 0001_one of things in schema {schema}"]
    assert await old.create(dry_run=True) == steps
    assert (await tables(old)).state == "missing"
    assert await old.create(dry_run=False) == steps
    assert await tables(old) == Finding(f"tables of things in schema {schema}: version 1", "ok")
    assert await old.create(dry_run=False) == []
    assert await tables(new) == Finding(
        f"tables of things in schema {schema}", "behind", "are of version 1, must be of version 3"
    )
    assert await new.create(dry_run=False) == []
    more = [f"migration {name} of things in schema {schema}" for name in ("0002_two", "0003_three")]
    assert await new.migrate(dry_run=True) == more
    assert (await tables(new)).state == "behind"
    assert await new.migrate(dry_run=False) == more
    assert await new.migrate(dry_run=False) == []
    assert (await tables(new)).state == "ok"
    assert await ask(place, "select three() + count(*) from one where name = 'it''s'") == 4


async def test_many_processes_at_once_change_it_once(place: Place) -> None:
    """One is first, and the others find it done."""
    new = admin(place, FIRST, SECOND, THIRD)
    await asyncio.gather(*(new.create(dry_run=False) for _ in range(5)))
    assert await ask(place, "select count(*) from one") == 1
    assert await ask(place, "select count(*) from heliograph_migrations") == 3


async def test_a_step_that_fails_leaves_nothing_of_itself(place: Place) -> None:
    """What was before it stays, and the next try goes on from there."""
    broken = Migration(2, "two", "insert into one values (2); create table one (number integer)")
    with pytest.raises(StartError, match='relation "one" already exists') as caught:
        await admin(place, FIRST, broken).create(dry_run=False)
    assert "\n" not in str(caught.value)
    assert await ask(place, "select max(number) from one") == 1
    assert await admin(place, FIRST, SECOND).migrate(dry_run=False) == [
        f"migration 0002_two of things in schema {place.schema}"
    ]


async def test_a_schema_of_another_program_is_left_alone(place: Place) -> None:
    """Newer than this program, or of files that were edited: said, and never changed."""
    await admin(place, FIRST, SECOND).create(dry_run=False)
    older = admin(place, FIRST)
    assert (await tables(older)).detail == "are of version 2, this program knows 1: run a newer program"
    with pytest.raises(StartError, match="run a newer program"):
        await older.migrate(dry_run=False)
    edited = admin(place, FIRST, Migration(2, "two", "select 1"), THIRD)
    assert (await tables(edited)).state == "wrong"
    with pytest.raises(StartError, match="migration 0002_two is not the one of this program"):
        await edited.migrate(dry_run=False)
    assert await ask(place, "select count(*) from heliograph_migrations") == 2


async def test_stores_that_share_a_schema_have_numbers_of_their_own(place: Place) -> None:
    """One of them is there already, the other one is missing and then made."""
    await admin(place, FIRST).create(dry_run=False)
    other = admin(place, Migration(1, "other", "create table other (number integer)"), store="others")
    assert (await tables(other)).state == "missing"
    assert await other.create(dry_run=False) == [f"migration 0001_other of others in schema {place.schema}"]
    assert (await tables(other)).state == "ok"


async def test_nothing_is_migrated_where_nothing_was_made(place: Place) -> None:
    """A wrong schema in a URL makes no second one."""
    with pytest.raises(StartError, match="is not there; make it with `heliograph stores create`"):
        await admin(place, FIRST).migrate(dry_run=False)


async def test_a_server_that_is_not_there_is_one_line() -> None:
    """It says where nobody listens."""
    nowhere = parse_place("store_url", "postgresql://127.0.0.1:1/notices")
    for ask in (admin(nowhere).check(), admin(nowhere).create(dry_run=True), admin(nowhere).migrate(dry_run=False)):
        with pytest.raises(StartError, match=r"127\.0\.0\.1:1/notices: nobody listens there") as caught:
            await ask
        assert "\n" not in str(caught.value)

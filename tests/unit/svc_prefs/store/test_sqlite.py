"""The file that wishes are kept in: which index a page uses, what it costs, and files of earlier versions."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from mesh.sqlite import Writer, load_migrations
from svc_prefs.ports import Stored
from svc_prefs.store import open_store
from svc_prefs.store.sqlite_topics import SUBSCRIBERS, SUBSCRIPTIONS

_MANY = """
with recursive numbers(n) as (select 0 union all select n + 1 from numbers where n + 1 < ?2)
insert into subscriptions select 'acme', printf('r%06d', n), ?1, 0 from numbers
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the newest schema: a topic of a million subscribers between two of 1,000. It is only read."""
    found = tmp_path_factory.mktemp("many") / "prefs.db"
    asyncio.run(_make(found))
    connection = sqlite3.connect(found)
    connection.execute("pragma synchronous = off")
    with connection:
        connection.executemany(_MANY, [("m", 1_000_000), ("a", 1_000), ("z", 1_000)])
    connection.close()
    return found


async def _make(file: Path) -> None:
    store = open_store(f"sqlite:///{file.name}", data_dir=file.parent)
    await store.open()
    await store.close()


def plan(connection: sqlite3.Connection, statement: str, *values: object) -> str:
    """How SQLite means to run a statement."""
    return "; ".join(row[3] for row in connection.execute(f"explain query plan {statement}", values))


def steps(connection: sqlite3.Connection, statement: str, *values: object) -> int:
    """How many instructions SQLite's machine runs for a statement."""
    # Once before counting: the first statement of a connection also reads the schema.
    connection.execute(statement, values).fetchall()
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(step, 1)
    connection.execute(statement, values).fetchall()
    connection.set_progress_handler(None, 0)
    return count


async def test_pages_are_read_from_an_index_and_sorted_by_it(path: Path) -> None:
    """Neither list scans, sorts, or looks at a row beside its index."""
    connection = sqlite3.connect(path)
    found = plan(connection, SUBSCRIBERS, "acme", "m", "r500000", 100)
    assert (
        found == "SEARCH subscriptions USING COVERING INDEX subscribers (tenant_id=? AND topic_id=? AND recipient_id>?)"
    )
    found = plan(connection, SUBSCRIPTIONS, "acme", "r500000", "a", 100)
    assert found == "SEARCH subscriptions USING PRIMARY KEY (tenant_id=? AND recipient_id=? AND topic_id>?)"
    connection.close()


async def test_a_page_costs_the_same_wherever_it_lies_and_however_large_the_topic_is(path: Path) -> None:
    """The machine's instructions for a page of a hundred: at both ends and in the middle, of 1,000 and of a million."""
    connection = sqlite3.connect(path)
    places = [("m", ""), ("m", "r500000"), ("m", "r999899"), ("a", ""), ("z", "r000500")]
    costs = {steps(connection, SUBSCRIBERS, "acme", topic_id, after, 100) for topic_id, after in places}
    assert len(costs) == 1
    assert costs.pop() < 1_000
    connection.close()


async def test_a_file_of_the_first_version_keeps_its_choices(tmp_path: Path) -> None:
    """Choices that were made before there was a log are read, changed, and logged from then on."""
    first = Writer(tmp_path / "prefs.db", migrations=load_migrations("svc_prefs.store")[:1])
    await first.open()
    await first.submit(
        lambda connection: connection.execute("insert into preferences values ('acme', 'alice', 3, x'01')").rowcount
    )
    await first.close()
    store = open_store("sqlite:///prefs.db", data_dir=tmp_path)
    await store.open()
    try:
        found = await store.prefs.get_many("acme", ["alice"])
        assert found.rows == [Stored("acme", "alice", 3, b"\x01")]
        assert await store.prefs.replace(Stored("acme", "alice", 4, b"\x02"), 1)
        assert (await store.prefs.list_changes(found.change_number, 10)).owners == [("acme", "alice")]
    finally:
        await store.close()

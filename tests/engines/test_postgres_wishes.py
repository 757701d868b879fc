"""What wishes in PostgreSQL rest on: numbers in the order of commits, and pages that cost the same everywhere."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.postgres import Session, connect, parse_place
from svc_prefs.ports import LogLimits, Stored
from svc_prefs.store import WishStore, open_store, store_admins
from svc_prefs.store.postgres_topics import SUBSCRIBERS, SUBSCRIPTIONS
from tests.support.engines import urls
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(90)]

NOW_US = 1_700_000_000_000_000
REPLACE = f"select replace_preferences('acme', $1, 1, '', {NOW_US}, 100000, 600000000)"
WAITING = "select count(*) from pg_stat_activity where pg_backend_pid() = any (pg_blocking_pids(pid))"
MANY = """
insert into subscriptions (tenant_id, recipient_id, topic_id, create_us)
select 'acme', 'r' || to_char(number, 'FM000000'), $1, 0 from generate_series(0, $2::integer - 1) as number
"""


@pytest.fixture
async def url() -> str:
    """A schema of the test's own, made."""
    made = f"{urls()['postgresql']}?schema=t_{uuid.uuid4().hex}"
    for admin in store_admins(made):
        await admin.create(dry_run=False)
    return made


@pytest.fixture
async def store(url: str) -> AsyncIterator[WishStore]:
    """The store of that schema."""
    opened = open_store(url, data_dir=Path(), limits=LogLimits())
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def session(url: str) -> AsyncIterator[Session]:
    """A connection of somebody else to the same schema."""
    opened = await connect(parse_place("store_url", url))
    yield opened
    await opened.close()


async def test_a_change_that_commits_late_is_not_passed_over(store: WishStore, session: Session) -> None:
    """A change that has its number and is not committed keeps the next one waiting: readers see both, in order."""
    begin = (await store.prefs.get_many("acme", [])).change_number
    await session.run("begin")
    await session.rows(REPLACE, "early")
    late = asyncio.ensure_future(store.prefs.replace(Stored("acme", "late", 1, b""), NOW_US))

    async def waits() -> bool:
        return bool((await session.rows(WAITING))[0][0])

    await until(waits, 5, "the second change waits")
    # Whoever reads now has seen neither, and does not believe that he has.
    seen = await store.prefs.list_changes(begin, 10)
    assert (seen.owners, seen.change_number) == ([], begin)
    assert not late.done()
    await session.run("commit")
    assert await late
    after = await store.prefs.list_changes(seen.change_number, 10)
    assert after.owners == [("acme", "early"), ("acme", "late")]
    assert after.change_number == begin + 2


async def test_a_change_that_is_taken_back_leaves_no_gap(store: WishStore, session: Session) -> None:
    """Its number goes to the next one; whoever waited for it is not lost."""
    begin = (await store.prefs.get_many("acme", [])).change_number
    await session.run("begin")
    await session.rows(REPLACE, "gone")
    late = asyncio.ensure_future(store.prefs.replace(Stored("acme", "late", 1, b""), NOW_US))
    await session.run("rollback")
    assert await late
    found = await store.prefs.list_changes(begin, 10)
    assert (found.owners, found.change_number) == ([("acme", "late")], begin + 1)


async def test_a_reader_beside_many_writers_misses_nobody(url: str) -> None:
    """Two processes change, a third follows the log page by page: it names everybody who changed, each once."""
    first, second, reader = (open_store(url, data_dir=Path()) for _ in range(3))
    for one in (first, second, reader):
        await one.open()
    number = begin = (await reader.prefs.get_many("acme", [])).change_number
    names = [f"r{index}" for index in range(300)]
    random.Random(5).shuffle(names)
    seen: list[str] = []
    writes = asyncio.gather(
        *(
            (first if index % 2 else second).prefs.replace(Stored("acme", name, 1, b""), NOW_US)
            for index, name in enumerate(names)
        )
    )
    while not writes.done() or number < begin + len(names):
        page = await reader.prefs.list_changes(number, 7)
        assert not page.reset
        seen += [recipient_id for _, recipient_id in page.owners]
        number = page.change_number
    assert all(await writes)
    assert sorted(seen) == sorted(names)
    for one in (first, second, reader):
        await one.close()


async def test_subscribing_waits_for_whoever_changes_the_same_recipient(store: WishStore, session: Session) -> None:
    """Two processes together do not pass the limit; another recipient waits for nobody."""
    await session.run("begin")
    assert len(await session.rows("select * from subscribe('acme', 'alice', array['a', 'b'], 0, 3)")) == 2
    later = asyncio.ensure_future(store.topics.subscribe("acme", "alice", ["c", "d"], now_us=NOW_US, most=3))
    assert await store.topics.subscribe("acme", "bob", ["a"], now_us=NOW_US, most=3)
    assert not later.done()
    await session.run("commit")
    assert await later is None
    assert [one.topic_id for one in await store.topics.list_subscriptions("acme", "alice", after="", limit=9)] == [
        "a",
        "b",
    ]


async def cost(session: Session, statement: str, *values: str) -> tuple[int, set[str]]:
    """How many blocks a page of a hundred touches, and by which steps it is read."""
    await session.run("deallocate all")
    await session.run(f"prepare page as {statement}")
    # As it is run after some calls: with one plan for all values.
    await session.run("set plan_cache_mode = force_generic_plan")
    call = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    await session.rows(f"execute page({call}, 100)")
    found = await session.rows(f"explain (analyze, buffers, format json) execute page({call}, 100)")
    top = json.loads(found[0][0])[0]["Plan"]
    steps = {top["Node Type"]}
    below = top
    while "Plans" in below:
        below = below["Plans"][0]
        steps.add(below["Node Type"])
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"], steps


async def test_a_page_costs_the_same_wherever_it_lies_and_however_large_the_topic_is(session: Session) -> None:
    """Blocks touched for a page of a hundred: at both ends and in the middle, of 1,000 subscribers and of 100,000."""
    for topic_id, count in (("m", 100_000), ("a", 1_000), ("z", 1_000)):
        await session.rows(MANY, topic_id, count)
    await session.run("vacuum analyze subscriptions")
    places = [("m", ""), ("m", "r050000"), ("m", "r099899"), ("a", ""), ("z", "r000500")]
    costs = [await cost(session, SUBSCRIBERS, "acme", topic_id, after) for topic_id, after in places]
    assert {frozenset(steps) for _, steps in costs} == {frozenset({"Limit", "Index Only Scan"})}
    blocks = [count for count, _ in costs]
    assert max(blocks) <= 12
    assert max(blocks) - min(blocks) <= 3
    _, steps = await cost(session, SUBSCRIPTIONS, "acme", "r050000", "")
    assert "Sort" not in steps
    assert "Seq Scan" not in steps


async def test_a_new_topic_is_paged_by_its_index_before_statistics_know_it(session: Session) -> None:
    """A topic that grew since the server last counted is not sorted anew for each page."""
    await session.run("analyze subscriptions")
    await session.rows(MANY, "m", 50_000)
    blocks, steps = await cost(session, SUBSCRIBERS, "acme", "m", "r025000")
    assert "Sort" not in steps
    assert blocks <= 120

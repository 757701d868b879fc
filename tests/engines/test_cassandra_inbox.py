"""What the inbox leaves in Cassandra: timestamps, times to live, and one partition a recipient."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.cassandra import Session, open_session, parse
from mesh.clock import SystemClock
from mesh.errors import StartError
from svc_delivery.ports import AckLevel, DecisionWrite, FollowUpWrite, Inbox, MarkWrite
from svc_delivery.store import open_store
from tests.support.backends import CASSANDRA_CLIENTS
from tests.support.cassandra import CassandraOpener, keyspace_url
from tests.support.inbox import ALICE, DAY_US, NOW_US, make_id, make_key, make_row, numbers

pytestmark = pytest.mark.engines

DAY_S = 86_400
ROW = "where tenant = ? and recipient = ? and high = ? and id = ?"
KEY = ("acme", "alice", False, make_id(1))


@pytest.fixture
async def opener(tmp_path: Path) -> CassandraOpener:
    """Opens the same store again and again."""
    return CassandraOpener("cassandra", tmp_path)


@pytest.fixture
async def inbox(opener: CassandraOpener) -> AsyncIterator[Inbox]:
    """An empty inbox."""
    async with opener() as store:
        yield store.inbox


@pytest.fixture
async def session(inbox: Inbox, opener: CassandraOpener) -> AsyncIterator[Session]:
    """A look at the same keyspace from beside."""
    opened = await open_session(parse("tests", opener.url))
    try:
        yield opened
    finally:
        await opened.close()


async def test_every_cell_has_its_timestamp_and_an_end(inbox: Inbox, session: Session) -> None:
    """Content at id and revision, stamps and marks at the stamp, acks at id and level; nothing stays for ever."""
    await inbox.write([make_row(1, revision=2)], stamp=NOW_US)
    await inbox.mark([MarkWrite(ALICE, [make_id(1)], AckLevel.SEEN, True, True)], stamp=NOW_US + 7)
    columns = ("content", "category", "revision", "expire_us", "stamp", "head", "mark_stamp", "read", "hidden", "acked")
    times = ", ".join(f"writetime({column}), ttl({column})" for column in columns)
    ((*found,),) = await session.execute(f"select {times} from inbox {ROW}", KEY)
    written = dict(zip(columns, found[::2], strict=True))
    lives = dict(zip(columns, found[1::2], strict=True))
    id_us = NOW_US - 3_600_000_000 + 1_000
    content = dict.fromkeys(columns[:4], id_us + 2)
    assert written == content | dict.fromkeys(columns[4:9], NOW_US + 7) | {"acked": id_us + AckLevel.SEEN}
    assert all(89 * DAY_S < life <= 91 * DAY_S for life in lives.values())
    assert min(lives["stamp"], lives["head"]) > lives["content"]


async def test_what_was_trimmed_is_one_range(inbox: Inbox, session: Session) -> None:
    """A row that is written again below it has a stamp and no content, and readers pass over it."""
    await inbox.write([make_row(number) for number in range(1, 241)], stamp=NOW_US)
    assert len((await inbox.window(ALICE, NOW_US)).rows) == 100
    count = "select count(*) from inbox where tenant = ? and recipient = ? and high = ?"
    assert await session.execute(count, KEY[:3]) == [(150,)]
    await inbox.write([make_row(1)], stamp=NOW_US + 5)
    assert await session.execute(f"select stamp, content from inbox {ROW}", KEY) == [(NOW_US + 5, None)]
    assert list(await inbox.states([make_key(1)])) == [None]
    assert await inbox.bodies([make_key(1)]) == {}
    assert 1 not in numbers(list((await inbox.window(ALICE, NOW_US)).rows))


async def test_decisions_go_after_thirty_days(inbox: Inbox, session: Session) -> None:
    """By themselves, counted from their writing."""
    await inbox.write([], stamp=NOW_US, decisions=[DecisionWrite("acme", make_id(1), 1, ("carol",), NOW_US - DAY_US)])
    found = await session.execute(
        "select ttl(recipients), writetime(recipients) from decisions where tenant = ? and event_id = ?",
        ("acme", make_id(1)),
    )
    assert [(30 * DAY_S - 60 < life <= 30 * DAY_S, time_us) for life, time_us in found] == [(True, NOW_US - DAY_US)]


async def test_a_follow_up_without_a_lane_is_not_dropped(opener: CassandraOpener) -> None:
    """The inbox in Cassandra keeps none, and says so instead of losing it."""
    async with opener() as store:
        with pytest.raises(ValueError, match="keeps no follow-ups"):
            await store.rows_only.write([make_row(1)], stamp=NOW_US, follow_up=FollowUpWrite(1, b"x"))
        assert list(await store.inbox.states([make_key(1)])) == [None]


@pytest.mark.parametrize("scheme", CASSANDRA_CLIENTS.values(), ids=CASSANDRA_CLIENTS.keys())
async def test_the_store_of_a_url_is_rows_in_cassandra_and_lanes_beside(
    scheme: str, opener: CassandraOpener, run_dir: Path, tmp_path: Path
) -> None:
    """Opened as a service does it, and again: rows and follow-ups are there."""
    async with opener():
        url = opener.url.replace("cassandra://", f"{scheme}://", 1)
    for again in (False, True):
        store = open_store(url, tmp_path, follow_ups_url="sqlite:///lanes", run_dir=run_dir, clock=SystemClock())
        await store.open()
        try:
            if not again:
                await store.inbox.write([make_row(1)], stamp=NOW_US, follow_up=FollowUpWrite(NOW_US, b"later"))
            assert numbers(list((await store.inbox.window(ALICE, NOW_US)).rows)) == [1]
            assert [one.record for one in await store.follow_ups.containing(b"later", 10)] == [b"later"]
        finally:
            await store.close()
        await store.close()


async def test_a_keyspace_that_nobody_made_stops_the_start(run_dir: Path, tmp_path: Path) -> None:
    """In one line, with the command that makes it."""
    url = keyspace_url("nobody_made_this").text
    store = open_store(url, tmp_path, follow_ups_url="sqlite:///lanes", run_dir=run_dir, clock=SystemClock())
    with pytest.raises(StartError, match="keyspace nobody_made_this: missing; make it with `heliograph stores create`"):
        await store.open()
    await store.close()

"""What each client of Cassandra promises behind the seam; see `mesh.cassandra.Session`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.cassandra import IN_FLIGHT, Session, StatementRefused, StoreUnavailable, open_session, parse
from mesh.errors import StartError
from tests.support.cassandra import CassandraOpener, keyspace_url

pytestmark = pytest.mark.engines

_PUT = "insert into dead_by_recipient (recipient, notification_id, bury_us, letter_id) values (?, ?, ?, ?)"
_PUT_AT = f"{_PUT} using timestamp ?"
_READ = "select bury_us from dead_by_recipient where recipient = ?"
_ROW = "where tenant = 'acme' and recipient = 'alice' and high = false and id = 0x00"


@pytest.fixture(params=["cassandra", "cassandra+acsylla"], ids=["cassandra", "acsylla"])
def client(request: pytest.FixtureRequest) -> str:
    """The scheme of each client."""
    scheme: str = request.param
    return scheme


@pytest.fixture
async def url(client: str, tmp_path: Path) -> AsyncIterator[str]:
    """An empty keyspace with delivery's tables, for each client."""
    opener = CassandraOpener(client, tmp_path)
    async with opener():
        yield opener.url


@pytest.fixture
async def session(url: str) -> AsyncIterator[Session]:
    """A session of each client."""
    opened = await open_session(parse("tests", url))
    try:
        yield opened
    finally:
        await opened.close()


async def test_an_answer_has_all_its_pages(session: Session) -> None:
    """Also when it is longer than what one message carries, and when more is asked at once than may be in flight."""
    count = 2_500
    assert count > 2 * IN_FLIGHT
    await asyncio.gather(*[session.execute(_PUT, ("alice", b"", number, b"")) for number in range(count)])
    assert await session.execute(_READ, ("alice",)) == [(number,) for number in range(count)]
    assert await session.execute(_READ, ("bob",)) == []


async def test_values_come_back_as_they_went(session: Session) -> None:
    """Texts, bytes, numbers of both sizes, truth, maps, and nothing at all."""
    columns = "category, revision, content, stamp, read, hidden, steps"
    values = ("žluťoučký", -5, b"\x00\xff", 1 << 53, True, None, {"2/1": b"", "3/1": b"x"})
    names = ", ".join(f"{column} = ?" for column in columns.split(", "))
    await session.execute(f"update inbox using timestamp ? set {names} {_ROW}", (7, *values))
    (found,) = await session.execute(f"select {columns} from inbox {_ROW}")
    assert (*found[:-1], dict(found[-1])) == values
    await session.execute(f"update inbox set steps[?] = ? {_ROW}", ("4/1", b"y"))
    ((steps,),) = await session.execute(f"select steps from inbox {_ROW}")
    assert dict(steps) == {"2/1": b"", "3/1": b"x", "4/1": b"y"}


async def test_the_timestamp_of_a_statement_counts(session: Session) -> None:
    """An older write that comes later changes nothing; no client puts a time of its own in between."""
    put = f"update inbox using timestamp ? set stamp = ? {_ROW}"
    for time_us in (20, 10, 15):
        await session.execute(put, (time_us, time_us))
    assert await session.execute(f"select stamp, writetime(stamp) from inbox {_ROW}") == [(20, 20)]


async def test_a_batch_is_all_or_nothing(session: Session) -> None:
    """A value that does not fit keeps the others out as well."""
    rows = [(_PUT_AT, ("alice", b"", number, b"", 1)) for number in range(3)]
    await session.batch(rows)
    assert len(await session.execute(_READ, ("alice",))) == 3
    with pytest.raises(StatementRefused):
        await session.batch([(_PUT_AT, ("bob", b"", 1, b"", 1)), (_PUT_AT, ("bob", b"", "soon", b"", 1))])
    assert await session.execute(_READ, ("bob",)) == []


async def test_a_condition_tells_whether_it_held(session: Session) -> None:
    """The lock of the migrations rests on it."""
    take = "insert into schema_lock (name, holder) values (?, ?) if not exists using ttl 60"
    names = [f"{type(session).__name__}-{number}" for number in range(2)]
    assert [(await session.execute(take, (name, "first")))[0][0] for name in names] == [True, True]
    assert (await session.execute(take, (names[0], "second")))[0][0] is False
    for name in names:
        await session.execute("delete from schema_lock where name = ? if exists", (name,))


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        pytest.param("selct 1", (), id="no statement"),
        pytest.param("select nothing from inbox", (), id="no column"),
        pytest.param(_PUT, ("alice", b"", "soon", b""), id="a text as number"),
        pytest.param(_PUT, ("alice", b"", 1 << 70, b""), id="a number too large"),
        pytest.param(_PUT, ("alice", b"", 1), id="too few values"),
        pytest.param(_PUT, ("alice", b"", 1, b"", 1), id="too many values"),
        pytest.param(_PUT, ("", b"", 1, b""), id="an empty key"),
        pytest.param(_PUT, ("alice", bytes(70_000), 1, b""), id="a key too long"),
        pytest.param(f"update inbox set content = ? {_ROW}", (bytes(40 << 20),), id="more than a node takes"),
    ],
)
async def test_what_can_never_be_stored_is_refused(
    session: Session, statement: str, values: tuple[str | bytes | int, ...]
) -> None:
    """It is told from a store that cannot be asked, and the session goes on."""
    with pytest.raises(StatementRefused) as caught:
        await session.execute(statement, values)
    assert "\n" not in str(caught.value)
    assert await session.execute(_READ, ("alice",)) == []
    assert session.connected


async def test_whoever_stops_waiting_disturbs_nobody(session: Session) -> None:
    """Given up in all places: before it is prepared, while it waits for its turn, while it is asked."""
    first = [asyncio.ensure_future(session.execute(_PUT, ("alice", b"", number, b""))) for number in range(2)]
    # One turn of the loop, here and below: calls have begun, and none has its answer.
    await asyncio.sleep(0)
    first[0].cancel()
    await first[1]
    crowd = [asyncio.ensure_future(session.execute(_PUT, ("bob", b"", number, b""))) for number in range(600)]
    await asyncio.sleep(0)
    for one in crowd[::2]:
        one.cancel()
    await asyncio.gather(*crowd[1::2])
    found = {number for (number,) in await session.execute(_READ, ("bob",))}
    assert found >= set(range(1, 600, 2))


async def test_a_closed_session_says_so(url: str) -> None:
    """At once, and closing it again does no harm."""
    session = await open_session(parse("tests", url))
    await session.execute(_READ, ("alice",))
    await session.close()
    await session.close()
    assert not session.connected
    with pytest.raises(StoreUnavailable):
        await session.execute(_READ, ("alice",))


async def test_a_keyspace_that_is_not_there_is_one_line(client: str) -> None:
    """It says how to make one."""
    with pytest.raises(StartError, match="keyspace nobody_made_this does not exist; make it with"):
        await open_session(keyspace_url("nobody_made_this", client=client))


async def test_a_data_centre_is_kept_to(url: str) -> None:
    """A right name is the session's; a wrong one is refused with the name in it."""
    session = await open_session(parse("tests", url))
    datacenter = session.datacenter
    await session.close()
    assert datacenter
    named = await open_session(parse("tests", f"{url}&datacenter={datacenter}"))
    assert named.datacenter == datacenter
    assert await named.execute(_READ, ("alice",)) == []
    await named.close()
    with pytest.raises(StartError, match="datacenter=nowhere"):
        await open_session(parse("tests", f"{url}&datacenter=nowhere"))

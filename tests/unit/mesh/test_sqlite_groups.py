"""What a group of writes does when all goes well, when an item fails, when the disk is full."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import textwrap
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from mesh.sqlite import Migration, StoreError, Writer

NOTES = [Migration(1, "notes", "create table notes(name text primary key, size integer not null) strict")]


def add(connection: sqlite3.Connection, name: str, size: int = 1) -> None:
    """Writes one note."""
    connection.execute("insert into notes values (?, ?)", (name, size))


def adding(name: str) -> Callable[[sqlite3.Connection], None]:
    """Makes work that writes one note."""
    return partial(add, name=name)


def names(connection: sqlite3.Connection) -> list[str]:
    """Reads every name."""
    return [row[0] for row in connection.execute("select name from notes order by name")]


@pytest.fixture
async def writer(tmp_path: Path) -> AsyncIterator[Writer]:
    """An open writer of a file of notes."""
    writer = Writer(tmp_path / "notes.db", migrations=NOTES)
    await writer.open()
    yield writer
    await writer.close()


async def test_queued_items_share_one_commit_and_one_wake_up(tmp_path: Path) -> None:
    """Items that queue while the thread is busy are committed together, at most 64 at a time."""
    commits: list[int] = []
    writer = Writer(tmp_path / "notes.db", migrations=NOTES, committed=lambda: commits.append(1))
    await writer.open()
    await asyncio.gather(*(writer.submit(adding(f"{n:03}")) for n in range(640)))
    assert len(await writer.read(names)) == 640
    assert len(commits) <= 20
    await writer.close()


async def test_a_failing_item_harms_no_neighbour(writer: Writer) -> None:
    """In one group the failing items get their own errors and undo only what they wrote."""

    def half(connection: sqlite3.Connection) -> None:
        add(connection, "half")
        raise LookupError("no")

    def twice(connection: sqlite3.Connection) -> None:
        add(connection, "twice")
        add(connection, "twice")

    good = [writer.submit(adding(str(n))) for n in range(6)]
    results = await asyncio.gather(
        *good[:3], writer.submit(half), writer.submit(twice), *good[3:], return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None)] * 3 + [LookupError, sqlite3.IntegrityError] + [
        type(None)
    ] * 3
    assert await writer.read(names) == [str(n) for n in range(6)]


async def test_a_single_failing_item_runs_once(writer: Writer) -> None:
    """An item alone in its group is not run again when it fails."""
    runs: list[int] = []

    def fail(connection: sqlite3.Connection) -> None:
        runs.append(1)
        raise LookupError("no")

    with pytest.raises(LookupError):
        await writer.submit(fail)
    assert runs == [1]


async def test_stop_iteration_reaches_the_caller(writer: Writer) -> None:
    """Work that raises what a future refuses does not leave its caller waiting for ever."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        await writer.submit(lambda connection: next(iter(())))


async def test_work_that_ends_the_transaction_is_named(writer: Writer) -> None:
    """Work that commits on its own is a programming error and is told so."""
    with pytest.raises(RuntimeError, match="ended the transaction"):
        await writer.submit(lambda connection: connection.executescript("select 1"))
    await writer.submit(adding("after"))


async def test_a_cancelled_caller_disturbs_nobody(writer: Writer) -> None:
    """A call that is given up leaves its neighbours and the thread alone."""
    given_up = asyncio.ensure_future(writer.submit(adding("x")))
    await asyncio.sleep(0)
    given_up.cancel()
    await writer.submit(adding("y"))
    assert "y" in await writer.read(names)


async def test_a_full_disk_is_a_store_error_and_passes(writer: Writer) -> None:
    """A write that finds no room fails with path and cause, small neighbours and later writes go through."""
    pages = await writer.submit(lambda connection: connection.execute("pragma page_count").fetchone()[0])
    await writer.submit(lambda connection: connection.execute(f"pragma max_page_count = {pages + 2}").fetchone())

    def huge(connection: sqlite3.Connection) -> None:
        add(connection, "x" * 100_000)

    results = await asyncio.gather(
        writer.submit(adding("a")),
        writer.submit(huge),
        writer.submit(adding("b")),
        return_exceptions=True,
    )
    assert results[0] is None
    assert results[2] is None
    failure = results[1]
    assert isinstance(failure, StoreError)
    assert (failure.reason, failure.retriable, failure.unknown) == ("STORE_UNAVAILABLE", True, False)
    assert str(writer.path) in failure.message
    assert "full" in failure.message
    await writer.submit(lambda connection: connection.execute("pragma max_page_count = 100000").fetchone())
    await writer.submit(huge)
    assert len(await writer.read(names)) == 3


async def test_a_failing_commit_fails_its_whole_group(tmp_path: Path) -> None:
    """When the commit itself fails, every caller of the group hears so, with the outcome called unknown."""
    migration = Migration(
        1,
        "deferred",
        "create table parents(id integer primary key);"
        "create table notes(name text, parent integer references parents(id) deferrable initially deferred)",
    )
    writer = Writer(tmp_path / "notes.db", migrations=[migration])
    await writer.open()
    # Outside a transaction only: so in a group of its own, and by a connection-wide switch.
    await writer.submit(
        lambda connection: (
            connection.execute("commit"),
            connection.execute("pragma foreign_keys = on"),
            connection.execute("begin"),
        )
    )
    orphan = writer.submit(lambda connection: connection.execute("insert into notes values ('a', 7)"))
    fine = writer.submit(lambda connection: connection.execute("insert into notes values ('b', null)"))
    for result in await asyncio.gather(orphan, fine, return_exceptions=True):
        assert isinstance(result, StoreError)
        assert result.unknown
    await writer.submit(lambda connection: connection.execute("insert into notes values ('c', null)"))
    assert await writer.read(names) == ["c"]
    await writer.close()


async def test_a_file_size_limit_fails_writes_until_it_is_lifted(tmp_path: Path) -> None:
    """With the log file at its limit nothing is half-written; when there is room again, writes go on."""
    program = """
        import asyncio, resource, signal, sys
        from pathlib import Path
        from mesh.sqlite import Migration, StoreError, Writer

        async def main() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            writer = Writer(Path(sys.argv[1]), migrations=[Migration(1, "a", "create table a(n integer, v blob)")])
            await writer.open()
            size = 400_000
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            done = 0
            try:
                for n in range(1000):
                    await writer.submit(lambda c, n=n: c.executemany(
                        "insert into a values (?, ?)", [(n, bytes(3000)) for _ in range(10)]))
                    done += 1
            except StoreError as error:
                print(error.reason)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await writer.submit(lambda c: c.execute("insert into a values (?, ?)", (done, b"")))
            rows = await writer.read(lambda c: c.execute("select n, count(*) from a group by n").fetchall())
            assert 0 < done < 1000
            assert rows == [(n, 10) for n in range(done)] + [(done, 1)], rows
            await writer.close()
            print("whole")

        asyncio.run(main())
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "a.db"), stdout=PIPE, stderr=PIPE
    )
    stdout, stderr = await process.communicate()
    assert stdout.split() == [b"STORE_UNAVAILABLE", b"whole"], stderr.decode()


async def test_what_was_queued_is_finished_by_close(tmp_path: Path) -> None:
    """Closing waits for the queue, and afterwards every call is refused in one sentence."""
    writer = Writer(tmp_path / "notes.db", migrations=NOTES)
    await writer.open()
    writes = [asyncio.ensure_future(writer.submit(adding(str(n)))) for n in range(200)]
    await asyncio.sleep(0)
    await writer.close()
    assert all(write.done() and write.exception() is None for write in writes)
    for call in (writer.submit, writer.read):
        with pytest.raises(StoreError, match="is not open"):
            await call(names)
    await writer.close()

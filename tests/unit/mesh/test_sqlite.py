"""The writer, the readers beside it, and every way a file can refuse to open."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import textwrap
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from mesh.sqlite import Migration, Reader, StoreError, StoreUrlError, Writer, file_of, load_migrations

NOTHING: list[str] = []
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


async def test_a_write_is_there_after_reopening(tmp_path: Path) -> None:
    """What submit returned for is read back by the next process that opens the file."""
    for expected in (["a"], ["a", "b"]):
        writer = Writer(tmp_path / "sub" / "notes.db", migrations=NOTES)
        await writer.open()
        await writer.submit(adding(expected[-1]))
        assert await writer.read(names) == expected
        await writer.close()


async def test_the_connection_has_the_durable_settings(writer: Writer) -> None:
    """The file is in WAL mode, synced at every commit, and its log is folded every 1,000 pages."""

    def pragmas(connection: sqlite3.Connection) -> list[object]:
        wanted = ("journal_mode", "synchronous", "wal_autocheckpoint", "cache_size", "foreign_keys")
        return [connection.execute(f"pragma {name}").fetchone()[0] for name in wanted]

    assert await writer.submit(pragmas) == ["wal", 2, 1_000, -65_536, 0]
    assert (os.stat(writer.path).st_mode & 0o777) == 0o600


async def test_commits_of_a_mere_memory_cost_no_sync(tmp_path: Path) -> None:
    """A file whose loss of power may cost its last commits syncs at checkpoints only."""
    writer = Writer(tmp_path / "memory.db", migrations=NOTES, synced=False)
    await writer.open()
    level = await writer.submit(lambda connection: connection.execute("pragma synchronous").fetchone()[0])
    assert level == 1
    await writer.close()


async def test_a_second_writer_is_refused_with_the_owner(writer: Writer) -> None:
    """Another writer of the same file hears which process has it, and the lock file holds nothing else."""
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        await Writer(writer.path, migrations=NOTES, lock_wait=0.0).open()
    assert writer.path.with_name("notes.db.lock").read_text() == f"{os.getpid()}\n"


async def test_a_restart_is_a_hand_over(writer: Writer) -> None:
    """A writer that waits takes the file as soon as its owner closes it."""
    successor = Writer(writer.path, migrations=NOTES, lock_wait=10.0)
    opening = asyncio.ensure_future(successor.open())
    await asyncio.sleep(0)
    await writer.submit(adding("first"))
    assert not opening.done()
    await writer.close()
    await opening
    assert await successor.read(names) == ["first"]
    await successor.close()


@pytest.mark.parametrize(
    "content", [b"no database at all, not even close" * 100, b"SQLite format 3\0" + b"\xff" * 4096]
)
async def test_a_foreign_file_stops_the_start(tmp_path: Path, content: bytes) -> None:
    """A file that is no database is refused in one line with its path, and stays as it was."""
    path = tmp_path / "notes.db"
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        await Writer(path, migrations=NOTES, lock_wait=0.0).open()
    assert str(path) in caught.value.message
    assert "move it away" in caught.value.message
    assert "\n" not in caught.value.message
    assert path.read_bytes() == content
    path.unlink()
    writer = Writer(path, migrations=NOTES, lock_wait=0.0)
    await writer.open()  # the refused one let the lock go
    await writer.close()


async def test_a_newer_schema_stops_the_start(writer: Writer) -> None:
    """A file of a newer program is not touched by an older one."""
    await writer.close()
    newer = Writer(writer.path, migrations=[*NOTES, Migration(2, "more", "create table more(a)")])
    await newer.open()
    await newer.close()
    with pytest.raises(StoreError, match="schema version 2, this program knows up to 1"):
        await Writer(writer.path, migrations=NOTES).open()


async def test_an_old_library_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose SQLite lacks what schemas need is named before a schema fails half-way."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreError, match=r"too old; use a Python with 3\.37\.0"):
        await Writer(tmp_path / "notes.db", migrations=NOTES).open()


async def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    """A path below a plain file is refused in one line."""
    (tmp_path / "plain").write_text("")
    with pytest.raises(StoreError, match="plain"):
        await Writer(tmp_path / "plain" / "notes.db", migrations=NOTES).open()


async def test_a_failing_migration_leaves_the_version_before(writer: Writer) -> None:
    """A migration is all or nothing, and a later start goes on from where it stood."""
    await writer.close()
    broken = [*NOTES, Migration(2, "more", "create table more(a); insert into nowhere values (1)")]
    with pytest.raises(StoreError, match=r"migration 2 \(more\) failed"):
        await Writer(writer.path, migrations=broken).open()
    mended = Writer(writer.path, migrations=[*NOTES, Migration(2, "more", "create table more(a)")])
    await mended.open()
    assert await mended.read(lambda c: c.execute("pragma user_version").fetchone()[0]) == 2
    await mended.close()


@pytest.mark.parametrize("numbers", [(2,), (1, 1), (1, 3)])
def test_numbers_without_order_are_refused(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    """Migrations with a gap or a number used twice never run."""
    with pytest.raises(StoreError, match="missing or used twice"):
        Writer(tmp_path / "a.db", migrations=[Migration(number, "x", "select 1") for number in numbers])


def test_migrations_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are taken by number; one with another name is refused."""
    folder = tmp_path / "some_store" / "migrations"
    folder.mkdir(parents=True)
    (tmp_path / "some_store" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder / "0002_more.sql").write_text("create table b(x)")
    (folder / "0001_first.sql").write_text("create table a(x)")
    (folder / "README.md").write_text("not SQL")
    assert [(m.number, m.name, m.sql) for m in load_migrations("some_store")] == [
        (1, "first", "create table a(x)"),
        (2, "more", "create table b(x)"),
    ]
    (folder / "third.sql").write_text("")
    with pytest.raises(StoreError, match="NNNN_name"):
        load_migrations("some_store")


async def test_a_read_cannot_write(writer: Writer) -> None:
    """The connection that reads refuses to change anything."""
    with pytest.raises(StoreError, match="readonly"):
        await writer.read(adding("x"))


async def test_a_read_is_one_snapshot_that_has_every_commit_before_it(writer: Writer) -> None:
    """Two statements of one read see the same state; the next read sees what was committed meanwhile."""
    loop = asyncio.get_running_loop()

    def look_twice(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
        before = names(connection)
        asyncio.run_coroutine_threadsafe(writer.submit(adding("between")), loop).result(10)
        return before, names(connection)

    await writer.submit(adding("a"))
    assert await writer.read(look_twice) == (["a"], ["a"])
    assert await writer.read(names) == ["a", "between"]


async def test_a_reader_waits_for_the_file(tmp_path: Path) -> None:
    """Before the file is there a reader gets nothing and makes nothing; then it follows the writer live."""
    path = tmp_path / "notes.db"
    reader = Reader(path)
    await reader.open()
    assert await reader.read(names, NOTHING) == []
    assert not path.exists()
    path.touch()
    assert await reader.read(names, NOTHING) == []
    writer = Writer(path, migrations=NOTES)
    await writer.open()
    await writer.submit(adding("a"))
    assert await reader.read(names, NOTHING) == ["a"]
    await writer.submit(adding("b"))
    assert await reader.read(names, NOTHING) == ["a", "b"]
    await writer.close()
    assert await reader.read(names, NOTHING) == ["a", "b"]
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert await reader.read(names, NOTHING) == []
    await reader.close()


async def test_a_reader_names_a_broken_file(tmp_path: Path) -> None:
    """A file that is no database is an error of the read, with the path."""
    path = tmp_path / "notes.db"
    path.write_bytes(b"no database" * 1000)
    reader = Reader(path)
    await reader.open()
    with pytest.raises(StoreError, match=r"notes\.db"):
        await reader.read(names, NOTHING)
    await reader.close()


async def test_sigkill_loses_no_write_that_returned(tmp_path: Path) -> None:
    """A process killed while many callers write has kept every write that it reported, and its lock is free."""
    program = """
        import asyncio, sys
        from pathlib import Path
        from mesh.sqlite import Migration, Writer

        async def main() -> None:
            writer = Writer(Path(sys.argv[1]), migrations=[Migration(1, "notes", sys.argv[2])])
            await writer.open()

            async def write(caller: int) -> None:
                for n in range(1_000_000):
                    name = f"{caller}-{n}"
                    await writer.submit(lambda c: c.execute("insert into notes values (?, 1)", (name,)))
                    print(name, flush=True)

            await asyncio.gather(*(write(caller) for caller in range(16)))

        asyncio.run(main())
    """
    path = tmp_path / "notes.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(program), str(path), NOTES[0].sql, stdout=PIPE
    )
    assert process.stdout is not None
    reported = [(await process.stdout.readline()).decode().strip() for _ in range(1_000)]
    process.kill()
    rest = await process.stdout.read()
    await process.wait()
    reported += [line.decode() for line in rest.split(b"\n")[:-1]]
    writer = Writer(path, migrations=NOTES, lock_wait=0.0)
    await writer.open()
    assert set(reported) <= set(await writer.read(names))
    await writer.close()


def test_urls_name_files() -> None:
    """A relative path is below the data folder, an absolute one is its own; all else is refused."""
    assert file_of("sqlite:///inbox.db", Path("/data")) == Path("/data/inbox.db")
    assert file_of("sqlite:////var/inbox.db", Path("/data")) == Path("/var/inbox.db")
    for url in ("redis://x", "inbox.db", "sqlite://x", "sqlite:///"):
        with pytest.raises(StoreUrlError, match="sqlite:///path"):
            file_of(url, Path("/data"))

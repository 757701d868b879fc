"""Files of migrations, and how a keyspace differs from them; applying them needs a node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mesh.cassandra_migrations import Migration, differences, load_migrations
from mesh.errors import StartError

TWO = [Migration(1, "first", "create table a (b int primary key);"), Migration(2, "second", "alter table a add c int;")]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A package with an empty folder of migrations."""
    name = f"migrated_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name / "cql"
    folder.mkdir(parents=True)
    (tmp_path / name / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name, folder


def test_files_come_in_their_order(package: tuple[str, Path]) -> None:
    """Other files are left alone."""
    name, folder = package
    for file in ("0002_second.cql", "0001_first.cql", "notes.txt"):
        (folder / file).write_text("select 1;", encoding="utf-8")
    assert [str(one) for one in load_migrations(name, "cql")] == ["0001_first", "0002_second"]


@pytest.mark.parametrize(
    "files", [["0002_a.cql"], ["0001_a.cql", "0001_b.cql"], ["0001_a.cql", "0003_c.cql"], ["1_a.cql"]]
)
def test_a_gap_or_another_name_is_refused(package: tuple[str, Path], files: list[str]) -> None:
    """Before anything is applied."""
    name, folder = package
    for file in files:
        (folder / file).write_text("select 1;", encoding="utf-8")
    with pytest.raises(StartError, match=f"{name}/cql"):
        load_migrations(name, "cql")


def test_statements_are_told_apart_without_their_comments() -> None:
    """A comment may hold a semicolon, and a statement several lines."""
    table = "-- what; for\ncreate table a (\n  b int primary key -- the key; yes\n);\n\n"
    text = f"{table}insert into a (b) values (1);\n-- end\n"
    assert Migration(1, "a", text).statements == [
        "create table a (\n  b int primary key \n)",
        "insert into a (b) values (1)",
    ]


def test_what_this_version_does_not_know_is_no_work_to_do() -> None:
    """Newer migrations and changed ones are named; missing ones are not, those are applied."""
    first, second = TWO
    assert differences(TWO, {}) == []
    assert differences(TWO, {1: first.checksum, 2: second.checksum}) == []
    assert differences(TWO, {1: "0" * 32}) == ["0001_first was applied with another content"]
    assert differences(TWO, {1: first.checksum, 3: "0" * 32}) == ["migration 3 is newer than this version"]

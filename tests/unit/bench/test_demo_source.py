"""Reading the source that the demo publishes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.demo_source import read_archive, read_source


def _git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def _write(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name, encoding="utf-8")


def test_a_repository_gives_its_commits_and_nobodys_name(tmp_path: Path) -> None:
    """Subject, short hash and files are read, oldest first; who wrote it is not."""
    _git(tmp_path, "init", "--quiet")
    for name, subject in (("mesh/größe.py", "Measure it"), ("README.md", "Say so")):
        _write(tmp_path, name)
        _git(tmp_path, "add", name)
        _git(tmp_path, "commit", "--quiet", "-m", subject)
    what, changes = read_source(tmp_path)
    assert "2 commits" in what
    assert [(one.subject, one.files) for one in changes] == [
        ("Measure it", ("mesh/größe.py",)),
        ("Say so", ("README.md",)),
    ]
    assert changes[0].link == f"/commit/{changes[0].reference}"
    assert "obody" not in str(changes)


def test_files_stand_in_where_there_is_no_history(tmp_path: Path) -> None:
    """An archive gives a change a file; what was built or installed there is left out."""
    for name in ("mesh/ids.py", "README.md", ".venv/lib/a.py", "mesh/__pycache__/ids.pyc"):
        _write(tmp_path, name)
    what, changes = read_source(tmp_path)
    assert "2 files" in what
    assert [one.files for one in changes] == [("README.md",), ("mesh/ids.py",)]


def test_a_repository_without_commits_is_an_archive(tmp_path: Path) -> None:
    """A history that has not begun yet is no reason to fail."""
    _git(tmp_path, "init", "--quiet")
    _write(tmp_path, "README.md")
    assert [one.files for one in read_source(tmp_path)[1]] == [("README.md",)]


def test_files_are_read_where_history_gives_no_choice(tmp_path: Path) -> None:
    """A repository with one commit has its files still, each a change of its own."""
    _git(tmp_path, "init", "--quiet")
    for name in ("mesh/ids.py", "README.md"):
        _write(tmp_path, name)
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--quiet", "-m", "Everything")
    assert len(read_source(tmp_path)[1]) == 1
    assert [change.files for change in read_archive(tmp_path)[1]] == [("README.md",), ("mesh/ids.py",)]

"""Reads the source that the demo publishes: git's history, or the project's files where there is none.

Must not decide who gets what (`demo_events.py` does), and reads nothing of who wrote what.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.demo_events import FIELD, RECORD, Change, of_files, read_log

ROOT = Path(__file__).resolve().parents[1]
LOG_FORMAT = f"{RECORD}%h{FIELD}%s"

_LIMIT_S = 20.0
_DIGEST_BYTES = 5
_LEFT_OUT = {".git", ".venv", ".cache", ".heliograph", "__pycache__", "node_modules", "dist", "build"}


def read_source(root: Path = ROOT) -> tuple[str, list[Change]]:
    """Returns what was read, in words, and its changes, oldest first."""
    changes = read_log(_log(root))
    if changes:
        return f"git history of this repository, {len(changes)} commits", changes
    return read_archive(root)


def read_archive(root: Path = ROOT) -> tuple[str, list[Change]]:
    """Returns the same of the files as they are, without history."""
    changes = of_files({path.relative_to(root).as_posix(): _digest(path) for path in _files(root)})
    return f"the {len(changes)} files of this source, for its history is missing or too short", changes


def _log(root: Path) -> str:
    """Returns git's log, or nothing where this is no repository of its own."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-c", "core.quotepath=off", "-C", str(root), "log", "--reverse", "--name-only"]
    try:
        return subprocess.run(
            [*command, f"--format={LOG_FORMAT}"],
            capture_output=True,
            check=True,
            timeout=_LIMIT_S,
            encoding="utf-8",
            errors="replace",
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _files(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _LEFT_OUT)
        yield from (Path(folder) / name for name in sorted(files) if not (Path(folder) / name).is_symlink())


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()

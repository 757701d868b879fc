"""The command line: help, failures, and what it must not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Typer itself uses pydantic.
_SLOW = ("pydantic_settings", "structlog", "grpc", "cryptography", "google.protobuf", "websockets")


def _heliograph(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heliograph_cli", *argv]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, timeout=25)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("up",),
        ("publish",),
        ("prefs", "mute"),
        ("topics", "list"),
        ("dead-letters", "redrive"),
        ("parked", "get"),
        ("stores", "check"),
    ],
)
def test_help_imports_nothing_slow(words: tuple[str, ...], tmp_path: Path) -> None:
    """Asking for help answers at once: neither settings nor logs nor gRPC are loaded."""
    program = f"""
import sys
from heliograph_cli.main import app
try:
    app([*{words!r}, "--help"])
except SystemExit as end:
    assert end.code == 0, end.code
loaded = [name for name in {_SLOW!r} if name in sys.modules]
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=25
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_a_failure_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    """Nothing running is exit code 4 and a line that says what to do; no traceback."""
    done = _heliograph("inbox", "alice", folder=tmp_path)
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr == (
        f"heliograph: nothing runs with the state folder {tmp_path / '.heliograph'}; "
        "start it with `heliograph up`, or give --state-dir\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("publish", "no recipients"),
        ("mark", "alice"),
        ("prefs", "set", "alice", "general"),
        ("prefs", "mute", "alice"),
        ("prefs", "unmute", "alice"),
        ("prefs", "mute", "alice", "--topic", "news", "--for", "a while"),
        ("topics", "subscribe", "alice"),
        ("dead-letters", "redrive"),
        ("dead-letters", "redrive", "some-id", "--all"),
        ("dead-letters", "redrive", "--all", "--reason", "poison"),
        ("parked", "redrive"),
        ("parked", "redrive", "normal/1/1", "--all"),
        ("explain", "some-id"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_exit_code_two(words: tuple[str, ...], tmp_path: Path) -> None:
    """What is missing or unknown on the command line is said before anything is done."""
    done = _heliograph(*words, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".heliograph").exists()


def test_down_with_nothing_running_is_no_failure(tmp_path: Path) -> None:
    """Stopping what does not run is done already."""
    done = _heliograph("down", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "nothing runs here\n")

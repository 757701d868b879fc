"""What `up` writes down for the other commands."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from heliograph_cli import record
from heliograph_cli.failures import FAILED, UNAVAILABLE, CommandFailed
from heliograph_cli.record import ProcessRecord, UpRecord


def _record(pid: int) -> UpRecord:
    one = ProcessRecord("ingest", "service", "ingest", 7, "serving", 0, argv=("python",), log="/state/log/ingest.log")
    return UpRecord(
        pid=pid,
        state="serving",
        direct=True,
        start_time=1.5,
        run_dir="/run/hg",
        trust_domain="heliograph.local",
        edge="",
        live_urls={"gw-a-0": "ws://127.0.0.1:1/v1/ws"},
        inbound={},
        producer_host="",
        processes={"ingest": one},
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """The file holds the whole record, for its owner only, and nothing is left beside it."""
    path = tmp_path / "up.json"
    record.write(path, _record(os.getpid()))
    record.write(path, _record(os.getpid()))
    assert record.read(path) == record.read_running(path) == _record(os.getpid())
    assert path.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_runs_without_a_file_or_with_a_dead_process(tmp_path: Path, ended_pid: int) -> None:
    """A record that a killed `up` left behind does not count."""
    path = tmp_path / "up.json"
    assert record.read(path) is None
    with pytest.raises(CommandFailed, match="nothing runs with the state folder") as caught:
        record.read_running(path)
    assert caught.value.code == UNAVAILABLE
    record.write(path, _record(ended_pid))
    with pytest.raises(CommandFailed, match="nothing runs"):
        record.read_running(path)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """A file that is cut off or of another version is one line, not a traceback."""
    path = tmp_path / "up.json"
    for content in (b"{", msgspec.json.encode({"pid": "x"})):
        path.write_bytes(content)
        with pytest.raises(CommandFailed, match=r"up\.json: ") as caught:
            record.read(path)
        assert caught.value.code == FAILED

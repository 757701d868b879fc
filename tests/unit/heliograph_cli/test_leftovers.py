"""What a killed `up` left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from heliograph_cli import leftovers
from heliograph_cli.record import ProcessRecord, alive

_WAIT = "import signal; print('here', flush=True); signal.pause()"


@pytest.fixture
def survivor() -> Iterator[subprocess.Popen[str]]:
    """A process with a mark in its arguments."""
    argv = [sys.executable, "-I", "-S", "-c", _WAIT, "/run/hg-mark"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _record(pid: int) -> ProcessRecord:
    return ProcessRecord("ingest", "service", "ingest", pid, "serving", 0, argv=(), log="")


async def test_survivors_are_ended(survivor: subprocess.Popen[str]) -> None:
    """A process of an earlier run is told to end and waited for, aloud."""
    said: list[str] = []
    await leftovers.end([_record(survivor.pid)], ("/run/hg-mark",), lambda name, text, _: said.append(f"{name} {text}"))
    assert survivor.wait(5) != 0
    assert said == [f"ingest left behind by an earlier run (pid {survivor.pid}); waiting for its end"]


async def test_strangers_with_the_same_id_are_left_alone(survivor: subprocess.Popen[str], ended_pid: int) -> None:
    """An id that belongs to another program by now, to nobody, or to no process is not signalled."""
    records = [_record(survivor.pid), _record(ended_pid), _record(0)]
    await leftovers.end(records, ("/run/hg-other",), lambda *_: pytest.fail("nobody is ours"))
    assert alive(survivor.pid)
    assert survivor.poll() is None

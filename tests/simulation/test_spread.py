"""Pieces of work are shared out among processes that end with the one that made them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.spread import spread
from tests.support.wait import until

_ROOT = Path(__file__).resolve().parents[2]
# A shell lets what it starts in the background ignore an interrupt, and that is inherited.
_PROGRAM = """
import signal
import sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.simulation.test_spread import stand_still
from tests.simulation.spread import spread
print(list(spread(stand_still, [Path(sys.argv[1])] * 3, 2)))
"""


def own_process(number: int) -> tuple[int, int]:
    """Returns what it is given, and who worked on it."""
    return number, os.getpid()


def stand_still(folder: Path) -> None:
    """Says which process is here, and stays: nobody opens the way."""
    (folder / f"pid-{os.getpid()}").touch()
    (folder / "way").read_bytes()


def _at_work(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _PROGRAM, folder], cwd=_ROOT, stderr=subprocess.DEVNULL)


def _here(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def _lives(pid: int) -> bool:
    # One that nobody has buried yet is dead all the same.
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_results_come_in_the_order_of_the_pieces() -> None:
    """Whoever worked on them; one process alone works where it is."""
    shared = list(spread(own_process, range(20), 3))
    assert [number for number, _ in shared] == list(range(20))
    assert os.getpid() not in {pid for _, pid in shared}
    assert list(spread(own_process, range(3), 1)) == [(number, os.getpid()) for number in range(3)]


def test_a_piece_that_fails_fails_the_whole() -> None:
    """Nobody takes what is missing for a result."""
    with pytest.raises(ValueError, match="invalid literal"):
        list(spread(int, ["1", "2", "three", "4"], 2))


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_nobody_is_left_behind(ending: signal.Signals, tmp_path: Path) -> None:
    """However the process ends: nobody finishes what is under way."""
    os.mkfifo(tmp_path / "way")
    with _at_work(tmp_path) as parent:
        await until(lambda: len(_here(tmp_path)) == 2, 10.0, "two processes at work")
        pids = _here(tmp_path)
        parent.send_signal(ending)
        try:
            await until(lambda: not any(map(_lives, pids)), 10.0, "both gone")
            assert parent.wait(10.0) != 0
        finally:
            for pid in filter(_lives, [*pids, parent.pid]):
                os.kill(pid, signal.SIGKILL)
    assert len(_here(tmp_path)) == 2

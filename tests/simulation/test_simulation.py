"""Simulated runs: seeds with and without faults, the same seed twice, and every mutant noticed.

Each runs in processes of its own: hashes are fixed there, and the services' replaced parts stay in them. More seeds,
and the mutants, are part of `make faults`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.simulation.script import Act, Script

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 280.0

pytestmark = pytest.mark.timeout(300)


def simulate(*arguments: str, code: int = 0) -> str:
    """Runs the program, which ends with this code; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == code, done.stdout[-8_000:] + done.stderr[-2_000:]
    return done.stdout


def test_nothing_is_lost_shown_twice_or_leaked_whatever_goes_wrong() -> None:
    """Crashes at any effect, cut links, stores that stall, lose their answer or act late: the checker finds nothing.

    Inboxes are in a file, or on replicas that do not always agree; every hook that is listed has its seed. In half of
    the seeds requests arrive although nobody waits for their answers any more.
    """
    told = simulate("0-24")
    assert "not valid 0" in told
    assert "late requests 0" not in told


def test_without_faults_no_copy_is_too_many() -> None:
    """Devices come and go, people mute and read; the wire carries each notification once to each device."""
    told = simulate("--calm", "0-11")
    assert "not valid 0" in told


def test_a_seed_is_replayed_to_the_same_history() -> None:
    """Whoever looks at a failure sees what happened, not something like it, however many shared the work."""
    first, second = (json.loads(simulate("--digests", "--processes", count, "3", "9", "11")) for count in "12")
    assert first == second
    assert len(set(first.values())) == 3


def test_a_failure_is_replayed_to_the_same_verdict() -> None:
    """History, violations, their timelines and what the services logged: a failing seed tells the same again."""
    broken = "the position moves to the largest that is done"
    first, second = (simulate("--broken", broken, "1", code=1) for _ in range(2))
    assert "== seed 1: invalid; history " in first
    assert "I13: normal is committed to " in first
    assert first == second


def test_a_fault_that_meets_nothing_is_not_exercised() -> None:
    """Links that nobody uses are cut and reset, a lane without records stalls, an empty log is flushed: no evidence."""
    acts = [
        Act(0.1, "flush"),
        Act(0.1, "reset", "producer", "presence"),
        Act(0.1, "cut", "producer", "presence", seconds=1.0),
        Act(0.1, "trouble", "bulk.db", seconds=1.0, how="refused"),
        Act(2.0, "publish", numbers=(0,)),
        Act(3.0, "reset", "delivery", "gw-sim-0"),
    ]
    told = simulate("--script", msgspec.json.encode(Script(acts, 5.0, 1)).decode(), "1")
    assert "faults with evidence 1, not exercised 4\n" in told


@pytest.mark.faults
def test_every_broken_rule_is_noticed() -> None:
    """One rule of the services is broken at a time; without that the very same script is valid."""
    told = simulate("--mutants")
    # For the scoreboard.
    print(f"\n{told}")
    found = re.search(r"^mutants noticed (\d+) of (\d+)$", told, re.MULTILINE)
    assert found is not None
    assert found[1] == found[2] != "0"

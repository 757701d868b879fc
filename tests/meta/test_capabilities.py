"""Each clause of what the service does is shown in every shape, by tests that exist and run there, or says why not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.meta.tree import ROOT
from tests.scenarios.capabilities import Capability, load, misplaced, missing, undecided, unmeasured

_PARTS: Final = (
    *("Wishes and topics", "Priorities", "After the ack window", "Apps", "Sessions at scale", "Overload"),
    *("Operating it", "Field tools", "Docs"),
)
_LEAST: Final = 70


def test_every_part_has_its_clauses() -> None:
    """None is dropped without anybody noticing."""
    parts = load()
    assert tuple(parts) == _PARTS
    assert sum(map(len, parts.values())) >= _LEAST


def test_every_clause_has_tests_or_a_reason_in_every_shape() -> None:
    """Not both, and not neither; a reason is a sentence."""
    parts = load()
    assert list(undecided(parts)) == []
    reasons = [
        reason
        for part in parts.values()
        for clause in part.values()
        for reason in (clause.reason_loop, clause.reason_processes, clause.reason_mesh)
        if reason
    ]
    assert [reason for reason in reasons if not (reason[0].isupper() and reason.endswith("."))] == []


def test_every_named_test_exists() -> None:
    """A test that was renamed or removed shows nothing."""
    assert list(missing(load())) == []


@pytest.mark.timeout(120)
def test_every_named_test_runs_in_its_shape() -> None:
    """As pytest itself collects it: a mark that was lost takes the test out of a shape's run."""
    command = [sys.executable, "-m", "tests.scenarios.capabilities"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    collected = {test: frozenset(shapes) for test, shapes in json.loads(done.stdout).items()}
    assert list(misplaced(load(), collected)) == []


def test_every_named_measurement_has_a_row() -> None:
    """What is measured instead of tested is in the table."""
    assert list(unmeasured(load())) == []


def test_the_rules_catch_what_they_are_for(tmp_path: Path) -> None:
    """Each finds its breach: a shape without anything, a test that is gone or elsewhere, a row that is none."""
    (tmp_path / "test_a.py").write_text("def test_there(): ...\n", encoding="utf-8")
    there, gone = "test_a.py::test_there", "test_a.py::test_gone"
    clause = Capability(loop=(there,), processes=(gone,), reason_processes="It is not.", bench=("speed", "weight"))
    parts = {"a part": {"it is": clause}}
    assert list(undecided(parts)) == ["it is: processes", "it is: mesh"]
    assert list(missing(parts, tmp_path)) == [f"it is: {gone}"]
    collected = {there: frozenset({"loop"}), gone: frozenset({"loop", "mesh"})}
    assert list(misplaced(parts, collected)) == [f"it is: processes: {gone}"]
    assert list(unmeasured(parts, "| speed, direct | 1 |\n| weightless | 2 |\n")) == ["it is: weight"]

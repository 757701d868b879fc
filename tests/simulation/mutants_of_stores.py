"""Stores and locks with one rule broken each, which a test of theirs must notice: no simulated run could show them.

- *A lower revision wins*: no service makes a second revision yet, so all contents of an id are the same.
- *A zombie is not fenced*: an entry counts only while its epoch is that of its node's lease, and a node that lost its
  lease asserts every session again; what a zombie writes is written over. With stopped processes `tests/faults` looks.
- *Two writers on one file*: the lock belongs to the machine, which is simulated in a run.

`python -m tests.simulation.mutants_of_stores NAME` runs the test of one with the rule broken, and ends as pytest does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mesh.filelock
import svc_delivery.store.sqlite
import svc_presence.store.memory
from tests.simulation.mutant import Make, Replace, mutated

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 120.0
_OPTIONS = ("-q", "-m", "not engines")


class StoreMutant(msgspec.Struct, frozen=True):
    """One broken rule.

    Attributes:
        name: the rule.
        make: breaks it.
        test: must fail then; without that it is among the tests that pass.
    """

    name: str
    make: Make
    test: str

    @property
    def is_noticed(self) -> bool:
        """Whether the test fails with the rule broken and passes without, each in a process of its own."""
        broken, whole = (_run("tests.simulation.mutants_of_stores", self.name), _run("pytest", *_OPTIONS, self.test))
        return (broken, whole) == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK)


def _run(module: str, *arguments: str) -> int:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, timeout=_LIMIT_S, check=False).returncode


def _last_content_wins(replace: Replace) -> None:
    statement = svc_delivery.store.sqlite._INSERT_ROW
    replace(svc_delivery.store.sqlite, "_INSERT_ROW", statement.replace("excluded.revision > revision", "true"))


def _any_epoch_reports(replace: Replace) -> None:
    report = svc_presence.store.memory.MemoryStore.report

    async def unfenced(self: Any, node_id: str, epoch: int, **rest: Any) -> Any:
        lease = self._leases.get(node_id)
        return await report(self, node_id, epoch if lease is None else lease.epoch, **rest)

    replace(svc_presence.store.memory.MemoryStore, "report", unfenced)


def _lock_nothing(replace: Replace) -> None:
    replace(mesh.filelock, "_try_lock", lambda descriptor: True)


STORE_MUTANTS: Sequence[StoreMutant] = (
    StoreMutant(
        "a lower revision wins",
        _last_content_wins,
        "tests/contract/test_inbox.py::test_the_higher_revision_wins_in_any_order",
    ),
    StoreMutant(
        "a zombie is not fenced",
        _any_epoch_reports,
        "tests/contract/test_presence.py::test_an_older_epoch_is_refused",
    ),
    StoreMutant(
        "two writers are let onto one file",
        _lock_nothing,
        "tests/unit/mesh/test_sqlite.py::test_a_second_writer_is_refused_with_the_owner",
    ),
)

STORES_BY_NAME: Mapping[str, StoreMutant] = {mutant.name: mutant for mutant in STORE_MUTANTS}


def main(name: str) -> int:
    """Runs the test of a mutant; returns pytest's exit code."""
    mutant = STORES_BY_NAME[name]
    with mutated(mutant.make):
        return int(pytest.main([*_OPTIONS, mutant.test]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

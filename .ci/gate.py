"""Runs what must pass before anything lands: the steps in order, cheapest first, each with its time.

Steps that need no servers are single processes: as many of them run side by side as there are processors for, and what
each says is shown as a whole when it ends. All others start many processes, have time limits of their own and run
alone. The first step that fails ends the run with its name, so nobody waits for the rest. It must not know how a step
works: each is a target of the Makefile, so what fails here can be run alone under the same name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]

# The longest soon: the others run beside it.
SINGLE: tuple[tuple[str, ...], ...] = (
    ("types",),
    ("unit",),
    ("fmt-check",),
    ("lint",),
    ("gen-check",),
    ("breaking",),
    ("docs-check",),
    ("wheel-test",),
)
STEPS: tuple[tuple[str, ...], ...] = (
    ("engines-test",),
    ("scenarios", "SHAPE=processes"),
    ("scenarios", "SHAPE=mesh"),
    ("faults",),
)

_PAUSE_S = 0.05

Step = Sequence[str]


class _Running:
    """A step that runs.

    Args:
        number: of the step.
        step: its arguments.
        make: the command that runs it.
        output: what it says goes there; None: to where this process writes.
    """

    def __init__(self, number: int, step: Step, make: Sequence[str], output: IO[bytes] | None = None) -> None:
        self.number = number
        self.name = " ".join(step)
        self.output = output
        self._began = time.monotonic()
        # A group of its own: who ends the gate ends what it runs, which then stops what it has started.
        self.process = subprocess.Popen(
            [*make, *step], cwd=ROOT, process_group=0, stdout=output, stderr=subprocess.STDOUT if output else None
        )

    @property
    def took(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    def end(self) -> None:
        """Ends it with everything in its group."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


def run(single: Sequence[Step], steps: Sequence[Step], make: Sequence[str], places: int) -> int:
    """Runs the steps until one fails; returns the exit code for the whole.

    Args:
        single: steps that run side by side before all others; each the arguments of one call of make.
        steps: those that run alone.
        make: the command that runs a step.
        places: how many run side by side.
    """
    began, count = time.monotonic(), len(single) + len(steps)
    for one in _ended_of(single, make, places):
        assert one.output is not None
        one.output.seek(0)
        print(f"\n== {one.number}/{count} {one.name}\n{one.output.read().decode(errors='replace')}", end="", flush=True)
        if not _passed(one):
            return 1
    for number, step in enumerate(steps, start=len(single) + 1):
        print(f"\n== {number}/{count} {' '.join(step)}", flush=True)
        one = _Running(number, step, make)
        try:
            one.process.wait()
        finally:
            one.end()
        if not _passed(one):
            return 1
    print(f"\n== PASSED: {count} steps in {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _ended_of(steps: Sequence[Step], make: Sequence[str], places: int) -> Iterator[_Running]:
    """Runs steps side by side and gives each as it ends; those that still run are ended with the iteration."""
    waiting, running = list(enumerate(steps, start=1)), list[_Running]()
    with contextlib.ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < places:
                number, step = waiting.pop(0)
                one = _Running(number, step, make, stack.enter_context(tempfile.TemporaryFile()))
                stack.callback(one.end)
                running.append(one)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                yield one
            time.sleep(_PAUSE_S)


def _passed(one: _Running) -> bool:
    if one.process.returncode == 0:
        print(f"== ok {one.name} in {one.took:.1f} s", flush=True)
        return True
    print(f"\n== FAILED: {one.name} after {one.took:.1f} s; run `make {one.name}` to see it alone", flush=True)
    return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(run(SINGLE, STEPS, ["make", "--no-print-directory"], os.cpu_count() or 1))

"""Runs what must pass before anything lands: the steps in order, cheapest first, each with its time.

The first step that fails ends the run with its name, so nobody waits for the rest. It must not know how a step works:
each is a target of the Makefile, so what fails here can be run alone under the same name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

STEPS: tuple[tuple[str, ...], ...] = (
    ("fmt-check",),
    ("lint",),
    ("types",),
    ("gen-check",),
    ("breaking",),
    ("docs-check",),
    ("unit",),
    ("wheel-test",),
    ("engines-test",),
    ("scenarios", "SHAPE=processes"),
    ("scenarios", "SHAPE=mesh"),
    ("faults",),
)


def run(steps: Sequence[Sequence[str]], make: Sequence[str]) -> int:
    """Runs the steps until one fails; returns the exit code for the whole.

    Args:
        steps: each the arguments of one call of make.
        make: the command that runs a step.
    """
    began = time.monotonic()
    for number, step in enumerate(steps, start=1):
        name = " ".join(step)
        print(f"\n== {number}/{len(steps)} {name}", flush=True)
        step_began = time.monotonic()
        code = _run([*make, *step])
        took = time.monotonic() - step_began
        if code != 0:
            print(f"\n== FAILED: {name} after {took:.1f} s; run `make {name}` to see it alone", flush=True)
            return 1
        print(f"== ok {name} in {took:.1f} s", flush=True)
    print(f"\n== PASSED: {len(steps)} steps in {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _run(command: Sequence[str]) -> int:
    # A group of its own: who ends the gate ends what it runs, which then stops what it has started.
    with subprocess.Popen(command, cwd=ROOT, process_group=0) as child:
        try:
            return child.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            child.wait()
            raise


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(run(STEPS, ["make", "--no-print-directory"]))

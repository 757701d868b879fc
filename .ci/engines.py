"""Starts the engines once, runs what needs them, and stops them whatever happens.

They are the run's own: a folder of their own, which a run that was killed leaves to the next one to clear, and free
ports. An engine that does not start fails the run. It must not know what is run on them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from deploy.engines.choices import Choices, default_folder  # noqa: E402
from deploy.engines.failures import EnginesFailed  # noqa: E402
from deploy.engines.running import FILE, Engines, recall  # noqa: E402

STEPS: tuple[tuple[str, ...], ...] = (("contract-engines",), ("scenarios", "SHAPE=processes", "STORES=engines"))
VARIABLE = "HELIOGRAPH_ENGINES"

# Below the range that the system takes ports for outgoing connections from.
_BASE_PORTS = range(8600, 12_600, 100)


def run(steps: Sequence[Sequence[str]], make: Sequence[str], folder: Path) -> int:
    """Runs the steps on engines that are started for them; returns the exit code for the whole.

    Args:
        steps: each the arguments of one call of make; all of them run, whatever becomes of the others.
        make: the command that runs a step.
        folder: for the engines; what is in it is removed.
    """
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"engines: {folder} is in use by another run; wait for its end", file=sys.stderr)
            return 1
        _clear(folder)
        began = time.monotonic()
        engines = _with_free_ports(folder)
        try:
            engines.start()
            print(f"-- engines serve after {time.monotonic() - began:.1f} s", flush=True)
            environ = {**os.environ, VARIABLE: str(folder / FILE)}
            failed = [" ".join(step) for step in steps if not _passes(step, make, environ)]
        finally:
            stop_began = time.monotonic()
            _clear(folder)
            print(f"-- engines stopped after {time.monotonic() - stop_began:.1f} s", flush=True)
    for name in failed:
        print(f"-- FAILED: {name}", flush=True)
    return 1 if failed else 0


def _passes(step: Sequence[str], make: Sequence[str], environ: dict[str, str]) -> bool:
    began = time.monotonic()
    code = subprocess.run([*make, *step], cwd=ROOT, env=environ, check=False).returncode
    print(f"-- {' '.join(step)}: {time.monotonic() - began:.1f} s", flush=True)
    return code == 0


def _with_free_ports(folder: Path) -> Engines:
    for base_port in _BASE_PORTS:
        engines = Engines(Choices(folder, base_port, quick=True), os.environ, _say)
        if not engines.taken_ports():
            return engines
    raise EnginesFailed(f"no free ports from {_BASE_PORTS[0]} to {_BASE_PORTS[-1]}")


def _clear(folder: Path) -> None:
    earlier = recall(folder)
    if earlier is not None:
        Engines(earlier, os.environ, lambda _: None).stop()
    shutil.rmtree(folder, ignore_errors=True)


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Runs the step that is given, or all; a signal to end stops the engines first."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    own = default_folder()
    try:
        return run(
            (tuple(arguments),) if arguments else STEPS,
            ["make", "--no-print-directory"],
            own.with_name(f"{own.name}-test-{checkout}"),
        )
    except EnginesFailed as failed:
        for line in failed.lines:
            print(f"engines: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.faults.board quick|full`: runs the parts of the proof and prints one scoreboard.

Each test writes the figures of its verdict into a folder; the simulation prints its own, in its tests too. Ends with 1
when a part failed or a run is not valid. It must not know what a part does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.faults import catalogue
from tests.faults.judging import VARIABLE, FaultResult, RunResult

_ROOT: Final = Path(__file__).resolve().parents[2]
# In the order of the files: each module has one cluster after another.
_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-m")
_SIMULATE: Final = (sys.executable, "-m", "tests.simulation")
_MILLION: Final = 1_000_000
# The row of crowds that come back: its evidence says how many, and how soon.
_CROWD: Final = "F-78"


class Part(msgspec.Struct, frozen=True):
    """One command of the proof."""

    name: str
    command: tuple[str, ...]


QUICK: Final = (
    # Seeds before these are part of the unit tests.
    Part("simulation", (*_SIMULATE, "25-149")),
    Part("mutants and rule machine", (*_PYTEST, "faults", "-s", "tests/simulation")),
    Part("rig", (*_PYTEST, "faults and not engines and not thorough", "tests/faults")),
)
FULL: Final = (
    Part("simulation", (*_SIMULATE, "0-1999")),
    Part("without faults", (*_SIMULATE, "--calm", "0-99")),
    Part("mutants", (*_SIMULATE, "--mutants")),
    Part("rule machine", (*_SIMULATE, "--machine", "300")),
    Part("rig", (*_PYTEST, "faults and not engines", "tests/faults")),
    Part("engines", (sys.executable, ".ci/engines.py", "faults-engines")),
    Part("rig on engines", (sys.executable, ".ci/engines.py", "faults-on-engines")),
)


class Simulated(msgspec.Struct):
    """What the simulation said, added up."""

    seeds: int = 0
    invalid: int = 0
    accepted: int = 0
    deliveries: int = 0
    extra: int = 0
    faults: int = 0
    all_hooks: int = 0
    hooks: int = 0
    crashed: int = 0
    killed: int = 0
    mutants: int = 0
    calm_deliveries: int = 0
    calm_extra: int = 0
    scripts: int = 0
    left_out: list[str] = msgspec.field(default_factory=list)

    def hear(self, text: str, *, calm: bool) -> None:
        """Takes what one call of the simulation printed."""
        self.seeds += _figure(r"^seeds (\d+)", text)
        self.invalid += _figure(r"^seeds \d+, not valid (\d+)", text)
        self.accepted += _figure(r"^events accepted (\d+)", text)
        deliveries, extra = _figure(r"deliveries (\d+)", text), _figure(r"copies too many (\d+)", text)
        if calm:
            self.calm_deliveries += deliveries
            self.calm_extra += extra
        else:
            self.deliveries += deliveries
            self.extra += extra
            said = re.findall(r"^hooks (never passed|no process died at) \(\d+\): (.*)$", text, re.MULTILINE)
            self.left_out += [f"{what} {names}" for what, names in said]
        self.faults += _figure(r"^faults with evidence (\d+)", text)
        self.all_hooks = max(self.all_hooks, _figure(r"^hooks (\d+)", text))
        self.hooks = max(self.hooks, _figure(r"^hooks \d+, passed (\d+)", text))
        self.crashed = max(self.crashed, _figure(r"died at (\d+)", text))
        self.scripts += _figure(r"^scripts (\d+), not valid 0", text)
        self.killed += _figure(r"^mutants noticed (\d+)", text)
        self.mutants += _figure(r"^mutants noticed \d+ of (\d+)", text)


def _figure(pattern: str, text: str) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    return int(found[1]) if found else 0


def scoreboard(runs: Sequence[RunResult], simulated: Simulated, failed: Sequence[str]) -> str:
    """Renders what all parts came to."""
    made = [fault for run in runs for fault in run.faults]
    shown = [fault for fault in made if fault.evidence]
    survived = sum(bool(fault.evidence) for run in runs if run.state == "valid" for fault in run.faults)
    calm = [run for run in runs if not run.faults]
    deliveries = sum(run.deliveries for run in runs)
    counts, wrong = sum(run.counts for run in runs), sum(run.wrong_counts for run in runs)
    rows = catalogue.load()
    lines = {
        "runs on processes": f"{len(runs)}, valid {sum(run.state == 'valid' for run in runs)}",
        "faults survived, with evidence": f"{survived} of {len(shown)}",
        "not exercised": str(len(made) - len(shown)),
        "accepted deliveries lost": f"{sum(run.lost for run in runs)} of {deliveries:,}; simulated, of "
        f"{simulated.deliveries + simulated.calm_deliveries:,}: {simulated.invalid} runs not valid",
        "copies on the wire, without faults": _per_million(
            sum(run.extra for run in calm) + simulated.calm_extra,
            sum(run.received for run in calm) + simulated.calm_deliveries,
        ),
        "copies on the wire, under faults": _per_million(
            sum(run.extra for run in runs if run.faults), sum(run.received for run in runs if run.faults)
        )
        + f"; simulated {_per_million(simulated.extra, simulated.deliveries)}",
        "shown twice": str(sum(run.shown_twice for run in runs)),
        "gaps after a replay": f"{sum(run.gaps for run in runs)} of {sum(run.sessions for run in runs)} sessions",
        "unread numbers that agree": f"{counts - wrong} of {counts}",
        "simulation seeds": f"{simulated.seeds}, not valid {simulated.invalid}, faults {simulated.faults}",
        "scripts of the rule machine": f"{simulated.scripts}, all valid" if simulated.scripts else "not run",
        "hooks passed": f"{simulated.hooks} of {simulated.all_hooks}, a process died at {simulated.crashed} of them"
        + "".join(f"; {one}" for one in simulated.left_out),
        "mutants noticed": f"{simulated.killed} of {simulated.mutants}" if simulated.mutants else "not run",
        "rows of the catalogue covered": f"{sum(row.is_covered for row in rows.values())} of {len(rows)}",
        "runs with nothing to look at for": _unseen(runs),
        "parts that failed": ", ".join(failed) or "none",
    }
    width = max(map(len, lines))
    table = [f"  {name:{width}}  {value}" for name, value in lines.items()]
    times = "  seconds until all that was under way meanwhile had come:"
    crowds = [f"    {fault.evidence}" for fault in shown if fault.row == _CROWD]
    title = ["  crowds that came back to nodes:"] if crowds else []
    seeded = [
        f"  chosen by seed {run.seed}: {len(run.faults)} faults in {run.deliveries:,} deliveries, {run.lost} lost"
        for run in runs
        if run.seed is not None
    ]
    return "\n".join(["== scoreboard", *table, *seeded, times, *_times(made), *title, *crowds])


def _per_million(part: int, whole: int) -> str:
    return f"{part} of {whole:,} ({part * _MILLION / whole:.0f} per million)" if whole else "nothing came"


def _unseen(runs: Sequence[RunResult]) -> str:
    """Says of each invariant that some run shows nothing about how many runs those are, and where that is all."""
    counts = Counter(name for run in runs for name in run.unseen)
    named = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name} {'all' if count == len(runs) else count}" for name, count in named) or "none"


def _times(faults: Iterable[FaultResult]) -> list[str]:
    found: Mapping[tuple[str, str], list[float]] = defaultdict(list)
    for fault in faults:
        if fault.seconds is not None:
            target = re.sub(r"^gw-.*-(\d+)(-envoy)?$", r"gateway-\1\2", fault.target)
            found[fault.row, target].append(fault.seconds)
    return [
        f"    {row:6} {target:16} {len(one):3} times, median {sorted(one)[len(one) // 2]:.1f}, most {max(one):.1f}"
        for (row, target), one in sorted(found.items())
    ]


def run(parts: Sequence[Part]) -> int:
    """Runs parts, all of them, and prints the board; returns the exit code."""
    failed, simulated = [], Simulated()
    with tempfile.TemporaryDirectory(prefix="hg-board-") as folder:
        for part in parts:
            began = time.monotonic()
            print(f"-- {part.name}: {' '.join(part.command[1:])}", flush=True)
            code, text = _passes(part.command, {**os.environ, VARIABLE: folder})
            simulated.hear(text, calm="--calm" in part.command)
            print(f"-- {part.name}: {time.monotonic() - began:.1f} s", flush=True)
            failed += [part.name] if code else []
        runs = [msgspec.json.decode(path.read_bytes(), type=RunResult) for path in sorted(Path(folder).glob("*.json"))]
    print(scoreboard(runs, simulated, failed), flush=True)
    return 1 if failed or any(one.state != "valid" for one in runs) else 0


def _passes(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Runs a command, passes its lines on, and returns its exit code and what it said."""
    said = []
    with subprocess.Popen(command, cwd=_ROOT, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            print(line, end="", flush=True)
    return process.returncode, "".join(said)


def main(arguments: Sequence[str]) -> int:
    """Runs the set that is named."""
    sets: Mapping[str, Sequence[Part]] = {"quick": QUICK, "full": FULL}
    if len(arguments) != 1 or arguments[0] not in sets:
        print("usage: python -m tests.faults.board quick|full", file=sys.stderr)
        return 2
    return run(sets[arguments[0]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

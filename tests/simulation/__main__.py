"""`python -m tests.simulation`: runs seeds, prints what they came to, and how to replay one that failed.

The same seed is the same run: where hashes are not fixed the program starts itself anew with fixed ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tests.faults.checker import report
from tests.simulation.mutant import Make, Mutant, mutated
from tests.simulation.mutants import BY_NAME
from tests.simulation.mutants_of_stores import STORES_BY_NAME
from tests.simulation.run import Outcome, run
from tests.simulation.script import HOOKS, LANE_HOOKS, PROCESSES, READING_HOOKS, Script, make

if TYPE_CHECKING:
    from tests.simulation.machine import Found

_LOG_LINES = 60
_HOOKS = (*HOOKS, *LANE_HOOKS)
# A mutant has so many seeds to be noticed.
_MUTANT_SEEDS = 5


class Board(msgspec.Struct):
    """What seeds came to, added up.

    Attributes:
        seeds: runs.
        failed: seeds that are not valid.
        accepted: events.
        deliveries: recipients of them.
        extra: copies too many on wires.
        faults: that show evidence.
        idle: faults that show none: they were made, and met nothing.
        seconds: virtual.
        hooks: passed at least once.
        crashed: hooks at which a process died.
        rows: how many faults of each row of the catalogue have shown evidence.
        disagreed: reads of two replicas that had different cells.
        late: requests that arrived though their callers had given them up.
        slowest: longest time until all was quiet after the last fault, virtual seconds.
        digests: of each run's history, by its seed.
    """

    seeds: int = 0
    failed: list[int] = msgspec.field(default_factory=list)
    accepted: int = 0
    deliveries: int = 0
    extra: int = 0
    faults: int = 0
    idle: int = 0
    seconds: float = 0.0
    hooks: Counter[str] = msgspec.field(default_factory=Counter)
    crashed: Counter[str] = msgspec.field(default_factory=Counter)
    rows: Counter[str] = msgspec.field(default_factory=Counter)
    disagreed: int = 0
    late: int = 0
    slowest: float = 0.0
    digests: dict[int, str] = msgspec.field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Adds a run."""
        figures = outcome.verdict.figures
        self.seeds += 1
        if outcome.verdict.state != "valid" or outcome.broken:
            self.failed.append(outcome.seed)
        self.accepted += figures.accepted
        self.deliveries += figures.deliveries
        self.extra += figures.extra
        self.faults += figures.faults
        self.idle += figures.not_exercised
        self.seconds += outcome.seconds
        self.hooks.update({hook: count for hook, count in outcome.visited.items() if _is_of_a_service(hook)})
        self.crashed.update(outcome.crashed)
        self.rows.update(outcome.rows)
        self.disagreed += outcome.disagreed
        self.late += outcome.late
        self.slowest = max(self.slowest, outcome.settled or 0.0)
        self.digests[outcome.seed] = outcome.digest

    def __str__(self) -> str:
        """Says it in lines for people."""
        return "\n".join(
            (
                f"seeds {self.seeds}, not valid {len(self.failed)}{f': {self.failed}' if self.failed else ''}",
                f"events accepted {self.accepted}, deliveries {self.deliveries}, copies too many {self.extra}",
                f"faults with evidence {self.faults}, not exercised {self.idle}",
                f"rows of the catalogue: {', '.join(f'{row} {count}' for row, count in sorted(self.rows.items()))}",
                f"weak replicas disagreed {self.disagreed} times, late requests {self.late}",
                f"hooks {len(_HOOKS)}, passed {len(self.hooks)}, processes died at {len(self.crashed)} of them",
                f"virtual time {self.seconds / 3600:.1f} h; quiet again at the latest after {self.slowest:.1f} s",
            )
        )

    def left_out(self) -> str:
        """Says which hooks nobody passed, at which nobody died, and which nobody has listed."""
        never = self.missed
        undead = [hook for hook in _HOOKS if hook in self.hooks and hook not in self.crashed]
        parts = (("never passed", never), ("no process died at", undead), ("not listed", self.unlisted))
        return "\n".join(f"hooks {what} ({len(hooks)}): {', '.join(hooks)}" for what, hooks in parts if hooks)

    @property
    def missed(self) -> list[str]:
        """Hooks that nobody passed."""
        return [hook for hook in _HOOKS if hook not in self.hooks]

    @property
    def unlisted(self) -> list[str]:
        """Hooks that were passed and are not in the list."""
        return sorted(self.hooks.keys() - {*_HOOKS})


def _is_of_a_service(hook: str) -> bool:
    kinds = {name.partition("-sim")[0] + "-sim" if name.startswith("gw-") else name for name in PROCESSES}
    return hook.partition(" ")[0] in kinds and hook not in READING_HOOKS


def run_seeds(seeds: Iterable[int], *, calm: bool, script: Script | None = None) -> Board:
    """Runs seeds, each with its own script or all with one, and tells of each that is not valid."""
    board = Board()
    for seed in seeds:
        outcome = run(make(seed, faults=not calm) if script is None else script, seed)
        board.add(outcome)
        if outcome.verdict.state != "valid" or outcome.broken:
            _tell(outcome, calm)
    return board


def _tell(outcome: Outcome, calm: bool) -> None:
    print(f"== seed {outcome.seed}: {outcome.verdict.state}; history {outcome.digest}")
    print(f"again: python -m tests.simulation{' --calm' if calm else ''} {outcome.seed}")
    print(report(outcome.verdict))
    for text in outcome.broken:
        print(f"broken: {text}")
    for act in outcome.script.acts:
        if act.kind != "publish":
            print(f"  act {act}")
    print("\n".join(outcome.logs[-_LOG_LINES:]), flush=True)


def run_mutants(names: Sequence[str]) -> list[str]:
    """Runs mutants; returns what was wrong: one that was not noticed, or a script that is not valid without one."""
    wrong = []
    for name in names:
        if name in STORES_BY_NAME:
            of_store = STORES_BY_NAME[name]
            told, how = of_store.is_noticed, of_store.test
        else:
            told, how = _noticed(BY_NAME[name])
        if told:
            print(f"noticed: {name}: {how}", flush=True)
        else:
            wrong.append(f"{name}: {how}")
    return wrong


def _noticed(mutant: Mutant) -> tuple[bool, str]:
    """Returns whether a mutant was given away, and by which invariants, or what is wrong with it."""
    beside: list[Make] = [] if mutant.beside is None else [mutant.beside]
    for seed in range(1, _MUTANT_SEEDS + 1):
        with mutated(mutant.make, *beside):
            verdict = run(mutant.script, seed).verdict
        if verdict.state == "invalid":
            break
    else:
        return False, f"not noticed with {_MUTANT_SEEDS} seeds"
    # The very seed that gave it away is valid without it, whatever else is broken.
    for broken in [[], beside] if beside else [[]]:
        with mutated(*broken):
            clean = run(mutant.script, seed)
        if clean.verdict.state != "valid":
            _tell(clean, calm=False)
            state, other = clean.verdict.state, " and with the other" * bool(broken)
            return False, f"with seed {seed} its script is {state} without it{other}"
    return True, ", ".join(sorted({violation.invariant for violation in verdict.violations}))


def _search(examples: int, mutants: Sequence[str], *, fixed: bool, shrink: bool) -> tuple[Found, bool]:
    """Has the machine search, perhaps with rules broken; returns what it found, and whether it must find something."""
    # Imported when it is asked for: Hypothesis is slow to load.
    from tests.simulation.machine import search

    broken = [make for name in mutants for make in (BY_NAME[name].make, BY_NAME[name].beside) if make is not None]
    with mutated(*broken):
        return search(examples, fixed=fixed, shrink=shrink), bool(broken)


def _seeds(texts: Sequence[str]) -> Iterable[int]:
    for text in texts:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main(arguments: Sequence[str]) -> int:
    """Runs what was asked for; 0 when all of it is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="*", help="seeds, such as 7 or 0-99")
    parser.add_argument("--calm", action="store_true", help="nothing goes wrong")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="break rules instead; without a name all of them")
    parser.add_argument("--machine", type=int, metavar="COUNT", help="have scripts put together by rules")
    parser.add_argument("--no-shrink", action="store_true", help="the first that is not valid stays as it is")
    parser.add_argument("--fixed", action="store_true", help="the machine makes the same scripts each time")
    parser.add_argument("--script", help="run this script, as JSON, with the seeds")
    parser.add_argument("--broken", metavar="NAME", help="with the rule of a mutant broken, and with its script")
    parser.add_argument("--digests", action="store_true", help="print the digest of each history as JSON")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    wrong: list[str] = []
    if chosen.machine:
        found, fails = _search(chosen.machine, chosen.mutants or [], fixed=chosen.fixed, shrink=not chosen.no_shrink)
        print(found)
        wrong = ["the machine found a script that is not valid"] if (found.failed is not None) != fails else []
    elif chosen.mutants is not None:
        names = chosen.mutants or [*BY_NAME, *STORES_BY_NAME]
        wrong = run_mutants(names)
        print(f"mutants noticed {len(names) - len(wrong)} of {len(names)}")
    if chosen.seeds:
        script = None if chosen.script is None else msgspec.json.decode(chosen.script, type=Script)
        broken = [] if chosen.broken is None else [BY_NAME[chosen.broken].make]
        if broken and script is None:
            script = BY_NAME[chosen.broken].script
        with mutated(*broken):
            board = run_seeds(_seeds(chosen.seeds), calm=chosen.calm, script=script)
        print(json.dumps(board.digests) if chosen.digests else f"{board}\n{board.left_out()}".rstrip())
        wrong += [f"seed {seed}" for seed in board.failed]
        wrong += [f"hook {hook}: is in no list of tests.simulation.script" for hook in board.unlisted]
        # Of as many seeds as there are hooks each is about one; the rarest is passed in every fourth such set at least.
        if board.seeds >= 4 * len(_HOOKS) and not chosen.calm and script is None:
            wrong += [f"hook {hook}: nobody passed it" for hook in board.missed]
    print(f"took {time.monotonic() - began:.1f} s", file=sys.stderr)
    for line in wrong:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.simulation`: runs seeds, prints what they came to, and how to replay one that failed.

The same seed is the same run: where hashes are not fixed the program starts itself anew with fixed ones. What it prints
does not depend on how many processes share the work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.faults.checker import report
from tests.simulation.board import ALL_HOOKS, Board
from tests.simulation.mutant import Make, Mutant, mutated
from tests.simulation.mutants import BY_NAME
from tests.simulation.mutants_of_stores import STORES_BY_NAME
from tests.simulation.run import Outcome, run
from tests.simulation.script import Script, make
from tests.simulation.spread import spread

if TYPE_CHECKING:
    from tests.simulation.machine import Found

_LOG_LINES = 60
# A mutant has so many seeds to be noticed.
_MUTANT_SEEDS = 5


def run_seeds(seeds: Iterable[int], *, calm: bool, script: Script | None, processes: int) -> Board:
    """Runs seeds, each with its own script or all with one, and tells of each that is not valid."""
    board = Board()
    for one, told in spread(partial(_run_seed, calm, script), sorted(seeds), processes):
        board.add(one)
        if told:
            print(told, flush=True)
    return board


def _run_seed(calm: bool, script: Script | None, seed: int) -> tuple[Board, str]:
    """Returns what a seed came to, and what is to be told of it."""
    outcome, board = run(make(seed, faults=not calm) if script is None else script, seed), Board()
    board.count(outcome)
    return board, "" if outcome.verdict.state == "valid" and not outcome.broken else _told(outcome, calm)


def _told(outcome: Outcome, calm: bool) -> str:
    return "\n".join(
        (
            f"== seed {outcome.seed}: {outcome.verdict.state}; history {outcome.digest}",
            f"again: python -m tests.simulation{' --calm' if calm else ''} {outcome.seed}",
            report(outcome.verdict),
            *(f"broken: {text}" for text in outcome.broken),
            *(f"  act {act}" for act in outcome.script.acts if act.kind != "publish"),
            *outcome.logs[-_LOG_LINES:],
        )
    )


def run_mutants(names: Sequence[str], processes: int) -> list[str]:
    """Runs mutants; returns what was wrong: one that was not noticed, or a script that is not valid without one."""
    wrong = []
    for name, (noticed, how) in zip(names, spread(_run_mutant, names, processes), strict=True):
        if noticed:
            print(f"noticed: {name}: {how}", flush=True)
        else:
            wrong.append(f"{name}: {how}")
    return wrong


def _run_mutant(name: str) -> tuple[bool, str]:
    if name in STORES_BY_NAME:
        return STORES_BY_NAME[name].is_noticed, STORES_BY_NAME[name].test
    return _noticed(BY_NAME[name])


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
            state, other = clean.verdict.state, " and with the other" * bool(broken)
            return False, f"with seed {seed} its script is {state} without it{other}\n{_told(clean, calm=False)}"
    return True, ", ".join(sorted({violation.invariant for violation in verdict.violations}))


def _search(chosen: argparse.Namespace) -> tuple[Found, bool]:
    """Has the machine search, perhaps with rules broken; returns what it found, and whether it must find something."""
    # Imported when it is asked for: Hypothesis is slow to load.
    from tests.simulation.machine import search

    made = [BY_NAME[name] for name in chosen.mutants or ()]
    broken = [make for mutant in made for make in (mutant.make, mutant.beside) if make is not None]
    with mutated(*broken):
        found = search(chosen.machine, fixed=chosen.fixed, shrink=not chosen.no_shrink, processes=chosen.processes)
    return found, bool(broken)


def _seeds(texts: Sequence[str]) -> Iterable[int]:
    for text in texts:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _parser() -> argparse.ArgumentParser:
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
    parser.add_argument("--processes", type=int, metavar="COUNT", default=os.cpu_count() or 1, help="share the work")
    return parser


def _run_chosen_seeds(chosen: argparse.Namespace) -> list[str]:
    script = None if chosen.script is None else msgspec.json.decode(chosen.script, type=Script)
    broken = [] if chosen.broken is None else [BY_NAME[chosen.broken].make]
    if broken and script is None:
        script = BY_NAME[chosen.broken].script
    with mutated(*broken):
        board = run_seeds(_seeds(chosen.seeds), calm=chosen.calm, script=script, processes=chosen.processes)
    print(json.dumps(board.digests) if chosen.digests else f"{board}\n{board.left_out()}".rstrip())
    wrong = [f"seed {seed}" for seed in board.failed]
    wrong += [f"hook {hook}: is in no list of tests.simulation.script" for hook in board.unlisted]
    # Of as many seeds as there are hooks each is about one; the rarest is passed in every fourth such set at least.
    if board.seeds >= 4 * len(ALL_HOOKS) and not chosen.calm and script is None:
        wrong += [f"hook {hook}: nobody passed it" for hook in board.missed]
    return wrong


def main(arguments: Sequence[str]) -> int:
    """Runs what was asked for; 0 when all of it is as it must be."""
    chosen = _parser().parse_args(arguments)
    began = time.monotonic()
    wrong: list[str] = []
    if chosen.machine:
        found, fails = _search(chosen)
        print(found)
        wrong = ["the machine found a script that is not valid"] if (found.failed is not None) != fails else []
    elif chosen.mutants is not None:
        names = chosen.mutants or [*BY_NAME, *STORES_BY_NAME]
        wrong = run_mutants(names, chosen.processes)
        print(f"mutants noticed {len(names) - len(wrong)} of {len(names)}")
    if chosen.seeds:
        wrong += _run_chosen_seeds(chosen)
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

"""Brings a run to its verdict: load, faults, quiet, everything is read, and the judgement is kept for the scoreboard.

A test makes its faults inside `judged`. It must not make one itself, and never softens what the checker says.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from tests.faults import history, recovery
from tests.faults.checker import Plan, Verdict, check, report
from tests.faults.footprint import grown, holdings
from tests.faults.index import Index
from tests.faults.limits import Violation
from tests.faults.rig import SETTLE_LIMIT_S, Habits, Run, opened
from tests.faults.unseen import unseen
from tests.support.cluster import Cluster

# Names the folder in which results are collected; without it none are kept.
VARIABLE: Final = "HELIOGRAPH_FAULTS"


class FaultResult(msgspec.Struct, frozen=True):
    """One fault of a run.

    Attributes:
        row: of the catalogue.
        target: what it was made to.
        evidence: what was observed; empty: not exercised.
        seconds: from its begin until everything that was under way while it lasted had come; None: nothing was.
    """

    row: str
    target: str
    evidence: str
    seconds: float | None


class RunResult(msgspec.Struct, frozen=True):
    """What a run adds to the scoreboard.

    Attributes:
        test: who made it.
        state: the verdict.
        accepted: events.
        deliveries: recipients of them.
        received: notifications on wires.
        extra: of them copies that a device had.
        shown_twice: what a person saw twice.
        lost: deliveries that break "no loss".
        gaps: replays that lacked something.
        counts: recipients whose unread number was read.
        wrong_counts: of them, and of devices, those that differ.
        sessions: of all devices.
        settled: seconds until all was quiet; None: it never was.
        faults: that were made.
        violated: the invariants that are broken, each once.
        seed: that chose its faults; None: the test names them.
        unseen: the invariants that it had nothing to look at for.
    """

    test: str
    state: str
    accepted: int
    deliveries: int
    received: int
    extra: int
    shown_twice: int
    lost: int
    gaps: int
    counts: int
    wrong_counts: int
    sessions: int
    settled: float | None
    faults: tuple[FaultResult, ...]
    violated: tuple[str, ...]
    seed: int | None = None
    unseen: tuple[str, ...] = ()


@asynccontextmanager
async def judged(
    cluster: Cluster,
    prefix: str,
    *,
    recipients: int = 6,
    rate: float = 20.0,
    audience: int = 2,
    url: Callable[[int], str] | None = None,
    connect: float = 30.0,
    settle: float = SETTLE_LIMIT_S,
    seed: int | None = None,
    habits: Habits | None = None,
    crowd: int = 0,
) -> AsyncIterator[Run]:
    """Opens a run under load; when the context ends all must come to rest, is read, and must be valid.

    Args:
        cluster: where; everything runs, also when the context ends.
        prefix: of the recipients' ids, unique on the cluster.
        recipients: how many.
        rate: events a second.
        audience: recipients of each.
        url: where the device of a number connects; None: at the nodes in turn, or at the edge.
        connect: seconds in which all devices must be there.
        settle: seconds in which all must come to rest.
        seed: that chooses what the test does; the scoreboard names it.
        habits: what the load has beside events; None: everything but a late device.
        crowd: devices beside the judged ones that are connected too.

    Raises:
        AssertionError: the verdict is not "valid"; the text has the timelines. Or it is, and the run shows nothing
            about something that its load should make it show.
    """
    habits = habits or Habits()
    folder = Path(tempfile.mkdtemp(prefix="hg-run-"))
    async with opened(
        cluster, folder, recipients=recipients, prefix=prefix, url=url, connect=connect, habits=habits
    ) as run:
        async with run.load.going(rate, audience):
            await run.flows(20)
            before = holdings(cluster)
            yield run
            run.load.ends = False
            await run.flows(10)
            await run.keeps_wishes()
        await run.settle(settle)
        await run.read_everything()
        leaks = [Violation("I14", text) for text in grown(before, holdings(cluster), crowd + len(run.screens))]
    logs = history.read(_logs(folder))
    index = Index([line for log in logs for line in log.lines])
    plan = Plan(publishes=30, sessions=recipients, faults=len(index.faults))
    verdict = _with(check(logs, plan), leaks)
    keep(result(verdict, index, seed))
    said = f"{report(verdict)}\nnothing to look at for: {', '.join(unseen(index))}\nlogs: {folder}"
    assert verdict.state == "valid", said
    assert not run.load.failures, run.load.failures
    assert not set(unseen(index)) & _expected(habits), said
    shutil.rmtree(folder)


def _with(verdict: Verdict, found: Sequence[Violation]) -> Verdict:
    """Adds to a verdict what is seen only from outside of the history."""
    if not found:
        return verdict
    return msgspec.structs.replace(
        verdict,
        state="invalid",
        violations=[*verdict.violations, *found],
        timelines=[*verdict.timelines, *(f"{one.invariant}: {one.text}" for one in found)],
    )


def _expected(habits: Habits) -> set[str]:
    """Returns the invariants that every run has something to look at for, whatever its faults are."""
    return (
        {"I1", "I2", "I3", "I4", "I5", "I7", "I9", "I10", "I13", "I14", "I17"}
        | ({"I8"} if habits.marks else set())
        | ({"I11"} if habits.ends else set())
        | ({"I12"} if habits.clashes else set())
    )


def _logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def result(verdict: Verdict, index: Index, seed: int | None = None) -> RunResult:
    """Draws from a verdict what the scoreboard shows."""
    figures, broken = verdict.figures, [violation.invariant for violation in verdict.violations]
    settled = [one.seconds for one in index.settled]
    recovered = recovery.seconds(index)
    return RunResult(
        test=os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0],
        state=verdict.state,
        accepted=figures.accepted,
        deliveries=figures.deliveries,
        received=figures.received,
        extra=figures.extra,
        shown_twice=figures.shown_twice,
        lost=broken.count("I1"),
        gaps=broken.count("I6"),
        counts=len(index.unread) + len(index.lists),
        wrong_counts=broken.count("I8"),
        sessions=sum(map(len, index.sessions.values())),
        settled=None if None in settled else max((one for one in settled if one is not None), default=None),
        faults=tuple(
            FaultResult(fault.begin.fault, fault.begin.target, fault.evidence, recovered.get(operation))
            for operation, fault in index.faults.items()
        ),
        violated=tuple(sorted(set(broken))),
        seed=seed,
        unseen=unseen(index),
    )


def keep(found: RunResult) -> None:
    """Writes a result into the folder that the variable names, if it does."""
    folder = os.environ.get(VARIABLE, "")
    if folder:
        name = re.sub(r"[^\w.-]+", "-", found.test.rpartition("/")[2] or "run")
        handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".json", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(found))
        assert Path(path).stat().st_size

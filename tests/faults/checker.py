"""Judges a run: valid, invalid, or unknown when it does not show enough; with the timeline of what is wrong.

`python -m tests.faults.checker FOLDER` reads the logs of a run and prints the verdict. It must not know how a run was
made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tests.faults import history
from tests.faults.history import Log
from tests.faults.index import Index
from tests.faults.invariants import INVARIANTS, NOT_JUDGED, copies
from tests.faults.limits import Limits, Violation

# Timelines longer than this tell nobody anything.
_MOST_LINES = 60
_MOST_SHOWN = 10


class Plan(msgspec.Struct, frozen=True):
    """What a run must have done to be judged at all.

    Attributes:
        publishes: so many must be accepted.
        sessions: so many devices must have been connected.
        faults: so many faults must show evidence.
    """

    publishes: int = 1
    sessions: int = 1
    faults: int = 0


class Figures(msgspec.Struct, frozen=True):
    """What a run shows in numbers.

    Attributes:
        accepted: events known to be accepted.
        deliveries: recipients they were for.
        received: notifications over all wires.
        extra: of them copies that a device had.
        shown_twice: what a person saw twice.
        faults: that show evidence.
        not_exercised: faults that show none.
        truncated: logs whose last line is not whole.
    """

    accepted: int
    deliveries: int
    received: int
    extra: int
    shown_twice: int
    faults: int
    not_exercised: int
    truncated: int

    @property
    def loss_bound(self) -> float:
        """With nothing lost of this many deliveries, fewer than this share is lost, with 95 % confidence."""
        return 3.0 / self.deliveries if self.deliveries else 1.0


class Verdict(msgspec.Struct, frozen=True):
    """The judgement of one run.

    Attributes:
        state: "unknown" when the run shows too little; then `reasons` says what.
        violations: what is broken, in the order of the invariants.
        reasons: why nothing can be said.
        figures: in numbers.
        timelines: every event about a violation's item, for each of the first few.
    """

    state: Literal["valid", "invalid", "unknown"]
    violations: Sequence[Violation]
    reasons: Sequence[str]
    figures: Figures
    timelines: Sequence[str]


def check(logs: Sequence[Log], plan: Plan | None = None, limits: Limits | None = None) -> Verdict:
    """Judges the logs of a run."""
    plan, limits = plan or Plan(), limits or Limits()
    index = Index([line for log in logs for line in log.lines])
    figures = _figures(index, sum(log.truncated for log in logs))
    violations = [found for rule in INVARIANTS.values() for found in rule(index, limits)]
    reasons = list(_lacks(index, figures, plan))
    # What is broken is broken, however little of the plan was done.
    state: Literal["valid", "invalid", "unknown"] = "invalid" if violations else "unknown" if reasons else "valid"
    timelines = [timeline(index, violation) for violation in violations[:_MOST_SHOWN]]
    return Verdict(state, violations, reasons, figures, timelines)


def _figures(index: Index, truncated: int) -> Figures:
    accepted = [content for content in index.contents.values() if content.outcome == "ok"]
    found = copies(index)
    shown = [(device, one.notification_id, one.revision) for device, all_ in index.shown.items() for one in all_]
    return Figures(
        accepted=len(accepted),
        deliveries=sum(len(content.first.recipients) for content in accepted),
        received=sum(len(one) for one in found.values()),
        extra=sum(len(one) - 1 for one in found.values()),
        shown_twice=len(shown) - len(set(shown)),
        faults=sum(bool(fault.evidence) for fault in index.faults.values()),
        not_exercised=sum(not fault.evidence for fault in index.faults.values()),
        truncated=truncated,
    )


def _lacks(index: Index, figures: Figures, plan: Plan) -> Iterator[str]:
    if figures.accepted < plan.publishes:
        yield f"{figures.accepted} of {plan.publishes} planned events were accepted"
    if len(index.sessions) < plan.sessions:
        yield f"{len(index.sessions)} of {plan.sessions} planned devices were connected"
    if figures.faults < plan.faults:
        yield f"{figures.faults} of {plan.faults} planned faults show evidence"
    if index.healed == float("inf"):
        yield "a fault was never healed"
    if figures.accepted and not index.rows and not index.terminals:
        yield "no inbox was read at the end"


def timeline(index: Index, violation: Violation) -> str:
    """Returns every event that names the item of a violation, and the faults, in the order of time."""
    if not violation.names:
        return f"{violation.invariant}: {violation.text}"
    names = set(violation.names)
    operations = {
        attempt.invoke.operation
        for content in index.contents.values()
        if content.nonce in names
        for attempt in content.attempts
    }
    begin = index.lines[0].event.at
    told = [f"{violation.invariant}: {violation.text}"]
    told += [
        f"  {line.event.at - begin:9.3f}  {line.actor}:{line.number}  {_told(line.event)}"
        for line in index.lines
        if _is_about(line.event, names, operations)
    ]
    if len(told) > _MOST_LINES:
        told = [*told[:_MOST_LINES], f"  … {len(told) - _MOST_LINES} more"]
    return "\n".join(told)


def _is_about(event: history.Event, names: set[str], operations: set[str]) -> bool:
    if isinstance(event, history.FaultBegan | history.FaultEnded):
        return True
    if getattr(event, "operation", None) in operations:
        return True
    ids = {getattr(event, "notification_id", None), getattr(event, "nonce", None)}
    return bool(names & ids) or bool(names & set(getattr(event, "notification_ids", ())))


def _told(event: history.Event) -> str:
    fields = {name: value for name, value in msgspec.structs.asdict(event).items() if name != "at"}
    device = fields.get("device")
    if isinstance(device, history.Device):
        fields["device"] = f"{device.tenant}/{device.recipient}/{device.name}"
    return f"{type(event).__name__} " + " ".join(f"{name}={value}" for name, value in fields.items())


def report(verdict: Verdict) -> str:
    """Returns a verdict for people."""
    figures = verdict.figures
    lines = [f"verdict: {verdict.state}"]
    lines.append(
        f"accepted {figures.accepted} events for {figures.deliveries} recipients; {figures.received} arrived, "
        f"{figures.extra} extra copies on the wire, {figures.shown_twice} shown twice"
    )
    lines.append(
        f"faults with evidence {figures.faults}, not exercised {figures.not_exercised}; "
        f"logs cut off {figures.truncated}; not judged: {', '.join(NOT_JUDGED)}"
    )
    if verdict.state == "valid":
        lines.append(f"lost fewer than {figures.loss_bound:.2g} of what was accepted, with 95 % confidence")
    lines += [f"unknown because {reason}" for reason in verdict.reasons]
    lines += verdict.timelines
    if len(verdict.violations) > len(verdict.timelines):
        lines.append(f"and {len(verdict.violations) - len(verdict.timelines)} more violations")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Judges the folder that is named; 0 for a valid run."""
    if len(arguments) != 1:
        print("usage: python -m tests.faults.checker FOLDER", file=sys.stderr)
        return 2
    try:
        verdict = check(history.read(Path(arguments[0]).glob("*.jsonl")))
    except history.HistoryError as error:
        print(error, file=sys.stderr)
        return 2
    print(report(verdict))
    return 0 if verdict.state == "valid" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

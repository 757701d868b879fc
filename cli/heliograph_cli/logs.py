"""Reads the log files of all processes: merged by time, followed, and the path of one event through all of them.

Must not load a whole file: lines are read one by one.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from heliograph_cli.tails import Line, Tail, parse, show
from heliograph_cli.texts import printable

_POLL_S = 0.2
_NAME_WIDTH = 16


class Step(msgspec.Struct, frozen=True):
    """One step of an event's path: when, in which process, which, and its further fields."""

    time: float
    process: str
    name: str
    fields: dict[str, object]


def files(folder: Path, process: str) -> list[Path]:
    """Returns the log files of a process, or of all; the older file of a process first."""
    found = [*folder.glob("*.log.1"), *folder.glob("*.log")]
    kept = [path for path in found if not path.name.endswith(".access.log")]
    return [path for path in kept if not process or process_of(path) == process]


def process_of(path: Path) -> str:
    """Returns the name of the process that writes a log file."""
    return path.name.removesuffix(".1").removesuffix(".log")


def merged(paths: Sequence[Path], severity: int) -> Iterator[tuple[str, Line]]:
    """Yields the lines of several files in the order of their times, with the process's name."""
    for _, name, line in heapq.merge(*(_lines(path, severity) for path in paths), key=lambda item: item[0]):
        yield name, line


def follow(
    paths: Callable[[], Sequence[Path]], severity: int, going_on: Callable[[], bool] = lambda: True
) -> Iterator[tuple[str, Line]]:
    """Yields lines as they are written, until interrupted.

    Args:
        paths: the files; asked again and again, as processes may come later.
        severity: lowest one that is shown.
        going_on: asked at every look; False ends.
    """
    tails: dict[Path, Tail] = {}
    while True:
        last = not going_on()
        for path in paths():
            tail = tails.setdefault(path, Tail(path))
            yield from ((process_of(path), line) for line in tail.read() if line.severity >= severity)
        if last:
            return
        time.sleep(_POLL_S)


def render(process: str, line: Line) -> str:
    """Returns a line for the terminal."""
    stamp = line.time[11:23] if line.time else "-"
    return printable(f"{stamp:<12} {process:<{_NAME_WIDTH}} {line.level:<8} {show(line)}")


def path_of(paths: Sequence[Path], event_id: str) -> list[Step]:
    """Returns what all processes logged about one event, in the order of time.

    Processes log milliseconds: steps of the same one keep the order in which an event passes the services.
    """
    steps = []
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as stream:
            # Most lines are about others: they are not parsed.
            found = [parse(text) for text in stream if event_id in text]
        for line in found:
            if line is not None and line.event == "path" and line.fields.get("event_id") == event_id:
                fields = {key: value for key, value in line.fields.items() if key not in ("event_id", "step")}
                steps.append(Step(seconds_of(line.time), process_of(path), str(line.fields.get("step")), fields))
    return sorted(steps, key=lambda step: (step.time, _rank(step.name)))


def render_path(steps: Sequence[Step]) -> list[str]:
    """Returns the steps for the terminal, each with the time since the first one and since the one before."""
    lines = []
    first = before = steps[0].time if steps else 0.0
    for step in steps:
        since, delta = (step.time - first) * 1000, (step.time - before) * 1000
        fields = " ".join(f"{key}={value}" for key, value in step.fields.items())
        lines.append(
            printable(f"{since:9.1f} ms  +{delta:8.1f}  {step.process:<{_NAME_WIDTH}} {step.name:<14} {fields}")
        )
        before = step.time
    return [line.rstrip() for line in lines]


def seconds_of(text: str) -> float:
    """Returns a log's time as Unix seconds; 0 for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


# The order of architecture's path: breaks ties within a millisecond.
_STEPS = (
    *("published", "accepted", "answered", "read", "planned", "dispatched", "inboxed", "handed_on", "advanced"),
    *("offered", "received", "written", "taken", "acked", "ack_stored", "confirmed", "follow_up_due"),
)


def _rank(step: str) -> int:
    return _STEPS.index(step) if step in _STEPS else len(_STEPS)


def _lines(path: Path, severity: int) -> Iterator[tuple[float, str, Line]]:
    name, last = process_of(path), 0.0
    with path.open(encoding="utf-8", errors="replace") as stream:
        for text in stream:
            line = parse(text)
            if line is not None:
                # Plain text stands where it was written: after the line before it.
                last = max(last, seconds_of(line.time))
                if line.severity >= severity:
                    yield last, name, line

"""Follows log files and picks out what a person at the terminal should see: warnings and errors.

Must not read without a bound: a file that grows faster than it is read is skipped to its end, aloud.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

SEVERITIES: Final = {"trace": 0, "debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "critical": 50}
WARNING: Final = SEVERITIES["warning"]

_LARGEST_READ = 1 << 20
_QUIET_S = 5.0
# Envoy's remark on a field that is set on purpose, at each of its starts.
_EXPECTED = "is marked as work-in-progress"
# Every line of ours has these; the rest are its fields.
_HEAD = ("time", "t", "level", "service", "process", "event", "logger", "msg")


class Line(msgspec.Struct, frozen=True):
    """One line of a log: when, how severe, what, and its fields. A line that is not JSON is an error's text."""

    time: str
    severity: int
    event: str
    fields: dict[str, object]

    @property
    def level(self) -> str:
        """The severity's name."""
        return next((name for name, severity in SEVERITIES.items() if severity == self.severity), "info")


def parse(text: str) -> Line | None:
    """Returns a line as written by a service or an Envoy; None for an empty one."""
    text = text.strip()
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return Line(time="", severity=SEVERITIES["error"], event=text, fields={})
    severity = SEVERITIES.get(str(found.get("level", "info")), SEVERITIES["info"])
    event = str(found.get("event") or found.get("msg") or "")
    fields = {key: value for key, value in found.items() if key not in _HEAD}
    return Line(time=str(found.get("time") or found.get("t") or ""), severity=severity, event=event, fields=fields)


def show(line: Line) -> str:
    """Returns a line for the terminal: the event and its fields, one-line values first."""
    fields = []
    for key, value in line.fields.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if "\n" in text:
            # A traceback's last line says what it was.
            text = text.strip().rpartition("\n")[2]
        fields.append(f"{key}={text}")
    return " ".join([line.event, *fields])


class Tail:
    """One log file, read from where it ended when the tail was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    @property
    def offset(self) -> int:
        """How far it has read."""
        return self._offset

    def read(self) -> Iterator[Line]:
        """Yields the whole lines that were added since the last read."""
        try:
            with self._path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < self._offset:
                    # Begun anew.
                    self._offset, self._rest = 0, b""
                if size - self._offset > _LARGEST_READ:
                    yield Line(time="", severity=WARNING, event=f"{self._path.name}: lines skipped", fields={})
                    self._offset, self._rest = size - _LARGEST_READ, b""
                stream.seek(self._offset)
                data = stream.read(_LARGEST_READ)
        except FileNotFoundError:
            return
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        for raw in whole:
            line = parse(raw.decode("utf-8", "replace"))
            if line is not None:
                yield line


class Alarms:
    """Says each warning of a process once, and again at most every few seconds with the number of repeats."""

    def __init__(self, say: Callable[[str, Line, int], None]) -> None:
        self._say = say
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def hear(self, process: str, line: Line, now: float) -> None:
        """Takes a line; those below a warning, and what is always said, are ignored."""
        if line.severity < WARNING or _EXPECTED in line.event:
            return
        key = process, line.event
        last, hidden = self._told.get(key, (-_QUIET_S, 0))
        if now - last < _QUIET_S:
            self._told[key] = last, hidden + 1
            return
        self._told[key] = now, 0
        self._say(process, line, hidden)


def shrink(path: Path, limit: int) -> bool:
    """Moves a log that is larger than so many bytes into its older file, while its writer goes on at the beginning.

    Lines that are written at the very moment may be lost: the writer cannot be asked to open another file.
    """
    if not path.exists() or path.stat().st_size <= limit:
        return False
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    os.truncate(path, 0)
    return True


def last_line(path: Path, offset: int) -> str:
    """Returns the last line that a process left after this place in its log, without JSON around it."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(offset, os.fstat(stream.fileno()).st_size - _LARGEST_READ))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    plain = [line for line in text.splitlines() if line.strip()]
    # What ends a start is said in plain text; a library may still log something behind it.
    spoken = [line for line in plain if not line.lstrip().startswith("{")]
    chosen = (spoken or plain or [""])[-1]
    line = parse(chosen)
    return show(line) if line is not None else ""

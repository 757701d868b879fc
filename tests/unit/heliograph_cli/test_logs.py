"""Reading all logs: merged by time, and the path of one event."""

from __future__ import annotations

import json
from pathlib import Path

from heliograph_cli import logs

EVENT = "01a22854-b4a9-886b-9318-a4a598da1cbe"


def _write(folder: Path, process: str, *lines: dict[str, object] | str) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / f"{process}.log").write_text("".join(f"{text}\n" for text in texts))


def _entry(second: float, event: str, level: str = "info", **fields: object) -> dict[str, object]:
    return {"time": f"2026-01-02T03:04:{second:06.3f}Z", "level": level, "event": event, **fields}


def _step(second: float, name: str, event_id: str = EVENT, **fields: object) -> dict[str, object]:
    return {**_entry(second, "path", step=name, event_id=event_id), **fields}


def test_logs_are_merged_by_time(tmp_path: Path) -> None:
    """Lines of all processes come in the order in which they were written, those of low severity left out."""
    _write(tmp_path, "ingest", _entry(1, "a"), "plain", _entry(4, "d", "warning"))
    _write(tmp_path, "fanout", _entry(2, "b", "error"), _entry(3, "c", "debug"))
    found = list(logs.merged(logs.files(tmp_path, ""), 20))
    assert [(name, line.event) for name, line in found] == [
        ("ingest", "a"),
        ("ingest", "plain"),
        ("fanout", "b"),
        ("ingest", "d"),
    ]
    assert [line.event for _, line in logs.merged(logs.files(tmp_path, "ingest"), 30)] == ["plain", "d"]


def test_only_logs_of_processes_are_read(tmp_path: Path) -> None:
    """Access logs are of another form, and the older file of a process comes first."""
    for name in ("ingest.log", "ingest.log.1", "ingest.access.log", "up.json"):
        (tmp_path / name).write_text("")
    assert [path.name for path in logs.files(tmp_path, "")] == ["ingest.log.1", "ingest.log"]
    assert logs.files(tmp_path, "nobody") == []


def test_following_yields_what_is_written_from_now_on(tmp_path: Path) -> None:
    """Lines from before are not repeated, those that come are shown, also of a process that comes later."""
    _write(tmp_path, "ingest", _entry(1, "before"))
    looks = iter((True, True, False))

    def going_on() -> bool:
        if (tmp_path / "ingest.log").read_text().count("\n") == 1:
            with (tmp_path / "ingest.log").open("a") as stream:
                stream.write("" if first else json.dumps(_entry(2, "after")) + "\n")
            first.clear()
        return next(looks)

    first = [True]
    found = [line.event for _, line in logs.follow(lambda: logs.files(tmp_path, ""), 20, going_on)]
    assert found == ["after"]


def test_a_path_has_the_steps_of_one_event_in_order(tmp_path: Path) -> None:
    """Steps of all processes are in the order of time; ties keep the order of the path; others' steps are left out."""
    _write(tmp_path, "fanout", _step(1.003, "planned", n=1), _step(1.003, "read"), _step(1.0, "read", "other"))
    _write(tmp_path, "ingest", _step(1.0, "published"), _entry(1.1, "else", event_id=EVENT), f"{EVENT} plain")
    steps = logs.path_of(logs.files(tmp_path, ""), EVENT)
    assert [(one.process, one.name) for one in steps] == [
        ("ingest", "published"),
        ("fanout", "read"),
        ("fanout", "planned"),
    ]
    lines = logs.render_path(steps)
    assert lines[0].split() == ["0.0", "ms", "+", "0.0", "ingest", "published"]
    assert lines[1].split()[:5] == ["3.0", "ms", "+", "3.0", "fanout"]
    assert lines[2].endswith("n=1")
    assert logs.render_path([]) == []


def test_a_line_cannot_command_the_terminal(tmp_path: Path) -> None:
    """Escapes that others put into a log are not passed on."""
    _write(tmp_path, "ingest", _entry(1, "a", text="\x1b[2J"))
    ((name, line),) = logs.merged(logs.files(tmp_path, ""), 0)
    assert "\x1b" not in logs.render(name, line)

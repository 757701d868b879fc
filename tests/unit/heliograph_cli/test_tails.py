"""Log lines: reading, following, and what of them a person sees."""

from __future__ import annotations

from pathlib import Path

from heliograph_cli.tails import SEVERITIES, Alarms, Line, Tail, last_line, parse, show, shrink

WARNING = (
    '{"time":"2026-01-02T03:04:05.678Z","level":"warning","service":"fanout","process":"fanout","event":"lost","n":3}'
)


def test_lines_of_services_and_envoys_are_read_alike() -> None:
    """Both schemas give time, severity, event and the fields beside them."""
    line = parse(WARNING)
    assert line == Line(time="2026-01-02T03:04:05.678Z", severity=30, event="lost", fields={"n": 3})
    envoy = parse('{"t":"2026-01-02T03:04:05.678","level":"error","logger":"main","msg":"no port"}')
    assert envoy is not None
    assert (envoy.event, envoy.level) == ("no port", "error")
    assert show(line) == "lost n=3"


def test_plain_text_is_an_errors_line() -> None:
    """What a process says outside the schema is most often its last word."""
    line = parse("heliograph ingest: no such file\n")
    assert line is not None
    assert (line.severity, line.event) == (SEVERITIES["error"], "heliograph ingest: no such file")
    assert parse("  \n") is None
    assert parse("[1, 2]") == Line(time="", severity=40, event="[1, 2]", fields={})


def test_a_tail_yields_whole_lines_once(tmp_path: Path) -> None:
    """Lines from before, half lines and lines already seen are not shown."""
    path = tmp_path / "x.log"
    path.write_text("old\n")
    tail = Tail(path)
    with path.open("a") as stream:
        stream.write("new\nha")
    assert [line.event for line in tail.read()] == ["new"]
    with path.open("a") as stream:
        stream.write("lf\n")
    assert [line.event for line in tail.read()] == ["half"]
    assert list(tail.read()) == []


def test_a_tail_follows_a_file_that_comes_later_or_begins_anew(tmp_path: Path) -> None:
    """A process's first line is not missed, nor the first one after its file was cut."""
    path = tmp_path / "x.log"
    tail = Tail(path)
    assert list(tail.read()) == []
    path.write_text("first line\n")
    assert [line.event for line in tail.read()] == ["first line"]
    path.write_text("again\n")
    assert [line.event for line in tail.read()] == ["again"]


def test_a_tail_skips_what_it_cannot_read_in_time_and_says_so(tmp_path: Path) -> None:
    """A flood of lines costs a bounded amount of reading."""
    path = tmp_path / "x.log"
    tail = Tail(path)
    path.write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 20_000)
    events = [line.event for line in tail.read()]
    assert events[0] == "x.log: lines skipped"
    assert len(events) < 11_000
    assert list(tail.read()) == []


def test_a_repeated_warning_is_said_once_and_counted() -> None:
    """One broken peer does not fill the terminal; the number of repeats is not lost."""
    said: list[tuple[str, str, int]] = []
    alarms = Alarms(lambda process, line, hidden: said.append((process, line.event, hidden)))
    line = parse(WARNING)
    assert line is not None
    for now in (0.0, 1.0, 4.9):
        alarms.hear("fanout", line, now)
    alarms.hear("delivery", line, 4.9)
    alarms.hear("fanout", line, 5.0)
    alarms.hear("fanout", Line(time="", severity=20, event="ready", fields={}), 20.0)
    assert said == [("fanout", "lost", 0), ("delivery", "lost", 0), ("fanout", "lost", 2)]


def test_the_last_words_are_plain_text_if_there_is_any(tmp_path: Path) -> None:
    """What ended a start is said in one plain line, which a later log line of a library does not hide."""
    path = tmp_path / "x.log"
    path.write_text(
        'before\n{"level":"info","event":"begin"}\nheliograph prefs: broken\n{"level":"info","event":"x"}\n'
    )
    assert last_line(path, 7) == "heliograph prefs: broken"
    path.write_text('{"level":"error","event":"crashed","why":"a\\nb"}\n')
    assert last_line(path, 0) == "crashed why=b"
    assert last_line(tmp_path / "none.log", 0) == ""


def test_a_large_log_is_moved_while_its_writer_goes_on(tmp_path: Path) -> None:
    """A process that runs for months fills two files of a bounded size, and what follows is still read."""
    path = tmp_path / "x.log"
    with path.open("a") as writer:
        writer.write("long ago\n" * 20)
        writer.flush()
        tail = Tail(path)
        assert not shrink(path, 1000)
        assert shrink(path, 100)
        writer.write("now\n")
    assert path.read_text() == "now\n"
    assert (tmp_path / "x.log.1").read_text() == "long ago\n" * 20
    assert [line.event for line in tail.read()] == ["now"]
    assert not shrink(tmp_path / "none.log", 0)

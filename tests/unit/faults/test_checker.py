"""The judge is judged: hand-made histories, legal and illegal, each with the one right verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.canary import body, canary, digest, is_for, nonce_of
from tests.faults.checker import Plan, check, main, report
from tests.faults.history import HistoryError, Log, Recorder, read
from tests.faults.invariants import INVARIANTS
from tests.faults.limits import Limits
from tests.unit.faults import cases, cases_aside
from tests.unit.faults.histories import ALICE, BOB, Story, ended, one

LEGAL = cases.LEGAL | cases_aside.LEGAL
ILLEGAL = cases.ILLEGAL | cases_aside.ILLEGAL


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_legal_is_found_valid(name: str) -> None:
    """However odd it looks, nothing is broken."""
    verdict = check(LEGAL[name]().logs())
    assert verdict.state == "valid", report(verdict)


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_is_illegal_is_found_and_named(name: str) -> None:
    """Exactly the promise that is broken is named, whatever else follows from it is the same one."""
    invariant, story = ILLEGAL[name]
    verdict = check(story().logs())
    assert verdict.state == "invalid"
    assert invariant in {violation.invariant for violation in verdict.violations}, report(verdict)


def test_every_invariant_that_is_judged_is_broken_by_a_history() -> None:
    """A rule that no history breaks has not been seen to work."""
    assert {invariant for invariant, _ in ILLEGAL.values()} == set(INVARIANTS)


@pytest.mark.parametrize(
    ("story", "plan", "reason"),
    [
        (lambda: ended(one(), "a"), Plan(publishes=2), "1 of 2 planned events were accepted"),
        (lambda: ended(one(), "a"), Plan(sessions=2), "1 of 2 planned devices were connected"),
        (lambda: ended(one(), "a"), Plan(faults=1), "0 of 1 planned faults show evidence"),
        (lambda: ended(one().fault(evidence=""), "a"), Plan(faults=1), "0 of 1 planned faults show evidence"),
        (lambda: ended(one().fault(heals=False), "a"), Plan(), "a fault was never healed"),
        (lambda: Story().connect(BOB).publish("a", to=[]), Plan(), "no inbox was read at the end"),
    ],
)
def test_a_run_that_shows_too_little_is_unknown(story: Callable[[], Story], plan: Plan, reason: str) -> None:
    """It is neither valid nor invalid, and says why."""
    verdict = check(story().logs(), plan)
    assert (verdict.state, list(verdict.reasons)) == ("unknown", [reason])
    assert reason in report(verdict)


def test_an_event_is_over_by_the_clock_of_whoever_sends_it() -> None:
    """One whose clock is 0.4 s behind the history's may send it so much longer, and it takes its way; no longer."""
    # It comes 4.3 s after the story began: 1.65 s and 1.75 s after its time.
    for clock, expire, state in ((0.4, 102.65, "valid"), (0.0, 102.65, "invalid"), (0.4, 102.55, "invalid")):
        late = Story().connect(ALICE).publish("a", expire=expire).wait(0.3).receive(ALICE, "a", shown=False)
        assert check(ended(late, "a").logs(), limits=Limits(clock=clock)).state == state


def test_a_violation_is_told_as_the_timeline_of_its_item() -> None:
    """Everything about it, with actor and line, and nothing about others."""
    verdict = check(ended(one().publish("b").fault().receive(ALICE, "b").receive(ALICE, "b"), "b", "a").logs())
    (timeline,) = verdict.timelines
    lines = timeline.splitlines()
    assert lines[0] == "I7: id-b revision 1 was shown 2 times on phone"
    assert any("story:" in line and "Received" in line and "device=acme/alice/phone" in line for line in lines)
    assert any("FaultBegan" in line for line in lines)
    assert not any("notification_id=id-a" in line for line in lines)


def test_the_logs_of_a_run_are_read_back_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed actor's last line may be cut off; it is counted."""
    path = tmp_path / "device.jsonl"
    with Recorder(path) as recorder:
        for event in ended(one(), "a").events:
            recorder.add(event)
    with path.open("ab") as file:
        file.write(b'{"event":"rece')
    (log,) = read([path])
    assert [line.event for line in log.lines] == ended(one(), "a").events
    assert log.truncated
    assert main([str(tmp_path)]) == 0
    assert "logs cut off 1" in capsys.readouterr().out


def test_a_line_that_is_no_event_ends_the_judgement(tmp_path: Path) -> None:
    """A hole in the middle would hide what it held."""
    (tmp_path / "device.jsonl").write_bytes(b'{"event":"x"}\n{"event":"y"}\n')
    with pytest.raises(HistoryError, match=r"device.jsonl:1: "):
        read(tmp_path.glob("*.jsonl"))


def test_a_run_without_lines_is_unknown() -> None:
    """Nothing happened, so nothing is proved."""
    assert check([Log([])]).state == "unknown"


def test_a_content_tells_whom_it_is_for() -> None:
    """The mark of one recipient is not another's."""
    text = body(b"secret", ["alice", "bob"], "n1")
    assert nonce_of(text) == "n1"
    assert is_for(b"secret", "alice", text)
    assert is_for(b"secret", "bob", text)
    assert not is_for(b"secret", "carol", text)
    assert not is_for(b"other", "alice", text)
    assert canary(b"secret", "alice", "n1") != canary(b"secret", "alice", "n2")
    assert digest(text) != digest(body(b"secret", ["alice"], "n1"))

"""The frame keeps its promises: targets, packed packages, vendored files, built pages."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs import build
from tests.meta.tree import ROOT, SERVICES, sources

GATE = runpy.run_path(str(ROOT / ".ci/gate.py"))


def _makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def _phony() -> set[str]:
    line = re.search(r"^\.PHONY: (.+)$", _makefile(), re.MULTILINE)
    assert line is not None
    return set(line[1].split())


def test_every_target_has_a_line_of_help() -> None:
    """`make help` names every target that can be asked for."""
    helped = set(re.findall(r"^([a-z-]+):.*## \S", _makefile(), re.MULTILINE))
    assert helped == _phony()


def test_every_target_is_one_line() -> None:
    """What takes more than a line is a program with a name."""
    lines = _makefile().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"[a-z-]+:.*## ", line):
            recipe = [text for text in lines[number + 1 : number + 4] if text.startswith("\t")]
            assert len(recipe) <= 1 or not lines[number + 2].startswith("\t"), line


def test_every_step_of_the_gate_is_a_target() -> None:
    """A step that fails can be run alone under the name that was printed."""
    assert {step[0] for step in (*GATE["SINGLE"], *GATE["STEPS"])} <= _phony()


def test_marked_tests_have_a_step_in_the_gate() -> None:
    """A test that `make unit` leaves out runs in a step of its own, or it would run nowhere."""
    text = "".join(source.path.read_text(encoding="utf-8") for source in sources() if source.label.startswith("tests/"))
    for shape in ("processes", "mesh"):
        if re.search(rf"mark\.{shape}\b", text):
            assert ("scenarios", f"SHAPE={shape}") in GATE["STEPS"]
    if re.search(r"mark\.engines\b", text):
        assert ("engines-test",) in GATE["STEPS"]


def test_ci_runs_the_tests_command_and_nothing_else() -> None:
    """Nothing exists only in CI."""
    path = ROOT / ".ci" / "run"
    commands = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert commands == ['cd "$(dirname "$0")/.." && exec make test']
    assert path.stat().st_mode & 0o111


def test_a_failing_step_ends_the_gate_with_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    """The step after a failing one does not run, and the name of the failing one is printed."""
    assert GATE["run"]([], [["exit 0"], ["exit 3"], ["echo reached"]], ["sh", "-c"], 2) == 1
    printed = capfd.readouterr().out
    assert "== ok exit 0" in printed
    assert "== FAILED: exit 3" in printed
    assert "reached" not in printed


def test_single_steps_run_side_by_side_and_speak_one_after_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits for the other here, so neither would end alone; what one says stands together below its name."""
    here, there = tmp_path / "here", tmp_path / "there"
    meeting = "echo {0} begins; mkfifo {1} 2>/dev/null; {2}; echo {0} ends >&2"
    assert GATE["run"](
        [
            [meeting.format("one", here, f"while ! [ -p {there} ]; do :; done")],
            [meeting.format("two", there, f"while ! [ -p {here} ]; do :; done")],
        ],
        [["echo after"]],
        ["sh", "-c"],
        2,
    ) == 0  # fmt: skip
    printed = capfd.readouterr().out
    for name in ("one", "two"):
        assert f"{name} begins\n{name} ends\n== ok " in printed
    assert printed.index("== ok") < printed.index("after\n== ok echo after")
    assert "== PASSED: 3 steps" in printed


def test_a_failing_single_step_ends_those_beside_it(capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody waits for the rest: what runs beside it is ended, and nothing else begins."""
    endless, failing = ["tail -f /dev/null"], ["echo why; exit 3"]
    assert GATE["run"]([endless, failing, ["echo third"]], [["echo reached"]], ["sh", "-c"], 2) == 1
    printed = capfd.readouterr().out
    assert "why\n\n== FAILED: echo why; exit 3" in printed
    assert "== 3/4" not in printed
    assert "== 4/4" not in printed


def test_every_package_is_packed() -> None:
    """A new service or library that the wheel forgets would only be missed by whoever installs it."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    packed = set(rules["targets"]["wheel"]["only-include"])
    libraries = {"gen/heliograph", "mesh", "cli/heliograph_cli", "clients/python/heliograph_client"}
    assert packed == libraries | set(SERVICES)


def test_the_lock_holds_every_dependency_within_its_bounds() -> None:
    """A bound that moved without `make lock` would install what nobody asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", lock, re.MULTILINE))
    wanted = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    assert len(wanted) > 30
    for requirement in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in requirements.lock"
        assert requirement.specifier.contains(version), f"{requirement} does not allow the locked {version}"


def test_vendored_protos_are_unedited() -> None:
    """What others wrote is what their own package ships."""
    shipped = resources.files("google.api")
    vendored = sorted((ROOT / "proto" / "vendor").rglob("*.proto"))
    assert [path.name for path in vendored] == ["annotations.proto", "http.proto"]
    for path in vendored:
        assert path.read_bytes() == (shipped / path.name).read_bytes()


def test_pages_are_fresh() -> None:
    """Settings and decisions are documented as they are."""
    assert build.stale() == [], "run `make docs`"


def test_a_decision_record_needs_its_head_and_sections() -> None:
    """A record that lacks its state, its date or a section is refused by name."""
    text = "# 0007: Ids are strings\n\n- State: accepted\n- Date: 2026-11-29\n"
    text += "".join(f"\n## {section}\n\nWords.\n" for section in build.SECTIONS)
    record = build.read_decision("0007-ids-are-strings.md", text)
    assert (record.number, record.title, record.state) == ("0007", "Ids are strings", "accepted")
    for right, wrong in (("accepted", "perhaps"), ("## Context", "## Why"), ("0007:", "0008:")):
        with pytest.raises(build.PageError, match=r"docs/adr/0007-ids-are-strings\.md"):
            build.read_decision("0007-ids-are-strings.md", text.replace(right, wrong))
    with pytest.raises(build.PageError, match="NNNN-words-with-dashes"):
        build.read_decision("ids.md", text)

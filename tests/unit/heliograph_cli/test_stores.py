"""The upkeep of stores: what is said, in which order, and that one broken store hides no other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import pytest
import structlog
from typer.testing import CliRunner

from heliograph_cli import stores
from heliograph_cli.commands import stores as commands
from heliograph_cli.failures import FAILED, USAGE, CommandFailed
from heliograph_cli.main import app
from heliograph_cli.stores import Line, Target, all_well
from mesh.errors import StartError, Unavailable
from mesh.stores import Finding

State: TypeAlias = Literal["ok", "missing", "behind", "wrong"]


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """The command says where logs go; the next test may say otherwise."""
    yield
    structlog.reset_defaults()


class MemoryAdmin:
    """A store of named parts, each of a version; newest is 2."""

    def __init__(self, what: str, parts: dict[str, int], *, broken: Exception | None = None) -> None:
        self.what = what
        self.url = f"memory://{what}"
        self.parts = parts
        self.broken = broken

    async def check(self) -> Sequence[Finding]:
        """See the port."""
        self._answer()
        wrong: tuple[State, str] = ("wrong", "size is 1, must be 3")
        details: dict[int, tuple[State, str]] = {0: ("missing", ""), 1: ("behind", "version 1 of 2"), 2: ("ok", "")}
        return [Finding(part, *details.get(version, wrong)) for part, version in self._all()]

    async def create(self, *, dry_run: bool) -> Sequence[str]:
        """See the port."""
        self._answer()
        made = [part for part, version in self._all() if version == 0]
        if not dry_run:
            self.parts.update(dict.fromkeys(made, 2))
        return made

    async def migrate(self, *, dry_run: bool) -> Sequence[str]:
        """See the port."""
        self._answer()
        behind = [part for part, version in self._all() if version == 1]
        if not dry_run:
            self.parts.update(dict.fromkeys(behind, 2))
        return [f"{part} to version 2" for part in behind]

    def _all(self) -> list[tuple[str, int]]:
        return sorted(self.parts.items())

    def _answer(self) -> None:
        if self.broken is not None:
            raise self.broken


def target(admin: MemoryAdmin, service: str = "prefs") -> Target:
    """A store of a service."""
    return Target(service, admin)


def said(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """The state and the text of each line."""
    return [(line.state, line.text) for line in lines]


async def test_every_finding_is_a_line_with_what_to_do() -> None:
    """What is missing, behind or wrong names its remedy; what is right names none."""
    admin = MemoryAdmin("wishes", {"a": 2, "b": 0, "c": 1, "d": 3})
    lines = await stores.check([target(admin)])
    assert said(lines) == [
        ("ok", "a"),
        ("missing", "b"),
        ("behind", "c: version 1 of 2"),
        ("wrong", "d: size is 1, must be 3"),
    ]
    assert [line.remedy for line in lines] == [
        "",
        "make it with `heliograph stores create`",
        "run `heliograph stores migrate`",
        "correct it, then look with `heliograph stores check`",
    ]
    assert {(line.service, line.store, line.url) for line in lines} == {("prefs", "wishes", "memory://wishes")}
    assert not all_well(lines)


async def test_a_store_that_cannot_be_asked_hides_no_other() -> None:
    """Whatever it raises becomes one line, in the order of the stores."""
    causes = [StartError("no host\nanswers"), Unavailable("is away", reason="STORE_UNAVAILABLE"), KeyError("driver")]
    targets = [target(MemoryAdmin(f"s{number}", {"a": 2}, broken=cause)) for number, cause in enumerate(causes)]
    lines = await stores.check([*targets, target(MemoryAdmin("good", {"a": 2}))])
    assert said(lines) == [
        ("failed", "no host answers"),
        ("failed", "is away"),
        ("failed", "KeyError: 'driver'"),
        ("ok", "a"),
    ]
    assert not all_well(lines)


async def test_a_line_says_once_what_and_where() -> None:
    """What a store's own text begins with stands in the line already."""
    causes = ["wishes at memory://wishes: is away", "wishes: is away", "memory://wishes: is away", "is away"]
    for cause in causes:
        lines = await stores.check([target(MemoryAdmin("wishes", {}, broken=StartError(cause)))])
        assert said(lines) == [("failed", "is away")]


async def test_creating_makes_what_is_missing_and_looks_again() -> None:
    """What is behind is left to `migrate`, and is therefore still said."""
    admin = MemoryAdmin("wishes", {"a": 0, "b": 1})
    lines = await stores.create([target(admin)], dry_run=False)
    assert said(lines) == [("done", "a"), ("ok", "a"), ("behind", "b: version 1 of 2")]
    assert not all_well(lines)
    lines = await stores.migrate([target(admin)], dry_run=False)
    assert said(lines) == [("done", "b to version 2"), ("ok", "a"), ("ok", "b")]
    assert all_well(lines)


async def test_a_dry_run_changes_nothing() -> None:
    """It only says what would be done, and that is no failure."""
    admin = MemoryAdmin("wishes", {"a": 0, "b": 1})
    assert said(await stores.create([target(admin)], dry_run=True)) == [("planned", "a")]
    lines = await stores.migrate([target(admin)], dry_run=True)
    assert said(lines) == [("planned", "b to version 2")]
    assert all_well(lines)
    assert admin.parts == {"a": 0, "b": 1}


async def test_a_store_that_could_not_be_made_is_not_looked_at_again() -> None:
    """Its failure stands there once; the store behind it is made all the same."""
    broken = MemoryAdmin("lanes", {"a": 0}, broken=StartError("refused"))
    good = MemoryAdmin("wishes", {"a": 0})
    lines = await stores.create([target(broken), target(good)], dry_run=False)
    assert said(lines) == [("failed", "refused"), ("done", "a"), ("ok", "a")]


async def test_a_store_of_two_services_is_spoken_of_once() -> None:
    """Two services at the same lanes find the same."""
    lanes = MemoryAdmin("lanes", {"a": 2})
    lines = await stores.check([target(lanes, "ingest"), target(lanes, "fanout")])
    assert [(line.service, line.text) for line in lines] == [("ingest", "a")]


def test_embedded_stores_need_nothing() -> None:
    """By default every service keeps its stores itself: one line each, and all is well."""
    found = stores.collect(["prefs", "presence"], {})
    assert [(line.state, line.service) for line in found if isinstance(line, Line)] == [
        ("embedded", "prefs"),
        ("embedded", "presence"),
    ]
    assert len(found) == 2


def test_wrong_settings_and_unknown_services_are_one_line() -> None:
    """They end the command before any store is asked."""
    with pytest.raises(CommandFailed, match="--service gateway: keeps no store; known: presence, prefs") as caught:
        stores.collect(["gateway"], {})
    assert caught.value.code == USAGE
    with pytest.raises(CommandFailed, match="prefs: flag --store-link: is unknown; did you mean --store-url") as caught:
        stores.collect(["prefs"], {"prefs": ["--store-link", "x"]})
    assert caught.value.code == USAGE


def test_lines_are_shown_and_the_exit_code_tells_whether_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    """A person gets a line a finding, a program a JSON object a line; exit code 1 unless all is right."""
    targets = [target(MemoryAdmin("wishes", {"a": 2, "b": 0}))]
    with pytest.raises(CommandFailed) as caught:
        commands._run(stores.check, targets, False)
    assert caught.value.code == FAILED
    assert capsys.readouterr().out == (
        "ok       prefs     wishes: a (memory://wishes)\n"
        "missing  prefs     wishes: b; make it with `heliograph stores create` (memory://wishes)\n"
    )
    with pytest.raises(CommandFailed):
        commands._run(stores.check, targets, True)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["state"], one["service"], one["text"]) for one in shown] == [
        ("ok", "prefs", "a"),
        ("missing", "prefs", "b"),
    ]


def test_flags_of_a_service_follow_two_dashes() -> None:
    """They reach the settings of the one service that is named, and of no more than one."""
    done = CliRunner().invoke(app, ["stores", "check", "--service", "prefs", "--", "--store-url", "sqlite:///x.db"])
    assert (done.exit_code, done.output.split()[:2]) == (0, ["embedded", "prefs"])
    done = CliRunner().invoke(app, ["stores", "check", "--", "--store-url", "sqlite:///x.db"])
    assert isinstance(done.exception, CommandFailed)
    assert "need one --service" in str(done.exception)

"""Rules that the tests themselves keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.meta.tree import Source, sources

# The one place that lets the event loop turn between two looks at a condition.
# In a simulation time is virtual and no sleep takes any; in the rig of faults a pause is how long a fault lasts, or
# what a producer waits before its next try.
_MAY_SLEEP = {
    "tests/faults/actors.py",
    "tests/faults/nemesis.py",
    "tests/simulation/calls.py",
    "tests/simulation/channel.py",
    "tests/simulation/nemesis.py",
    "tests/simulation/people.py",
    "tests/simulation/run.py",
    "tests/simulation/storage.py",
    "tests/simulation/wiring.py",
    "tests/simulation/mutants.py",
    "tests/support/wait.py",
}
_SILENCED = {"skip", "skipif", "xfail"}


def _tests() -> Iterator[Source]:
    return (source for source in sources() if source.label.startswith("tests/"))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def sleeps(tree: ast.Module) -> list[int]:
    """Lists the lines that let time pass."""
    modules = {"time", "asyncio", "anyio"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            gives_way = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if getattr(node.func.value, "id", "") in modules and not gives_way:
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            found += [node.lineno for alias in node.names if alias.name == "sleep"]
    return found


def silenced(tree: ast.Module) -> list[int]:
    """Lists the lines that take a test out of the run."""
    spelled = {f"{origin}.{name}" for origin in ("pytest", "pytest.mark") for name in _SILENCED}
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node) in spelled]


def test_every_test_says_in_a_sentence_what_it_shows() -> None:
    """A failed test's docstring is the first thing that its reader needs."""
    lacking = [
        f"{source.label}:{function.lineno} {function.name}"
        for source in _tests()
        for function in _functions(source.tree)
        if not (ast.get_docstring(function) or "").split("\n")[0].endswith((".", "?", "!"))
    ]
    assert lacking == []


def test_no_test_sleeps() -> None:
    """A wait is for a condition with a limit: a pause is too short on a slow day and too long on all others."""
    found = [
        f"{source.label}:{line}"
        for source in _tests()
        if source.label not in _MAY_SLEEP
        for line in sleeps(source.tree)
    ]
    assert found == []


def test_no_test_is_taken_out_of_the_run() -> None:
    """What does not pass is a fault with an owner, not a test to be silenced."""
    assert [f"{source.label}:{line}" for source in _tests() for line in silenced(source.tree)] == []


def test_the_rules_catch_what_they_are_for() -> None:
    """Each rule finds its breach; giving way to the loop with a pause of zero is none."""
    assert sleeps(ast.parse("import time\ntime.sleep(1)\nasyncio.sleep(0)\nawait_ = asyncio.sleep(0.1)")) == [2, 4]
    assert sleeps(ast.parse("from asyncio import sleep")) == [1]
    assert silenced(ast.parse("import pytest\n@pytest.mark.skipif(True)\ndef f(): pytest.skip('')")) == [2, 3]

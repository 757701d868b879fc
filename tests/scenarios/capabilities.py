"""What the service does, clause by clause, and the tests that show it in each shape, or why a shape has none.

The clauses are in `capabilities.toml`; `docs/capabilities.md` is made from them, and `tests/meta/test_capabilities.py`
checks them. As a program it prints, as JSON, in which shapes the tests of these clauses are collected:

    python -m tests.scenarios.capabilities

Must not run a test.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.faults import catalogue

ROOT: Final = Path(__file__).resolve().parents[2]
SHAPES: Final = ("loop", "processes", "mesh")
_FILE: Final = Path(__file__).with_name("capabilities.toml")
_MEASURED: Final = ROOT / "docs" / "performance.md"
# Tests that start something have one of these; all others run in one loop.
_MARKS: Final = frozenset({"processes", "mesh", "engines"})

# By node id without parameters.
Collected = Mapping[str, frozenset[str]]


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One clause.

    Attributes:
        loop: node ids without parameters, of tests that run the services' own objects in one loop.
        processes: the same, of services as processes.
        mesh: the same, behind sidecars and the edge.
        bench: what rows of `docs/performance.md` measure.
        reason_loop: why there is no test in this shape.
        reason_processes: the same.
        reason_mesh: the same.
    """

    loop: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    mesh: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()
    reason_loop: str = ""
    reason_processes: str = ""
    reason_mesh: str = ""

    def tests(self, shape: str) -> tuple[str, ...]:
        """Returns the tests in a shape."""
        return {"loop": self.loop, "processes": self.processes, "mesh": self.mesh}[shape]

    def reason(self, shape: str) -> str:
        """Returns why there are none in a shape."""
        return {"loop": self.reason_loop, "processes": self.reason_processes, "mesh": self.reason_mesh}[shape]


Parts = Mapping[str, Mapping[str, Capability]]


def load(text: str | None = None) -> Parts:
    """Returns the clauses by their parts, in their order."""
    content = _FILE.read_text(encoding="utf-8") if text is None else text
    return msgspec.convert(tomllib.loads(content), dict[str, dict[str, Capability]])


def clauses(parts: Parts) -> Iterator[tuple[str, Capability]]:
    """Yields every clause with its title."""
    for part in parts.values():
        yield from part.items()


# ---------------------------------------------------------------- checks


def undecided(parts: Parts) -> Iterator[str]:
    """Names the shapes of clauses that have neither tests nor a reason, or both."""
    for title, clause in clauses(parts):
        for shape in SHAPES:
            if bool(clause.tests(shape)) == bool(clause.reason(shape)):
                yield f"{title}: {shape}"


def missing(parts: Parts, root: Path = ROOT) -> Iterator[str]:
    """Names the tests of clauses that do not exist."""
    rows = {
        title: catalogue.Row(title=title, tests=tuple(test for shape in SHAPES for test in clause.tests(shape)))
        for title, clause in clauses(parts)
    }
    return catalogue.missing(rows, root)


def misplaced(parts: Parts, collected: Collected) -> Iterator[str]:
    """Names the tests that do not run in the shape they stand under."""
    for title, clause in clauses(parts):
        for shape in SHAPES:
            for test in clause.tests(shape):
                if shape not in collected.get(test, frozenset()):
                    yield f"{title}: {shape}: {test}"


def unmeasured(parts: Parts, page: str | None = None) -> Iterator[str]:
    """Names what the page of measurements has no row for."""
    text = _MEASURED.read_text(encoding="utf-8") if page is None else page
    rows = {found.strip() for found in re.findall(r"^\|([^|]*)\|", text, re.MULTILINE)}
    for title, clause in clauses(parts):
        yield from (f"{title}: {row}" for row in clause.bench if not any(_is_named(row, found) for found in rows))


def _is_named(row: str, found: str) -> bool:
    """Whether a row begins with this name: what stands behind a comma says how it was measured."""
    return found == row or found.startswith(f"{row}, ")


# ---------------------------------------------------------------- collection


class _Recorder:
    """A plugin of pytest that keeps in which shapes each test is collected."""

    def __init__(self) -> None:
        self.found: defaultdict[str, set[str]] = defaultdict(set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Looks at everything that was collected."""
        for item in items:
            test, _, _ = item.nodeid.partition("[")
            self.found[test] |= _MARKS & {mark.name for mark in item.iter_markers()} or {"loop"}


def collect(files: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Returns the shapes of every test in these files.

    Raises:
        RuntimeError: they cannot be collected; pytest has said why.
    """
    recorder = _Recorder()
    # No report of its own: what is written is for a program.
    options = ["--collect-only", "-o", "addopts=--import-mode=importlib", "-p", "no:terminal", "--rootdir", str(ROOT)]
    code = pytest.main([*options, *(str(ROOT / file) for file in files)], plugins=[recorder])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest has not collected {len(files)} files: {code!r}")
    return {test: sorted(shapes) for test, shapes in sorted(recorder.found.items())}


def files(parts: Parts) -> Sequence[str]:
    """Names the files of all tests, each once."""
    tests = (test for _, clause in clauses(parts) for shape in SHAPES for test in clause.tests(shape))
    return sorted({test.partition("::")[0] for test in tests})


# ---------------------------------------------------------------- page


def page() -> str:
    """Renders docs/capabilities.md."""
    parts = load()
    counts = {shape: sum(bool(clause.tests(shape)) for _, clause in clauses(parts)) for shape in SHAPES}
    total = sum(map(len, parts.values()))
    lines = [
        "# What is shown",
        "",
        "Built by `make docs` from `tests/scenarios/capabilities.toml`. What the service does, clause by clause, and",
        "the tests that show it: in one loop (the services' own objects, without processes), as processes, and",
        "through the mesh. Where a shape has none, the reason stands in its place. What goes wrong on purpose is in",
        "[faults.md](faults.md), the measurements are in [performance.md](performance.md).",
        "",
        f"**{total} clauses**: {counts['loop']} are shown in one loop, {counts['processes']} as processes,",
        f"{counts['mesh']} through the mesh.",
    ]
    for part, held in parts.items():
        lines += [
            "",
            f"## {part}",
            "",
            "| Clause | In one loop | As processes | Through the mesh |",
            "|---|---|---|---|",
        ]
        for title, clause in held.items():
            cells = (_measured(title, clause), *(_cell(clause, shape) for shape in SHAPES))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _measured(title: str, clause: Capability) -> str:
    return "<br>".join([title, *(f"measured: {row}" for row in clause.bench)])


def _cell(clause: Capability, shape: str) -> str:
    tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in clause.tests(shape))
    return tests or clause.reason(shape)


if __name__ == "__main__":
    json.dump(collect(files(load())), sys.stdout)

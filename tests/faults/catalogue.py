"""The catalogue of faults: each row with the tests that cover it, or the reason why none does.

A row is covered when its tests make the fault happen, show that it did, and find every promise kept. The rows are in
`catalogue.toml`; `docs/faults.md` is made from them, and from `ladder.toml`: what still works when a part is gone. Must
not run a test.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
_FILE: Final = Path(__file__).with_name("catalogue.toml")
_LADDER: Final = Path(__file__).with_name("ladder.toml")

# The parts of a notification's way that the numbers of rows stand for.
_PARTS: Final[Sequence[tuple[str, int, int]]] = (
    ("Producer to ingest", 1, 9),
    ("Ingest to its request log and its lanes", 10, 20),
    ("Lanes to fanout", 21, 35),
    ("Fanout and delivery to prefs and presence", 36, 46),
    ("Delivery to the inbox", 47, 56),
    ("Streams between services", 57, 66),
    ("Gateways to devices", 67, 73),
    ("Upgrades, certificates, crowds, the edge", 74, 84),
    ("Channels beside live", 85, 95),
    ("Time, resources, data", 96, 108),
)


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault, or one part that is gone.

    Attributes:
        title: what goes wrong, or what still works.
        tests: node ids without parameters; empty: not covered.
        reason: why it is not covered.
        note: what its tests leave open.
    """

    title: str
    tests: tuple[str, ...] = ()
    reason: str = ""
    note: str = ""

    @property
    def is_covered(self) -> bool:
        """Whether tests make it happen."""
        return bool(self.tests)


def load(text: str | None = None) -> Mapping[str, Row]:
    """Returns the rows by their ids, in their order."""
    content = _FILE.read_text(encoding="utf-8") if text is None else text
    return msgspec.convert(tomllib.loads(content), dict[str, Row])


def ladder() -> Mapping[str, Row]:
    """Returns what still works, by the part that is gone."""
    return load(_LADDER.read_text(encoding="utf-8"))


def number_of(row: str) -> int:
    """Returns the number of a row's id: 32 for "F-32b"."""
    return int(row.removeprefix("F-").rstrip("ab"))


def missing(rows: Mapping[str, Row], root: Path = ROOT) -> Iterator[str]:
    """Names the tests of rows that do not exist."""
    known: dict[str, set[str]] = {}
    for row, content in rows.items():
        for test in content.tests:
            file, _, name = test.partition("::")
            if file not in known:
                known[file] = _tests_in(root / file)
            if name not in known[file]:
                yield f"{row}: {test}"


def _tests_in(path: Path) -> set[str]:
    if not path.exists():
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in found if name.startswith("test_")}


def page() -> str:
    """Renders docs/faults.md."""
    rows = load()
    covered = sum(row.is_covered for row in rows.values())
    lines = [
        "# Faults",
        "",
        "Built by `make docs` from `tests/faults/catalogue.toml`. What goes wrong on a notification's way, and the",
        "tests that make it go wrong, show that it did, and find every promise kept. Runs of several faults are judged",
        "by the checker (`tests/faults/checker.py`); `make faults` runs the quick set, `make faults-full` everything.",
        "",
        f"**{covered} of {len(rows)} rows are covered.** The others say why not.",
    ]
    for part, first, last in _PARTS:
        lines += ["", f"## {part}", "", "| Row | Fault | Tests |", "|---|---|---|"]
        lines += [
            f"| {id_} | {row.title} | {_cell(row)} |" for id_, row in rows.items() if first <= number_of(id_) <= last
        ]
    lines += [
        "",
        "## What still works when a part is gone",
        "",
        "Each of these tests runs on the real engines too, or only there. What is lost then, and what is not, is in",
        "[engines.md](engines.md#when-one-is-gone).",
        "",
        "| Gone | Still works | Tests |",
        "|---|---|---|",
        *(f"| {gone} | {row.title} | {_cell(row)} |" for gone, row in ladder().items()),
    ]
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    if not row.is_covered:
        return f"not covered: {row.reason}"
    tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in row.tests)
    return f"{tests}<br>{row.note}" if row.note else tests

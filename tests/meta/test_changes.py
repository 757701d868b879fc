"""Fragments of the change log: one for each change that somebody outside can notice."""

from __future__ import annotations

import re

import pytest

from tests.meta.tree import ROOT

_KINDS = ("contract", "feature", "fix", "ops", "removal", "internal")
_NAME = re.compile(rf"\d+(?:-\d+)?\.(?:{'|'.join(_KINDS)})\.md")


def faults(name: str, text: str) -> list[str]:
    """Says what is wrong with one fragment."""
    found = []
    if not _NAME.fullmatch(name):
        found.append(f"the name must be <n>.<kind>.md or <n>-<part>.<kind>.md, kind one of {', '.join(_KINDS)}")
    if not text.endswith(".\n") or text.endswith("\n\n"):
        found.append("the text must end in a full stop and one line end")
    return found


def test_fragments_have_a_kind_and_end_in_a_full_stop() -> None:
    """A release can be assembled from the fragments without editing them."""
    folder = ROOT / "docs" / "changes"
    found = [
        f"docs/changes/{path.name}: {fault}"
        for path in sorted(folder.iterdir())
        for fault in faults(path.name, path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("3.fix.md", "It works.\n", 0),
        ("3-2.contract.md", "It works.\n", 0),
        ("3.bug.md", "It works.\n", 1),
        ("fix.md", "It works.\n", 1),
        ("3.fix.md", "It works", 1),
        ("3.fix.md", "It works.\n\n", 1),
    ],
)
def test_faulty_fragments_are_found(name: str, text: str, count: int) -> None:
    """A wrong name and an unfinished sentence are each one fault."""
    assert len(faults(name, text)) == count

"""The page of errors names every reason that can be sent, and no other."""

from __future__ import annotations

import re

import grpc

from heliograph.type.v1.refusal_pb2 import ErrorReason
from heliograph_cli import failures
from tests.meta.tree import ROOT, SERVICES, sources

_PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
_PREFIX = "ERROR_REASON_"
_REASONS = [name.removeprefix(_PREFIX) for name in ErrorReason.DESCRIPTOR.values_by_name]


def _rows(heading: str) -> list[list[str]]:
    section = _PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_reason_is_explained_in_the_order_of_the_contract() -> None:
    """A reason that is added to the contract is added to the page, with when and what to do."""
    rows = _rows("Reasons")
    assert [row[0].strip("`") for row in rows] == _REASONS
    assert [row[0] for row in rows if len(row) != 4 or not all(row)] == []
    assert [row[0] for row in rows if not (row[2].endswith(".") and row[3].endswith("."))] == []


def test_codes_are_those_of_grpc_or_of_a_close() -> None:
    """A reader can look the code up as it is written."""
    names = {code.name for code in grpc.StatusCode}
    found = [row[1] for row in _rows("Reasons")]
    assert [
        code for code in found if code.strip("`") not in names and not re.fullmatch("any|close code 4[05]0\\d", code)
    ] == []


def test_exit_codes_are_those_of_the_command() -> None:
    """The page and the command agree."""
    known = {0, failures.FAILED, failures.USAGE, failures.REFUSED, failures.UNAVAILABLE}
    assert {int(row[0]) for row in _rows("Exit codes of the command")} == known


def test_services_give_no_other_reason() -> None:
    """A reason in the code that the contract lacks would be met by no caller's branch."""
    written = re.compile(r'\breason="([A-Z][A-Z_]*)"')
    found = [
        f"{source.label} {reason}"
        for source in sources()
        if source.module.partition(".")[0] in (*SERVICES, "mesh", "heliograph_client")
        for reason in written.findall(source.path.read_text(encoding="utf-8"))
        if reason not in _REASONS
    ]
    assert found == []

"""The table of what strangers may try names tests that exist; and what no test can try is held to a floor."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.internal import api_implementation

from mesh.envoy.process import envoy_binary
from tests.meta.hostile_rows import ABSENT, COVERED
from tests.meta.tree import ROOT
from tests.support import contract

ROWS = [f"S-{number:02}" for number in (*range(1, 17), *range(21, 44))]
# The first versions without the last hole that strangers could use from outside.
FLOORS = {"pyjwt": (2, 13), "grpcio": (1, 65, 4), "websockets": (13,), "protobuf": (5, 29, 5)}
ENVOY_FLOOR = (1, 37, 1)


def missing(table: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Names the tests of a table that do not exist."""
    for row, names in table.items():
        for name in names:
            file, _, function = name.partition("::")
            path = ROOT / file
            tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
            defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            if not function.startswith("test_") or function not in defined:
                yield f"{row}: {name}"


def test_every_row_has_a_test_or_a_reason() -> None:
    """No row is forgotten, and none has both."""
    assert [row for row in ROWS if row not in COVERED and row not in ABSENT] == []
    assert sorted(set(COVERED) & set(ABSENT)) == []
    assert [row for row, names in COVERED.items() if not names] == []


def test_every_test_that_is_named_exists() -> None:
    """A test that is renamed or removed leaves no row behind that claims to be covered."""
    assert list(missing(COVERED)) == []


def test_the_search_finds_what_is_not_there() -> None:
    """A file that does not exist, and a function that does not, are both told."""
    here = "tests/meta/test_hostile_rows.py"
    table = {"a": (f"{here}::test_gone", "tests/gone.py::test_a", f"{here}::missing", f"{here}::test_every_row")}
    assert len(list(missing(table))) == 4
    assert list(missing({"b": (f"{here}::test_every_row_has_a_test_or_a_reason",)})) == []


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def test_libraries_are_as_new_as_their_last_hole_demands() -> None:
    """What reads strangers' bytes before our own code does is patched: tokens, HTTP/2, messages, the proxy."""
    old = {name: version(name) for name, floor in FLOORS.items() if _numbers(version(name)) < floor}
    assert old == {}
    said = subprocess.run([str(envoy_binary()), "--version"], capture_output=True, text=True, check=True).stdout
    # "envoy  version: <commit>/<version>/Clean/RELEASE/<library>".
    assert _numbers(said.split("version:")[1].split("/")[1]) >= ENVOY_FLOOR, said


def test_messages_are_read_by_the_fast_parser_and_hold_no_any() -> None:
    """It bounds how deep a message may be nested, and nothing in the contract can hold just any message."""
    assert api_implementation.Type() == "upb"
    found: set[str] = set()
    for service in contract.services().values():
        for method in service.methods:
            for message in (method.input_type, method.output_type):
                _collect(message, found)
    assert "heliograph.type.v1.NotificationRef" in found, "the search goes into messages"
    assert "google.protobuf.Any" not in found


def _collect(message: Descriptor, found: set[str]) -> None:
    """Adds the names of a message and of all that may lie in it."""
    if message.full_name in found:
        return
    found.add(message.full_name)
    for field in message.fields:
        if field.message_type is not None:
            _collect(field.message_type, found)


@pytest.mark.parametrize("row", sorted(ABSENT))
def test_a_reason_is_a_sentence(row: str) -> None:
    """Who reads why a row is not tried must understand it."""
    assert len(ABSENT[row].split()) >= 4

"""The catalogue names tests that exist, leaves out no row, and claims nothing without one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.faults.catalogue import Row, ladder, load, missing, number_of

# Without these the release does not go out.
_NEEDED: Final = (4, 11, 13, 21, 22, 23, 24, 30, 42, 47, 51, 57, 58, 61, 62, 68, 72, 75, 77, 78)
_LEAST: Final = 70


def test_every_row_is_there_in_order() -> None:
    """F-01 to F-108 and F-32b, each once: 109."""
    numbers = [number_of(row) for row in load()]
    assert numbers == sorted([*range(1, 109), 32])
    assert len(numbers) == 109


def test_a_row_has_tests_or_a_reason() -> None:
    """Not both, and not neither."""
    assert [id_ for id_, row in load().items() if row.is_covered == bool(row.reason)] == []


def test_every_named_test_exists() -> None:
    """A test that was renamed or removed covers nothing."""
    assert [*missing(load()), *missing(ladder())] == []


def test_every_part_that_can_be_gone_has_a_test() -> None:
    """There is no row of the ladder that nobody has tried."""
    assert [gone for gone, row in ladder().items() if not row.is_covered or row.reason] == []
    assert len(ladder()) == 9


def test_a_test_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """The rule above can fail: by file and by name."""
    (tmp_path / "test_a.py").write_text("def test_there(): ...\n", encoding="utf-8")
    row = Row(title="a fault", tests=("test_a.py::test_there", "test_a.py::test_gone", "test_b.py::test_there"))
    assert list(missing({"F-01": row}, tmp_path)) == ["F-01: test_a.py::test_gone", "F-01: test_b.py::test_there"]


def test_the_rows_that_matter_most_are_covered() -> None:
    """The worst and likeliest ones all, and seventy in all."""
    covered = {id_ for id_, row in load().items() if row.is_covered}
    assert {f"F-{number:02}" for number in _NEEDED} <= covered
    assert len(covered) >= _LEAST

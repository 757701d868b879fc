"""Where a benchmark's stores are."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.installation import chosen_engines
from heliograph_cli.failures import CommandFailed


def test_stores_are_embedded_unless_engines_are_asked_for(tmp_path: Path) -> None:
    """The file that the environment names is taken then."""
    named = tmp_path / "engines.json"
    named.write_text("{}", encoding="utf-8")
    assert chosen_engines({"HELIOGRAPH_ENGINES": str(named)}) is None
    assert chosen_engines({"STORES": "embedded"}) is None
    assert chosen_engines({"STORES": "engines", "HELIOGRAPH_ENGINES": str(named)}) == named


def test_engines_that_do_not_run_are_said(tmp_path: Path) -> None:
    """The line says how to start them; another word than the known two is refused."""
    with pytest.raises(CommandFailed, match="make engines"):
        chosen_engines({"STORES": "engines", "HELIOGRAPH_ENGINES": str(tmp_path / "absent.json")})
    with pytest.raises(CommandFailed, match="embedded or engines"):
        chosen_engines({"STORES": "both"})

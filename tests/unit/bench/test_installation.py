"""Where a benchmark's stores are."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.installation import chosen_engines, is_envoy
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


@pytest.mark.parametrize(
    ("name", "envoy"), [("edge", True), ("gw-lab-0-envoy", True), ("gw-lab-0", False), ("delivery", False)]
)
def test_sidecars_and_the_edge_are_told_from_what_they_stand_beside(name: str, envoy: bool) -> None:
    """What a gateway node needs is not what its sidecar needs."""
    assert is_envoy(name) is envoy

"""Scripts that a rule machine puts together are valid; where a rule of the services is broken it finds a short one.

`HELIOGRAPH_SCRIPTS` says how many are tried, other ones each time; without it the same few. Each runs in a process of
its own, see `test_simulation`.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.test_simulation import simulate

_EXAMPLES = 40

pytestmark = pytest.mark.timeout(300)


@pytest.mark.faults
def test_scripts_of_the_rule_machine_are_valid() -> None:
    """Publishes, connects, cuts, crashes at any hook, troubles, healing: in any order, with any pauses."""
    examples = os.environ.get("HELIOGRAPH_SCRIPTS", "")
    told = simulate("--machine", examples) if examples else simulate("--machine", str(_EXAMPLES), "--fixed")
    # For the scoreboard.
    print(f"\n{told}")
    assert told.endswith("not valid 0\n")


def test_a_broken_rule_is_told_with_a_short_script() -> None:
    """What nobody needs to see the violation is left out of the script, and it can be run again."""
    told = simulate("--machine", "20", "--fixed", "--mutants", "notifications go to strangers")
    acts = [line for line in told.splitlines() if line.startswith("  act ")]
    assert 1 <= len(acts) <= 3
    assert "I3: " in told
    assert "again: python -m tests.simulation --script '{" in told

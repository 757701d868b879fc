"""When what is there is taken out of the garbage collector's sight."""

from __future__ import annotations

from svc_gateway.freezer import STEP, Freezer


def test_it_freezes_after_so_many_sessions_and_collects_first() -> None:
    """Not for every session, and never garbage."""
    calls: list[str] = []
    freezer = Freezer(collect=lambda: calls.append("collect"), freeze=lambda: calls.append("freeze"))
    freezer.note(STEP - 1)
    assert (calls, freezer.frozen) == ([], 0)
    freezer.note(STEP)
    assert (calls, freezer.frozen) == (["collect", "freeze"], STEP)
    freezer.note(2 * STEP - 1)
    assert len(calls) == 2


def test_sessions_that_take_the_place_of_others_are_frozen_too() -> None:
    """It goes by how many have come, so that a node full of new sessions has frozen ones."""
    frozen: list[int] = []
    freezer = Freezer(collect=lambda: None, freeze=lambda: frozen.append(freezer.frozen))
    for joined in range(0, 10 * STEP, 100):
        freezer.note(joined)
    assert len(frozen) == 9

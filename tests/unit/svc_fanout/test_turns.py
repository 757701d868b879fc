"""Examples of `svc_fanout.turns`."""

from __future__ import annotations

import asyncio

from svc_fanout.turns import RECIPIENTS_IN_A_ROW, Turns, in_pieces


async def test_many_recipients_give_others_their_turn() -> None:
    """Once after so many of them, however many pieces they were worked on in."""
    seen: list[str] = []

    async def work() -> None:
        turns = Turns()
        for number in range(5):
            await turns.worked(RECIPIENTS_IN_A_ROW // 2)
            seen.append(str(number))

    async def other() -> None:
        for name in "ab":
            seen.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(work(), other())
    assert seen == ["0", "a", "1", "2", "b", "3", "4"]


def test_pieces_are_bounded_and_in_order() -> None:
    """Every recipient is in one piece."""
    recipient_ids = [f"r{index}" for index in range(2 * RECIPIENTS_IN_A_ROW + 1)]
    found = list(in_pieces(iter(recipient_ids)))
    assert [len(piece) for piece in found] == [RECIPIENTS_IN_A_ROW, RECIPIENTS_IN_A_ROW, 1]
    assert [one for piece in found for one in piece] == recipient_ids

"""Lets others have the event loop between the pieces of a large audience.

The lanes of all priorities share one loop: what is urgent in another one must not wait until ten thousand recipients of
bulk are decoded, looked up or decided. Must not know what is done with a piece. Path steps 4 and 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

# Recipients in a row before others get their turn: one to three milliseconds of work.
RECIPIENTS_IN_A_ROW: Final = 2_000


class Turns:
    """Counts what was done in a row."""

    def __init__(self) -> None:
        self._count = 0

    async def worked(self, recipient_count: int) -> None:
        """Notes recipients that were worked on; gives others their turn when they were many."""
        self._count += recipient_count
        if self._count >= RECIPIENTS_IN_A_ROW:
            self._count = 0
            await asyncio.sleep(0)


def in_pieces(recipient_ids: Iterable[str]) -> Iterator[list[str]]:
    """Yields recipients, in their order, so many at once as may be worked on in a row."""
    waiting = iter(recipient_ids)
    while piece := list(islice(waiting, RECIPIENTS_IN_A_ROW)):
        yield piece

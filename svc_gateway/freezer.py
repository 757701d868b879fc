"""Keeps the garbage collector away from sessions that stay: a full collection looks at all objects, and stops the node.

Must not know sessions, only how many have come. Step 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import gc
from collections.abc import Callable

# A collection of so many sessions' objects is a pause of a few milliseconds.
STEP = 500


class Freezer:
    """Freezes what is there once more sessions have come.

    Attributes:
        frozen: sessions that had come by then; those of them that have ended are freed as ever.
    """

    def __init__(self, *, collect: Callable[[], object] = gc.collect, freeze: Callable[[], object] = gc.freeze) -> None:
        self.frozen = 0
        self._collect = collect
        self._freeze = freeze

    def note(self, joined: int) -> None:
        """Freezes if enough have come.

        Args:
            joined: sessions that have come so far, whether they are still there or not.
        """
        if joined - self.frozen < STEP:
            return
        # Garbage that is frozen is never found again. What was frozen before is left out, so this is short.
        self._collect()
        self._freeze()
        self.frozen = joined

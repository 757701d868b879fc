"""Whether a process takes work: it has started, does not drain, and knows what time it is.

Must not decide what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable


class Readiness:
    """One per app."""

    def __init__(self) -> None:
        self._told: list[Callable[[bool], None]] = []
        self._open = False
        self._clock_agrees = True
        self._bears_steps = False
        self._ready = False

    def on_change(self, told: Callable[[bool], None]) -> None:
        """Registers what learns of each change."""
        self._told.append(told)

    def bear_steps(self) -> None:
        """Says that nothing here goes by the wall clock: the process stays ready when the machine's is set."""
        self._bears_steps = True

    def open(self, is_open: bool) -> None:
        """The process has started, or begins to drain."""
        self._open = is_open
        self._tell()

    def see_clock(self, agrees: bool) -> None:
        """The machine's clock was set, or is right again."""
        self._clock_agrees = agrees
        self._tell()

    def _tell(self) -> None:
        ready = self._open and (self._clock_agrees or self._bears_steps)
        if ready is self._ready:
            return
        self._ready = ready
        for told in self._told:
            told(ready)

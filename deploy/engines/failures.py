"""What can go wrong with the engines, as lines to show. It must not print."""

from __future__ import annotations


class EnginesFailed(Exception):
    """Something could not be done.

    Attributes:
        lines: one for each thing, each with what to do.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines

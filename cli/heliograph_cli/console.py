"""What the terminal shows while `heliograph up` runs. Must not fail: a closed terminal ends nothing."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TextIO

_RESET, _DIM, _YELLOW, _BOLD = "\x1b[0m", "\x1b[2m", "\x1b[33m", "\x1b[1m"
_NAME_WIDTH = 16


class Console:
    """Lines with the time and the process they are about.

    Args:
        stream: where they go.
        quiet: show warnings and the final addresses only.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._quiet = quiet
        self._coloured = self._stream.isatty()

    def say(self, process: str, text: str, warning: bool) -> None:
        """Shows what happened to a process."""
        if warning or not self._quiet:
            now = time.strftime("%H:%M:%S")
            line = (
                f"{self._paint(now, _DIM)} {process:<{_NAME_WIDTH}} {self._paint(_printable(text), _YELLOW, warning)}"
            )
            self.write(line)

    def head(self, text: str) -> None:
        """Shows a line that stands for the whole."""
        self.write(self._paint(text, _BOLD))

    def write(self, text: str = "") -> None:
        """Shows a line as it is."""
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self._stream, flush=True)

    def _paint(self, text: str, colour: str, wanted: bool = True) -> str:
        return f"{colour}{text}{_RESET}" if wanted and self._coloured else text


def _printable(text: str) -> str:
    """Takes terminal escapes out of a text that others wrote."""
    return "".join(character if character.isprintable() else " " for character in text)

"""How the command fails: one line on standard error and an exit code.

Exit codes: 0 done; 1 failed, or `doctor` found something broken; 2 wrong usage or a start that cannot succeed;
3 refused by a service; 4 not available: nothing runs there, or it does not answer in time. Must stay cheap to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mesh.errors import Failure

FAILED: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
UNAVAILABLE: Final = 4

# Cancelled, DeadlineExceeded, Unavailable: nobody said no.
_NO_ANSWER = frozenset({1, 4, 14})
# Unknown, Unimplemented, Internal, DataLoss: the other side is broken.
_BROKEN = frozenset({2, 12, 13, 15})


class CommandFailed(Exception):
    """Ends the command; the text is one line that says what is wrong and, where it helps, what to do."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(" ".join(text.split()))
        self.code = code


def of_call(failure: Failure) -> CommandFailed:
    """Returns a call's failure as the command's."""
    text = ": ".join(part for part in (failure.reason, failure.message) if part) or type(failure).__name__
    if failure.violations:
        text += " (" + "; ".join(f"{item.field}: {item.description}" for item in failure.violations) + ")"
    if failure.retry_delay is not None:
        text += f"; try again in {failure.retry_delay:g} s"
    if failure.code in _NO_ANSWER:
        return CommandFailed(f"unavailable: {text}", UNAVAILABLE)
    if failure.code in _BROKEN:
        return CommandFailed(f"failed: {text}", FAILED)
    return CommandFailed(f"refused: {text}", REFUSED)

"""The numbers that the promises speak of, and what a broken promise is. It must not judge."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """The numbers that the promises speak of, in seconds unless said otherwise.

    Attributes:
        skew: S, the largest difference between two clocks.
        clock: how far a process's clock is from the history's at most; nothing on one machine.
        write: W, within which a store answers.
        wish: so late a stored wish counts.
        travel: so long what is sent takes to a device at most, when nothing is wrong with its way.
        held: so long what is on its way to a device may stay there after a fault of that way.
        receive: so long after the last fault a connected device may lack something.
        crash: so long after a process died a device may lack what that delayed, whatever dies meanwhile.
        window: rows that an inbox shows of each class, a number.
        high: the least priority of the class that is kept apart, a number.
    """

    skew: float = 1.0
    clock: float = 0.0
    write: float = 5.0
    wish: float = 2.0
    travel: float = 0.3
    held: float = 30.0
    receive: float = 30.0
    crash: float = 30.0
    window: int = 100
    high: int = 3


class Violation(msgspec.Struct, frozen=True):
    """One broken promise: which, what is wrong in one line, and the names that its timeline goes by."""

    invariant: str
    text: str
    names: tuple[str, ...] = ()

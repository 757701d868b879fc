"""Time as something that is passed in: the system's clock, a manual one, and the writer's clock of stamps.

Must not be read inside a service's rules: they get times as arguments.
"""

from __future__ import annotations

import time
from typing import Protocol

_MICROS = 1_000_000
# CLOCK_BOOTTIME goes on while the machine sleeps: a lease that ran out in a suspended laptop is over. macOS has none;
# its time.monotonic() is the best there is.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Where time comes from."""

    def wall(self) -> float:
        """Returns Unix time in seconds; it may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since some fixed moment; it never goes back and includes time asleep where it can."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall(self) -> float:
        """Returns Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds since boot, time asleep included where the system counts it."""
        return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


class ManualClock:
    """A clock that moves only when told to; for tests and simulations."""

    def __init__(self, wall: float = 1_700_000_000.0, monotonic: float = 0.0) -> None:
        self._wall = wall
        self._monotonic = monotonic

    def wall(self) -> float:
        """Returns the set Unix time in seconds."""
        return self._wall

    def monotonic(self) -> float:
        """Returns the seconds advanced so far."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Lets time pass on both clocks.

        Raises:
            ValueError: time does not run backwards; use `step_wall` for a set-back wall clock.
        """
        if seconds < 0:
            raise ValueError("a clock advances by a positive time; step_wall() sets the wall clock back")
        self._wall += seconds
        self._monotonic += seconds

    def step_wall(self, seconds: float) -> None:
        """Sets the wall clock forward or back, as an operator or a time server would."""
        self._wall += seconds


class Stamper:
    """The writer's clock: microseconds since the epoch, never twice the same, never backwards.

    The wall clock is read once; from then on the monotonic clock advances it, so a step of the wall clock never makes
    a later write look earlier.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_monotonic = clock.monotonic()
        self._start = round(clock.wall() * _MICROS)
        self._last = self._start - 1

    def next(self) -> int:
        """Returns a new stamp, larger than every one before it."""
        self._last = max(self._now(), self._last + 1)
        return self._last

    def age(self, stamp: int) -> float:
        """Returns how many seconds ago a stamp was taken: the larger of monotonic and wall time.

        A writer that asks whether an answer came in time must believe whichever clock says it took longer.
        """
        by_monotonic = (self._now() - stamp) / _MICROS
        by_wall = self._clock.wall() - stamp / _MICROS
        return max(by_monotonic, by_wall)

    def _now(self) -> int:
        return self._start + round((self._clock.monotonic() - self._start_monotonic) * _MICROS)

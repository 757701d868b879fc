"""Time as something that is passed in: the system's clock, one that no step reaches, a manual one, and stamps.

A process goes by a `SteadyClock`. When the machine's clock is set while the process runs, nobody can tell whether it
was right before or is right now; so the process keeps its own time, and takes no work until both agree again or it is
started anew. The same goes for a clock that another machine's contradicts. Must not be read inside a service's rules:
they get times as arguments.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from mesh.errors import Unavailable

_MICROS = 1_000_000
# CLOCK_BOOTTIME goes on while the machine sleeps: a lease that ran out in a suspended laptop is over. macOS has none;
# its time.monotonic() is the best there is.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
# Half of what the clocks of two processes may differ by: two that are each within it are within that.
LARGEST_STEP_S: Final = 0.5
# Comparisons with a peer that must all contradict before a clock that one confirmed is doubted.
_DOUBTS: Final = 3
# When a refused caller may come again, in seconds.
_COME_AGAIN_S: Final = 1.0


class Clock(Protocol):
    """Where time comes from."""

    def wall(self) -> float:
        """Returns Unix time in seconds; it may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since some fixed moment; it never goes back and includes time asleep where it can."""
        ...

    def agrees(self) -> bool:
        """Says whether times of this clock may be written: not where it was set, or where a peer contradicts it."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall(self) -> float:
        """Returns Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds since boot, time asleep included where the system counts it."""
        return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)

    def agrees(self) -> bool:
        """Returns True: this one is not compared with anything."""
        return True


class SteadyClock:
    """A wall clock that is read once and goes on by the monotonic one: whoever sets the machine's clock moves nothing.

    Args:
        clock: the machine's.
        largest_step: seconds by which the machine's wall clock may part from this one.
    """

    def __init__(self, clock: Clock, *, largest_step: float = LARGEST_STEP_S) -> None:
        self._clock = clock
        self._largest_step = largest_step
        self._start_monotonic = clock.monotonic()
        self._start = clock.wall()
        self._peer_apart = 0.0
        # The first word of a peer counts: two clocks that never agreed must not both be written.
        self._doubts, self._doubts_allowed = 0, 0

    def wall(self) -> float:
        """Returns Unix time in seconds as it was when the process began, plus what has passed since."""
        return self._start + self._clock.monotonic() - self._start_monotonic

    def monotonic(self) -> float:
        """Returns seconds since some fixed moment."""
        return self._clock.monotonic()

    def apart(self) -> float:
        """Returns how many seconds the machine's wall clock is ahead of this one; negative when it is behind."""
        return self._clock.wall() - self.wall()

    def peer_apart(self) -> float:
        """Returns how many seconds the peer that was last compared is ahead of this clock; 0 before the first."""
        return self._peer_apart

    def compare(self, peer: float, *, asked: float, answered: float) -> None:
        """Takes what the clock of a process on another machine showed.

        Args:
            peer: its Unix time in seconds, at some moment between the two others.
            asked: `wall` before it was asked.
            answered: `wall` when its answer was there; what the way took is no difference.
        """
        self._peer_apart = peer - (asked + answered) / 2
        if abs(self._peer_apart) > self._largest_step + (answered - asked) / 2:
            self._doubts += 1
        else:
            self._doubts, self._doubts_allowed = 0, _DOUBTS - 1

    def agrees(self) -> bool:
        """Says whether the machine's wall clock still shows what this one does, and no peer contradicts. Cheap."""
        return abs(self.apart()) <= self._largest_step and self._doubts <= self._doubts_allowed


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

    def agrees(self) -> bool:
        """Returns True: this one is not compared with anything."""
        return True

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

    def check(self) -> None:
        """Refuses to go on while the machine's clock does not show what stamps go by.

        Raises:
            Unavailable: it was set while the process ran, or a peer's differs.
        """
        require_agreement(self._clock)


def require_agreement(clock: Clock) -> None:
    """Refuses what would go by a time that may be wrong.

    Raises:
        Unavailable: the clock was set while the process ran, or a peer's differs.
    """
    if not clock.agrees():
        raise Unavailable(
            "the clock of this machine was set while the process ran, or differs from that of presence",
            reason="CLOCK_SET",
            retry_delay=_COME_AGAIN_S,
        )

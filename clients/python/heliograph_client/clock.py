"""Time as the SDK sees it: two clocks and a way to let time pass, all injectable.

Must not be read by the rules in `session.py` and `retry.py`: they get times as arguments.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

# Goes on while the machine sleeps, so a laptop that wakes up notices at once how old its connection is.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Where time comes from."""

    def wall(self) -> float:
        """Returns Unix time in seconds; it may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since some fixed moment; it never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns when so many seconds have passed; at once for zero or less."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall(self) -> float:
        """Returns Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds since boot, time asleep included where the system counts it."""
        return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)

    async def sleep(self, seconds: float) -> None:
        """Waits on the event loop."""
        await asyncio.sleep(max(0.0, seconds))

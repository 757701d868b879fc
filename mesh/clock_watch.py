"""Notices that the machine's clock was set while the process runs, or that a peer contradicts it.

Told to health, metrics and the log. Must not judge which of two times is right: an operator puts the clock right, or
starts the process again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from mesh.clock import SteadyClock
from mesh.telemetry import Telemetry

INTERVAL_S: Final = 0.25
_ADVICE: Final = "put the clock right, and it goes on; if it is right now, start this process again"


class ClockWatch:
    """Looks at a process's clock. One per app.

    Args:
        clock: the process's.
        telemetry: has the gauges.
        log: the process's logger.
        interval: seconds between two looks.
    """

    def __init__(
        self, *, clock: SteadyClock, telemetry: Telemetry, log: FilteringBoundLogger, interval: float = INTERVAL_S
    ) -> None:
        self._clock = clock
        self._gauge = telemetry.clock_apart
        self._peer_gauge = telemetry.clock_peer_apart
        self._log = log
        self._interval = interval
        self._told: list[Callable[[bool], None]] = []
        self._since = 0.0
        self.agrees = True

    def on_change(self, told: Callable[[bool], None]) -> None:
        """Registers what learns of each change: whether the process's clock may be gone by."""
        self._told.append(told)

    async def run(self) -> None:
        """Looks until cancelled; the app's own loop."""
        while True:
            self.look()
            await asyncio.sleep(self._interval)

    def look(self) -> None:
        """Looks once."""
        apart, peer_apart = self._clock.apart(), self._clock.peer_apart()
        self._gauge.set(apart)
        self._peer_gauge.set(peer_apart)
        agrees = self._clock.agrees()
        if agrees is self.agrees:
            return
        self.agrees = agrees
        now = self._clock.monotonic()
        if agrees:
            gone_s = round(now - self._since, 3)
            self._log.warning("clock_agrees", apart_s=round(apart, 3), peer_apart_s=round(peer_apart, 3), gone_s=gone_s)
        else:
            self._since = now
            self._log.error("clock_set", apart_s=round(apart, 3), peer_apart_s=round(peer_apart, 3), advice=_ADVICE)
        for told in self._told:
            told(agrees)

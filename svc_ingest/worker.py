"""Housekeeping: forgets old requests and trims the event lanes, within a budget.

Must not touch what a repeat or a reader may still need: the ages are in `limits`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mesh.clock import Clock
from mesh.errors import Unavailable
from mesh.lanes import LaneWriter
from mesh.telemetry import logger
from svc_ingest import limits
from svc_ingest.metrics import Metrics
from svc_ingest.ports import RequestLog

_ROUND_S = 10.0
_PAUSE_S = 0.1
_SLICE = 1_000
_SLICES = 50


class Sweep:
    """One round every ten seconds, at most 50,000 requests each in slices with pauses, so that publishing goes on.

    Args:
        log: the request log, open.
        lanes: the writing ends by name, open.
        clock: ages are counted from its time.
        metrics: where removals are counted.
        pause_s: seconds between two slices.
    """

    def __init__(
        self,
        *,
        log: RequestLog,
        lanes: Mapping[str, LaneWriter],
        clock: Clock,
        metrics: Metrics,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._log = log
        self._lanes = lanes
        self._clock = clock
        self._metrics = metrics
        self._pause_s = pause_s

    async def run(self) -> None:
        """Goes on until cancelled; a store that fails is asked again in the next round."""
        while True:
            await asyncio.sleep(_ROUND_S)
            try:
                await self.sweep()
            except Unavailable as error:
                logger().warning("sweep_failed", error=str(error))

    async def sweep(self) -> None:
        """Does one round; none while nobody knows what time it is."""
        if not self._clock.agrees():
            return
        now = self._clock.wall()
        for _ in range(_SLICES):
            count = await self._log.sweep(now - limits.REQUEST_LOG_S, _SLICE)
            self._metrics.sweep("requests", count)
            if count < _SLICE:
                break
            await asyncio.sleep(self._pause_s)
        for name, lane in self._lanes.items():
            self._metrics.sweep(f"lane_{name}", await lane.trim(now - limits.LANE_S))

"""Takes the readings that say whether this process, or those behind it, have too much to do. Must not decide anything.

Five times a second: what waits in the lanes, how late the event loop is, and how many calls are open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from mesh.clock import Clock
from mesh.errors import Unavailable
from mesh.lanes import LaneWriter
from mesh.server import CallCount
from mesh.telemetry import logger
from svc_ingest.gate import Gate
from svc_ingest.metrics import Metrics
from svc_ingest.overload import CallTime, Signals, Wait

_ROUND_S: Final = 0.2
# The least of so many: one late round is a hiccup, all of them are load.
_LAGS: Final = 3
_LOOK_LIMIT_S: Final = 1.0


class Watch:
    """Reads, and tells the gate.

    Args:
        gate: what is told.
        lanes: the writing ends by name, open.
        count_calls: of the server.
        clock: its monotonic time.
        metrics: where readings are shown.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        lanes: Mapping[str, LaneWriter],
        count_calls: Callable[[], CallCount],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._gate = gate
        self._lanes = lanes
        self._count_calls = count_calls
        self._call_time = CallTime()
        self._clock = clock
        self._metrics = metrics
        self._waits = {name: Wait() for name in lanes}
        self._lags: deque[float] = deque([0.0] * _LAGS, maxlen=_LAGS)
        self._blind: set[str] = set()

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            due = self._clock.monotonic() + _ROUND_S
            await asyncio.sleep(_ROUND_S)
            await self.look(max(0.0, self._clock.monotonic() - due))

    async def look(self, lag: float) -> None:
        """Takes all readings once.

        Args:
            lag: seconds that the event loop was late this time.
        """
        self._lags.append(lag)
        backlogs: dict[str, int] = {}
        waits: dict[str, float] = {}
        for name, lane in self._lanes.items():
            try:
                async with asyncio.timeout(_LOOK_LIMIT_S):
                    backlog = await lane.backlog()
            except (TimeoutError, Unavailable) as error:
                self._report_blind(name, error)
                continue
            self._blind.discard(name)
            wait = self._waits[name]
            wait.take(
                record_count=backlog.record_count,
                oldest_age=backlog.oldest_age,
                finished=backlog.finished,
                now=self._clock.monotonic(),
            )
            backlogs[name], waits[name] = backlog.record_count, wait.seconds
            self._metrics.show_lane(name, backlog.record_count, wait.seconds)
        calls = self._count_calls()
        self._call_time.take(arrived=calls.arrived, ended=calls.ended, now=self._clock.monotonic())
        before = self._gate.level
        signals = Signals(waits=waits, backlogs=backlogs, loop_lag=min(self._lags), call=self._call_time.seconds)
        self._gate.take(signals)
        self._metrics.show_load(self._gate.level, self._gate.in_flight, calls.arrived - calls.ended)
        if self._gate.level != before:
            logger().warning("overload_level", level=self._gate.level.name.lower(), cause=self._gate.cause, waits=waits)

    def _report_blind(self, lane: str, error: Exception) -> None:
        # Once: it would be said five times a second.
        if lane not in self._blind:
            self._blind.add(lane)
            logger().warning("backlog_not_seen", lane=lane, error=repr(error))

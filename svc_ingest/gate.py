"""Stands before the work: lets events in or sheds them by priority, and refuses calls whose time cannot suffice.

Path step 1. What it needs of an event is its priority; content is not looked at, no store is asked. Must not decide how
much is too much: `overload` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from heliograph.ingest.v1 import ingest_service_pb2
from heliograph.type.v1 import notification_pb2
from mesh.backoff import dither
from mesh.clock import Clock
from mesh.errors import DeadlineExceeded, ResourceExhausted
from mesh.lanes import LaneUnavailable
from svc_ingest.metrics import Metrics
from svc_ingest.overload import AppendTimes, Controller, Level, Limits, Signals

_LEVELS: Final = {
    notification_pb2.PRIORITY_BULK: Level.BULK,
    notification_pb2.PRIORITY_NORMAL: Level.NORMAL,
    notification_pb2.PRIORITY_HIGH: Level.HIGH,
}
# Who matters less comes back later. Half of it up and down, or all would come back at once.
_RETRY_DELAYS_S: Final = {Level.BULK: 5.0, Level.NORMAL: 2.0, Level.HIGH: 1.0}
_SPREAD: Final = 0.5


def overloaded(level: Level, cause: str, delay: float) -> ResourceExhausted:
    """Events of this priority are not taken now."""
    priority = level.name.lower()
    message = f"overloaded ({cause}): events of priority {priority} are not taken now; repeat after the delay"
    names = {"priority": priority, "cause": cause}
    return ResourceExhausted(message, reason="OVERLOADED", metadata=names, retry_delay=delay)


def deadline_expired(left: float, expected: float) -> DeadlineExceeded:
    """The call's time is over, or too short for what appends take at present."""
    message = "the call's deadline has passed"
    if left > 0:
        message = f"{left * 1_000:.0f} ms are left, and an append takes {expected * 1_000:.0f} ms at present"
    return DeadlineExceeded(message, reason="DEADLINE_EXPIRED")


class Gate:
    """One for a process.

    Args:
        limits: what counts as too much.
        default_priorities: of every category.
        clock: its monotonic time.
        metrics: where refusals are counted.
        random: numbers in [0, 1).
    """

    def __init__(
        self,
        *,
        limits: Limits,
        default_priorities: Mapping[str, notification_pb2.Priority.ValueType],
        clock: Clock,
        metrics: Metrics,
        random: Callable[[], float],
    ) -> None:
        self._controller = Controller(limits)
        self._default_priorities = default_priorities
        self._clock = clock
        self._metrics = metrics
        self._random = random
        self._appends = AppendTimes()
        self._append_s = 0.0
        self.in_flight = 0

    @property
    def append_s(self) -> float:
        """What an append takes at present, as of the last readings; 0 when it is not known."""
        return self._append_s

    @property
    def level(self) -> Level:
        """Who is refused at present."""
        return self._controller.level

    @property
    def cause(self) -> str:
        """Why; the last reason when nobody is refused."""
        return self._controller.cause

    def take(self, signals: Signals) -> None:
        """Takes new readings; how long appends take, the gate knows itself."""
        now = self._clock.monotonic()
        self._append_s = self._appends.median(now)
        self._controller.take(msgspec.structs.replace(signals, append=self._append_s), now)

    def check_time(self, left: float | None) -> None:
        """Refuses a call whose deadline has passed, or will before an append can be done.

        Args:
            left: seconds; None: the call has no deadline.

        Raises:
            DeadlineExceeded: it is not worth beginning.
        """
        if left is not None and (left <= 0 or left < self._append_s):
            raise deadline_expired(left, self._append_s)

    def shed(self, requests: Sequence[ingest_service_pb2.PublishRequest]) -> Mapping[int, ResourceExhausted]:
        """Returns which requests of a call are not worked on now, by their place in it."""
        if self._controller.refuses_nobody(self.in_flight + len(requests)):
            return {}
        refusals: dict[int, ResourceExhausted] = {}
        said: dict[Level, ResourceExhausted] = {}
        count = self.in_flight
        for index, request in enumerate(requests):
            level = self._level_of(request)
            cause = self._controller.refuses(level, count)
            if not cause:
                count += 1
                continue
            if level not in said:
                delay = dither(_RETRY_DELAYS_S[level], spread=_SPREAD, random=self._random())
                said[level] = overloaded(level, cause, delay)
            refusals[index] = said[level]
            self._metrics.shed(level.name.lower())
        return refusals

    @contextmanager
    def working(self, count: int) -> Iterator[None]:
        """Counts so many events as being worked on."""
        self.in_flight += count
        try:
            yield
        finally:
            self.in_flight -= count

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Measures an append; one to a lane that is gone says nothing: its callers are told so, not to slow down."""
        began = self._clock.monotonic()
        counts = True
        try:
            yield
        except LaneUnavailable:
            counts = False
            raise
        finally:
            now = self._clock.monotonic()
            if counts:
                self._appends.add(now - began, now)

    def _level_of(self, request: ingest_service_pb2.PublishRequest) -> Level:
        event = request.event
        priority = event.priority or self._default_priorities.get(event.category, notification_pb2.PRIORITY_NORMAL)
        return _LEVELS.get(priority, Level.NORMAL)

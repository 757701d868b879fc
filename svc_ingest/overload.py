"""When to refuse whom: bulk first, then normal, high last, and back again by itself.

Path step 1, before any work is done for an event. Pure: readings and times are arguments. What is measured stands
against a limit and the share of it at which each priority is refused; a level rises when that lasts, and falls one step
at a time once everything is well below. Must not look at events.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

import msgspec

_NEVER: Final = math.inf
# How long something must be too much, and how long well below, before the level changes.
_RISE_S: Final = 0.5
_FALL_S: Final = 1.0
_WELL_BELOW: Final = 0.5

# A reader whose oldest record is younger keeps up, whatever the rates say.
_KEEPS_UP_S: Final = 1.0
# A reader that has not moved for so long stands still: then the lane holds what comes, and no wait can be told.
_STILL_S: Final = 5.0
# Rates are those of the last few seconds.
_RATE_S: Final = 2.0
_CALL_RATE_S: Final = 1.0
# Fewer open calls are no queue, however long they take.
_QUEUE: Final = 20

_APPEND_MEMORY_S: Final = 5.0
_APPEND_SAMPLES: Final = 256


class Level(IntEnum):
    """Who is refused: this priority, and those before it in this list."""

    NOBODY = 0
    BULK = 1
    NORMAL = 2
    HIGH = 3


class Limits(msgspec.Struct, frozen=True):
    """What counts as too much; each priority is refused at a share of it.

    Attributes:
        wait: seconds that an event waits in its lane.
        backlog: records that a lane holds unfinished.
        append: seconds that an append takes, in the median of the last ones.
        loop_lag: seconds that the event loop wakes up late, at its best in half a second.
        call: seconds from the arrival of a call to its answer.
        in_flight: events being worked on in this process.
    """

    wait: float = 5.0
    backlog: int = 1_000_000
    append: float = 0.2
    loop_lag: float = 0.1
    call: float = 0.5
    in_flight: int = 4_000


class Signals(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        waits: by lane, seconds that a record appended now will wait.
        backlogs: by lane, records unfinished.
        append: seconds, the median of the last appends.
        loop_lag: seconds.
        call: seconds that a call which arrives now will take.
    """

    waits: Mapping[str, float] = {}
    backlogs: Mapping[str, int] = {}
    append: float = 0.0
    loop_lag: float = 0.0
    call: float = 0.0


class Demand(msgspec.Struct, frozen=True):
    """The level that readings ask for, and what asks for it."""

    level: Level
    cause: str


class _Shares(msgspec.Struct, frozen=True):
    """Of a limit: where bulk, normal and high are refused. Never falling, so that high is the last."""

    bulk: float
    normal: float = _NEVER
    high: float = _NEVER


# A lane that is behind says how far the processes behind it are: first those are refused that are worth less than what
# waits there. That bulk waits long is what it is for.
_WAITS: Final = {"high": _Shares(0.2, 0.4, 2.0), "normal": _Shares(0.4, 1.0), "bulk": _Shares(12.0)}
_BACKLOGS: Final = {"high": _Shares(0.5, 0.8, 1.0), "normal": _Shares(0.5, 1.0), "bulk": _Shares(1.0)}
_APPEND: Final = _Shares(0.5, 1.0, 4.0)
_LOOP_LAG: Final = _Shares(0.5, 1.0, 5.0)
_CALL: Final = _Shares(0.5, 1.0, 4.0)
_IN_FLIGHT: Final = {Level.BULK: 0.5, Level.NORMAL: 0.8, Level.HIGH: 1.0}


def demand(signals: Signals, limits: Limits, scale: float = 1.0) -> Demand:
    """Returns the highest level that any reading asks for.

    Args:
        signals: what was measured.
        limits: what counts as too much.
        scale: of all limits.
    """
    highest = Demand(Level.NOBODY, "")
    for cause, value, limit, shares in _readings(signals, limits):
        for level, share in ((Level.HIGH, shares.high), (Level.NORMAL, shares.normal), (Level.BULK, shares.bulk)):
            if level > highest.level and value >= share * limit * scale:
                highest = Demand(level, cause)
    return highest


def _readings(signals: Signals, limits: Limits) -> Iterator[tuple[str, float, float, _Shares]]:
    for lane, wait in signals.waits.items():
        yield f"wait in lane {lane}", wait, limits.wait, _WAITS[lane]
    for lane, count in signals.backlogs.items():
        yield f"backlog of lane {lane}", count, limits.backlog, _BACKLOGS[lane]
    yield "appends take long", signals.append, limits.append, _APPEND
    yield "event loop is late", signals.loop_lag, limits.loop_lag, _LOOP_LAG
    yield "calls queue up", signals.call, limits.call, _CALL


class Controller:
    """Follows the readings without trembling."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.level = Level.NOBODY
        self.cause = ""
        # The least that was asked for since more than the level was asked for.
        self._rising: Demand | None = None
        self._rising_since = 0.0
        self._falling_since: float | None = None

    def take(self, signals: Signals, now: float) -> None:
        """Takes new readings; may change the level."""
        asked = demand(signals, self._limits)
        if asked.level > self.level:
            self._falling_since = None
            self._rise(asked, now)
            return
        self._rising = None
        if self.level and demand(signals, self._limits, _WELL_BELOW).level < self.level:
            self._fall(now)
        else:
            self._falling_since = None

    def refuses_nobody(self, in_flight: int) -> bool:
        """Says that whoever comes is let in, until so many events are being worked on."""
        return not self.level and in_flight <= _IN_FLIGHT[Level.BULK] * self._limits.in_flight

    def refuses(self, level: Level, in_flight: int) -> str:
        """Says why an event of a priority is refused; "" when it is let in.

        Args:
            level: that names the event's priority.
            in_flight: events being worked on, without this one.
        """
        if level <= self.level:
            return self.cause
        return "too many at once" if in_flight >= _IN_FLIGHT[level] * self._limits.in_flight else ""

    def _rise(self, asked: Demand, now: float) -> None:
        if self._rising is None:
            self._rising, self._rising_since = asked, now
        elif asked.level < self._rising.level:
            self._rising = asked
        if now - self._rising_since >= _RISE_S:
            self.level, self.cause = self._rising.level, self._rising.cause
            self._rising = None

    def _fall(self, now: float) -> None:
        if self._falling_since is None:
            self._falling_since = now
        elif now - self._falling_since >= _FALL_S:
            self.level = Level(self.level - 1)
            self._falling_since = now


class Wait:
    """Tells how long a record that is appended to a lane now will wait, from one look at its backlog after another.

    The records before it, divided by the rate at which the reader finishes them while there are any. A reader that
    keeps up is believed to keep up, and one that stands still says nothing: it is gone, not slow, and what it left will
    not take long.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked = False
        self._time = 0.0
        self._record_count = 0
        self._finished = 0
        self._moved_time = 0.0
        # Age of the oldest record when the reader last moved.
        self._age = 0.0
        # Finished records and the seconds they took, both fading.
        self._moved = 0.0
        self._busy = 0.0

    def take(self, *, record_count: int, oldest_age: float, finished: int, now: float) -> None:
        """Takes a look at the backlog.

        Args:
            record_count: records that are not finished.
            oldest_age: seconds since the oldest of them was appended.
            finished: grows with each record that the reader has finished.
            now: monotonic seconds.
        """
        moved, elapsed = finished - self._finished, now - self._time
        if not self._looked or moved < 0:
            # The first look, or a lane that was made anew.
            self._looked, self._moved_time, self._age, self._moved, self._busy = True, now, 0.0, 0.0, 0.0
        else:
            if moved:
                if now - self._moved_time > _STILL_S:
                    # It has just come back: what it did before says nothing about what it does now.
                    self._moved = self._busy = 0.0
                self._age = oldest_age
            if moved or self._record_count:
                fading = math.exp(-elapsed / _RATE_S)
                self._moved = self._moved * fading + moved
                self._busy = self._busy * fading + elapsed
            if moved or not record_count:
                self._moved_time = now
        self._time, self._record_count, self._finished = now, record_count, finished
        self.seconds = self._estimate(now)

    def _estimate(self, now: float) -> float:
        if not self._record_count or self._age < _KEEPS_UP_S or now - self._moved_time > _STILL_S or not self._moved:
            return 0.0
        return self._record_count * self._busy / self._moved


class CallTime:
    """Tells how long a call that arrives now will take: the open ones, divided by the rate at which calls end."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._time = 0.0
        self._open = 0
        self._ended = 0
        # Ended calls and the seconds they took, both fading.
        self._done = 0.0
        self._busy = 0.0

    def take(self, *, arrived: int, ended: int, now: float) -> None:
        """Takes a look at the server's counts.

        Args:
            arrived: calls since the start.
            ended: those of them that are over.
            now: monotonic seconds.
        """
        elapsed, done = now - self._time, ended - self._ended
        if done or self._open:
            fading = math.exp(-elapsed / _CALL_RATE_S)
            self._done = self._done * fading + done
            self._busy = self._busy * fading + elapsed
        self._time, self._open, self._ended = now, arrived - ended, ended
        queued = self._open >= _QUEUE and self._done
        self.seconds = self._open * self._busy / self._done if queued else 0.0


class AppendTimes:
    """How long appends take: the median of the last ones; forgets what is older than a few seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_APPEND_SAMPLES)

    def add(self, seconds: float, now: float) -> None:
        """Notes an append that has ended."""
        self._samples.append((now, seconds))

    def median(self, now: float) -> float:
        """Returns the median; 0 when there was none lately."""
        while self._samples and now - self._samples[0][0] > _APPEND_MEMORY_S:
            self._samples.popleft()
        ordered = sorted(seconds for _, seconds in self._samples)
        return ordered[len(ordered) // 2] if ordered else 0.0

"""How much of the time bulk works while high comes through: as much as leaves high's latency where it is.

Pure: time is an argument. Path step 5. All priorities share processes and cores, so bulk that works without a break
makes high wait everywhere, whatever each queue does. After each piece of work bulk therefore rests in proportion to the
time that the piece took; its share grows slowly while high is on time and is cut at once when high is late. Must not
stop bulk for good: its share has a floor, and without high it is everything.
"""

from __future__ import annotations

import math
from typing import Final

# Bulk counts as alone after so many seconds without high.
ALONE_AFTER_S: Final = 1.0
# High is late when it takes so much longer than at its best.
TOLERATED_S: Final = 0.010
# Bulk's share of the time: where it begins beside high, its bounds, and how it moves with each judgement.
FIRST_SHARE: Final = 0.25
LEAST_SHARE: Final = 0.05
_GROWTH: Final = 0.02
_CUT: Final = 0.7
# From one judgement to the next.
_JUDGE_S: Final = 0.1
# The best of high is that of one to two such spans: what is longer ago says nothing about today's load.
_SPAN_S: Final = 15.0
# However long a piece took: what took so long was not work, and bulk does not stand still for it.
LONGEST_REST_S: Final = 2.0
# Recipients of one piece beside high: what is urgent waits for one of them at most, at every step.
PIECE_RECIPIENTS: Final = 250


class Pacing:
    """Bulk's pace in one process. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._share = FIRST_SHARE
        self._heard = -math.inf
        self._rests_until = -math.inf
        self._judged = -math.inf
        self._sum = 0.0
        self._count = 0
        self._span_began = -math.inf
        self._best = self._best_before = math.inf

    @property
    def share(self) -> float:
        """The part of the time in which bulk works beside high."""
        return self._share

    def is_beside(self, now: float) -> bool:
        """Says whether high came through a moment ago."""
        return now - self._heard <= ALONE_AFTER_S

    def heard(self, now: float, latency: float) -> None:
        """Notes that something of high was finished.

        Args:
            now: when that was.
            latency: seconds since it was accepted; may be off by what two clocks differ.
        """
        if not self.is_beside(now):
            self._share = FIRST_SHARE
            self._judged, self._sum, self._count = now, 0.0, 0
        self._heard = now
        self._note_best(now, latency)
        self._sum += latency
        self._count += 1
        if now - self._judged < _JUDGE_S:
            return
        late = self._sum / self._count > min(self._best, self._best_before) + TOLERATED_S
        self._share = max(LEAST_SHARE, self._share * _CUT) if late else min(1.0, self._share + _GROWTH)
        self._judged, self._sum, self._count = now, 0.0, 0

    def worked(self, now: float, seconds: float) -> None:
        """Notes that a piece of bulk is finished and took so long."""
        if self.is_beside(now):
            self._rests_until = now + min(seconds * (1.0 / self._share - 1.0), LONGEST_REST_S)

    def rest(self, now: float) -> float:
        """Returns how many seconds are left before bulk may go on."""
        return max(0.0, self._rests_until - now) if self.is_beside(now) else 0.0

    def _note_best(self, now: float, latency: float) -> None:
        if now - self._span_began > _SPAN_S:
            # After a long silence neither of them is of today.
            self._best_before = self._best if now - self._span_began <= 2 * _SPAN_S else math.inf
            self._best, self._span_began = math.inf, now
        self._best = min(self._best, latency)

"""How fast a node takes new sessions: a token bucket, and for everybody else a turn to come back at. Pure.

When a node dies its sessions come to the others within a second. Opening one costs as much as a hundred pushes, so the
node takes them at a pace that leaves room for those it has, and spreads the rest over the time it will need for them.
Must not know requests. Step 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from mesh.backoff import dither

_SPREAD = 0.2


class Gate:
    """Lets in so many a second.

    Attributes:
        deferred: how many were told to come later.
    """

    def __init__(self, *, rate: float, burst: int, longest: float, now: float) -> None:
        """Opens the gate.

        Args:
            rate: sessions a second.
            burst: so many at once after a calm time.
            longest: no turn is further away, in seconds.
            now: monotonic seconds.
        """
        self.deferred = 0
        self._rate = rate
        self._burst = float(burst)
        self._longest = longest
        self._tokens = self._burst
        self._filled = now
        # When the last one of those who were told to come later would have its turn.
        self._turn = now

    def ask(self, now: float, random: float) -> float:
        """Returns 0 for one that may come in, else in how many seconds it may try again.

        Clients come anywhere between now and then: turn after turn is named, and their sum arrives at about the rate.

        Args:
            now: monotonic seconds.
            random: in [0, 1), dithers the turn.
        """
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        self.deferred += 1
        self._turn = min(max(self._turn, now) + 1.0 / self._rate, now + self._longest)
        return dither(self._turn - now, spread=_SPREAD, random=random)

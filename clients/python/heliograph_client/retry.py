"""When a publish is tried again, and how long before: rules of the publisher.

Pure: time and randomness are arguments. Must not call anything or sleep.
"""

from __future__ import annotations

import msgspec

from mesh.backoff import full_jitter
from mesh.errors import Cancelled, DeadlineExceeded, Failure, Internal, ResourceExhausted, Unavailable, Unknown

_PENDING = "REQUEST_PENDING"
_LANE = "LANE_UNAVAILABLE"
_OPEN = frozenset({_PENDING, "DEADLINE_EXPIRED", "INTERNAL"})


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How hard a publish tries.

    Attributes:
        tries: calls at most, the first one included.
        time_limit: seconds for all tries and the waits between them.
        attempt_timeout: seconds for one call.
        base: bound of the first wait, seconds; it doubles with each try.
        cap: largest bound, seconds.
    """

    tries: int = 8
    time_limit: float = 30.0
    attempt_timeout: float = 5.0
    base: float = 0.1
    cap: float = 5.0

    def wait(self, failure: Failure, tries: int, left: float, random: float) -> float | None:
        """Returns the seconds to wait before the next try, or None when there is none.

        Args:
            failure: what the last try ended with.
            tries: how many were made.
            left: seconds that are left of `time_limit`.
            random: in [0, 1).
        """
        if tries >= self.tries or not worth_repeating(failure):
            return None
        # What the server names is waited for; the jitter comes on top, or all who were told so would come at once.
        wait = (failure.retry_delay or 0.0) + full_jitter(tries - 1, base=self.base, cap=self.cap, random=random)
        return wait if wait < left else None


def worth_repeating(failure: Failure) -> bool:
    """Tells whether the same request may be accepted later; repeating is safe: its id and its bytes stay the same.

    A call that was cancelled was not cancelled by its caller, who would not be here: a server on its way out did it.
    """
    if isinstance(failure, ResourceExhausted):
        return failure.retry_delay is not None
    return isinstance(failure, Unavailable | DeadlineExceeded | Cancelled) or failure.reason == _PENDING


def leaves_open(failure: Failure) -> bool:
    """Tells whether a try that ended so may have been accepted all the same.

    What a service refused with a reason it did not accept, with the exceptions named here. What came without one was
    made by the way: the request may have arrived before the answer was lost.
    """
    if failure.reason == _LANE:
        return failure.metadata.get("appended") != "no"
    if failure.reason:
        return failure.reason in _OPEN
    return isinstance(failure, Unavailable | DeadlineExceeded | Cancelled | Internal | Unknown)


class RetryBudget:
    """Keeps retries a small part of all calls, so that a struggling server is not hit harder for struggling.

    Each first try earns a part of a retry, and so does time, up to a bound; each retry costs one.
    """

    def __init__(self, *, ratio: float = 0.1, per_second: float = 10.0, limit: float = 100.0) -> None:
        """Makes a full budget.

        Args:
            ratio: retries that one first try earns.
            per_second: retries that each second earns: the floor for those who call rarely.
            limit: retries at most at once.
        """
        self._ratio = ratio
        self._per_second = per_second
        self._limit = limit
        self._tokens = limit
        self._time: float | None = None

    def earn(self, now: float) -> None:
        """Notes a first try."""
        self._refill(now)
        self._tokens = min(self._limit, self._tokens + self._ratio)

    def spend(self, now: float) -> bool:
        """Takes a retry from the budget; False when there is none left."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _refill(self, now: float) -> None:
        passed = 0.0 if self._time is None else max(0.0, now - self._time)
        self._time = now
        self._tokens = min(self._limit, self._tokens + passed * self._per_second)

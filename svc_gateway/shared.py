"""Values that thousands of sessions keep alike: each is one object for all of them. Pure.

Must not be used for what differs from session to session: the memory of it all is bounded, but not small.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache


def second(time: float) -> float:
    """Returns the first whole second from a time on."""
    return _second(math.ceil(time))


def text(value: str) -> str:
    """Returns a text that is one of a few."""
    return sys.intern(value)


@lru_cache(maxsize=4_096)
def _second(number: int) -> float:
    return float(number)

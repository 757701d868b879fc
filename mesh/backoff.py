"""How long to wait: full jitter for retries, dither for periodic work.

Pure: the random number is an argument, so tests and simulations decide it. Must not sleep.
"""

from __future__ import annotations

# 2 ** 63 times any sensible base is above any sensible cap; larger exponents overflow a float.
_LARGEST_EXPONENT = 63


def full_jitter(attempt: int, *, base: float, cap: float, random: float) -> float:
    """Returns the seconds to wait before the next try: anywhere between zero and an exponentially growing bound.

    Args:
        attempt: tries that have failed before this one, from 0.
        base: bound for the first wait, seconds.
        cap: largest bound, seconds.
        random: a number in [0, 1).
    """
    return min(cap, base * 2.0 ** min(max(attempt, 0), _LARGEST_EXPONENT)) * random


def dither(value: float, *, spread: float, random: float) -> float:
    """Returns a value within ± spread of `value`, so that what started together does not stay together.

    Args:
        value: the nominal value, in any unit.
        spread: largest deviation as a fraction, 0.2 for ± 20 %.
        random: a number in [0, 1).
    """
    return value * (1.0 + spread * (2.0 * random - 1.0))

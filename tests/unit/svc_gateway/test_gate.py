"""The gate: a pace, turns for those who have to come later, and a storm that passes."""

from __future__ import annotations

import heapq
import random

import pytest

from mesh.backoff import full_jitter
from svc_gateway.gate import Gate

_LATER = 60.0


def _gate(rate: float = 10.0, burst: int = 5) -> Gate:
    return Gate(rate=rate, burst=burst, longest=_LATER, now=100.0)


def test_a_burst_comes_in_and_then_so_many_a_second() -> None:
    """What is let in never exceeds burst + rate x time; a calm time fills the bucket again, not more."""
    gate = _gate()
    assert [gate.ask(100.0, 0.5) for _ in range(5)] == [0.0] * 5
    assert gate.ask(100.0, 0.5) > 0.0
    assert gate.ask(100.125, 0.5) == 0.0
    assert gate.ask(100.125, 0.5) > 0.0
    assert [gate.ask(200.0, 0.5) == 0.0 for _ in range(6)] == [True] * 5 + [False]
    assert gate.deferred == 3


def test_each_that_is_deferred_gets_a_later_turn() -> None:
    """Turns follow each other at the rate, and one that is over is not counted on."""
    gate = _gate(burst=1)
    gate.ask(100.0, 0.5)
    assert [round(gate.ask(100.0, 0.5), 3) for _ in range(3)] == [0.1, 0.2, 0.3]
    gate.ask(200.0, 0.5)
    assert round(gate.ask(200.0, 0.5), 3) == 0.1


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 48.0), (0.5, 60.0), (0.999, 72.0)])
def test_turns_are_bounded_and_dithered(chance: float, expected: float) -> None:
    """However many come, nobody is sent away for longer than the limit with its dither."""
    gate = _gate(burst=1)
    for _ in range(5_000):
        gate.ask(100.0, 0.5)
    assert gate.ask(100.0, chance) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_storm_is_over_in_little_more_than_the_time_it_needs(seed: int) -> None:
    """99 % of 5,000 clients that behave as the library does are in within 1.5 times count / rate."""
    count, rate, chance = 5_000, 500.0, random.Random(seed)
    gate = Gate(rate=rate, burst=500, longest=_LATER, now=0.0)
    coming = [(chance.random() * 0.5, number, 1) for number in range(count)]
    heapq.heapify(coming)
    inside: list[float] = []
    tries = 0
    while coming:
        now, number, attempt = heapq.heappop(coming)
        tries += 1
        delay = gate.ask(now, chance.random())
        if not delay:
            inside.append(now)
            continue
        wait = delay * chance.random() + full_jitter(attempt, base=0.5, cap=15.0, random=chance.random())
        heapq.heappush(coming, (now + wait, number, attempt + 1))
    needed = count / rate
    assert inside[round(count * 0.99)] < 1.5 * needed
    assert tries < 2.6 * count
    # No second wave: in no second more than the pace and what was left in the bucket.
    seconds = [int(at) for at in inside]
    assert max(seconds.count(second) for second in range(1, int(needed))) <= rate * 1.01

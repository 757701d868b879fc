"""When a publish is repeated, and how the budget limits it."""

from __future__ import annotations

import pytest

from heliograph_client.retry import RetryBudget, RetryPolicy, worth_repeating
from mesh.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Failure,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Unavailable("x", reason="LANE_UNAVAILABLE"), True),
        (DeadlineExceeded("x", reason=""), True),
        (Cancelled("x", reason=""), True),
        (Aborted("x", reason="REQUEST_PENDING"), True),
        (ResourceExhausted("x", reason="OVERLOADED", retry_delay=0.0), True),
        (ResourceExhausted("x", reason="OVERLOADED"), False),
        (InvalidArgument("x", reason="FIELD_INVALID"), False),
        (AlreadyExists("x", reason="REQUEST_ID_REUSED"), False),
        (PermissionDenied("x", reason="NOT_GRANTED"), False),
        (Unauthenticated("x", reason="TOKEN_INVALID"), False),
        (Internal("x", reason="INTERNAL"), False),
    ],
)
def test_only_what_repeating_may_cure_is_repeated(failure: Failure, expected: bool) -> None:
    """A refusal stays one however often it is asked for."""
    assert worth_repeating(failure) is expected


def test_waits_double_up_to_a_bound_and_end_with_the_tries() -> None:
    """Full jitter: any number below the bound, here three quarters of it."""
    policy = RetryPolicy(tries=5, base=1.0, cap=3.0)
    failure = Unavailable("x", reason="")
    waits = [policy.wait(failure, tries, 100.0, 0.75) for tries in range(1, 6)]
    assert waits == [0.75, 1.5, 2.25, 2.25, None]


def test_a_named_delay_comes_before_the_jitter() -> None:
    """Nobody comes earlier than the server asked, and not all at the same moment."""
    failure = Unavailable("x", reason="", retry_delay=2.0)
    assert RetryPolicy(base=1.0).wait(failure, 1, 100.0, 0.5) == 2.5
    assert RetryPolicy(base=1.0).wait(failure, 1, 2.5, 0.5) is None


def test_the_budget_lets_a_tenth_through_above_a_floor() -> None:
    """A thousand calls that all fail make a hundred repetitions, not a thousand."""
    budget = RetryBudget(ratio=0.1, per_second=1.0, limit=10.0)
    allowed = 0
    for _ in range(1_000):
        budget.earn(0.0)
        allowed += budget.spend(0.0)
    assert 100 <= allowed <= 110
    assert [budget.spend(2.0) for _ in range(3)] == [True, True, False]


def test_the_budget_does_not_grow_without_end() -> None:
    """A quiet night does not allow a storm in the morning."""
    budget = RetryBudget(ratio=0.1, per_second=10.0, limit=5.0)
    budget.earn(0.0)
    budget.earn(10_000.0)
    assert [budget.spend(10_000.0) for _ in range(6)] == [True] * 5 + [False]

"""The current call: who asks, and how much time is left."""

from __future__ import annotations

import contextvars

import pytest

from mesh import context
from mesh.clock import ManualClock


def _call(clock: ManualClock, deadline: float | None) -> context.CallContext:
    caller = context.Caller(role="fanout", name="fanout")
    return context.CallContext(caller, deadline, "00-trace", "/a.B/C", clock.monotonic)


def test_outside_of_a_call_there_is_none() -> None:
    """Nothing is current, nothing limits the time, and there is no trace."""

    def look() -> None:
        with pytest.raises(LookupError):
            context.current()
        assert context.remaining() is None
        assert context.traceparent() == ""

    contextvars.Context().run(look)


def test_remaining_counts_down_on_the_calls_own_clock() -> None:
    """The time left follows the clock that the deadline was measured with, below zero too."""
    clock = ManualClock(monotonic=100.0)
    with context.serving(_call(clock, 103.0)):
        assert context.remaining() == 3.0
        clock.advance(4.0)
        assert context.remaining() == -1.0
        assert context.traceparent() == "00-trace"


def test_a_call_without_deadline_has_no_limit() -> None:
    """A stream's context limits nothing."""
    with context.serving(_call(ManualClock(), None)):
        assert context.remaining() is None
        assert context.current().caller.role == "fanout"


def test_serving_ends_with_its_block() -> None:
    """After the block the former call is current again."""
    clock = ManualClock()
    with context.serving(_call(clock, 1.0)):
        with context.serving(_call(clock, 2.0)):
            assert context.remaining() == 2.0
        assert context.remaining() == 1.0

"""Waiting for a condition with a limit: the only way a test waits. It must not be used to let time pass."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

# Short enough to notice a change within a millisecond or two, long enough to leave the processor to what is awaited.
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


async def until(condition: Callable[[], bool | Awaitable[bool]], limit_s: float = 5.0, what: str = "") -> None:
    """Returns as soon as the condition holds; the event loop runs meanwhile.

    Args:
        condition: asked again and again; may be a plain or an async function.
        limit_s: after so many seconds the wait fails.
        what: what is awaited, for the failure's text.

    Raises:
        AssertionError: the condition did not hold within the limit.
    """
    end = time.monotonic() + limit_s
    pause = _FIRST_PAUSE_S
    while True:
        # Read before the condition is asked: a slow condition always gets its answer counted.
        late = time.monotonic() >= end
        held = condition()
        if inspect.isawaitable(held):
            held = await held
        if held:
            return
        if late:
            subject = what or getattr(condition, "__qualname__", "the condition")
            raise AssertionError(f"not within {limit_s:g} s: {subject}")
        await asyncio.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)

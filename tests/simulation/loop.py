"""An event loop whose time jumps to the next timer as soon as nothing else is left to do.

Nothing waits in it: an hour passes in as long as its timers take. It must not know what runs on it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

_RESOLUTION_S = 1e-6


class Stuck(Exception):
    """Nothing is left that could ever happen, and something still waits."""


class _Jumping(selectors.SelectSelector):
    """Instead of waiting, it moves the clock on. No descriptor is ever ready: a simulation has none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("no timer is left")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is virtual seconds since its start."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self._clock_resolution = _RESOLUTION_S

    def time(self) -> float:
        """Returns virtual seconds."""
        return self._jumping.now

    def run_in_executor(  # type: ignore[override] # a future that is done already
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Runs the function at once: a thread would bring its own time along."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

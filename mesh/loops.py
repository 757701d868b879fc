"""Loops that an app keeps running: critical ones, whose exception ends the process, and restarted ones.

Also `why_ended`, for links that reopen their stream themselves. Must not start anything by itself: `mesh.app` begins
and ends loops inside its task group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from structlog.typing import FilteringBoundLogger

from mesh import backoff
from mesh.errors import Cancelled, Failure, Internal

Body = Callable[[], Awaitable[None]]


class SupervisedLoop:
    """A loop that the app keeps running."""

    def __init__(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self._run = run
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Ends the loop, for good, when what it served is gone."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def begin(self, group: asyncio.TaskGroup) -> asyncio.Task[None] | None:
        """Starts the loop unless it was cancelled before; called by the app."""
        if self._cancelled:
            return None
        self._task = group.create_task(self._run(), name=self.name)
        return self._task


def critical(name: str, body: Body, *, log: FilteringBoundLogger, fail: Callable[[str], None]) -> SupervisedLoop:
    """Returns a loop that runs once; `fail` is told its name when it raises."""

    async def run() -> None:
        try:
            await body()
        except asyncio.CancelledError:
            # A loop that awaits a cancelled call is "cancelled" too, though nobody asked it to end.
            if _is_being_cancelled():
                raise
            log.exception("loop_failed", loop=name)
            fail(name)
        except Exception:
            log.exception("loop_failed", loop=name)
            fail(name)
        else:
            log.info("loop_ended", loop=name)

    return SupervisedLoop(name, run)


def restarting(
    name: str, body: Body, *, log: FilteringBoundLogger, random: Callable[[], float], base: float, cap: float
) -> SupervisedLoop:
    """Returns a loop that runs again, after a full-jitter wait, whenever it raises or returns.

    A failure is logged by its text, any other exception with its traceback.
    """

    async def run() -> None:
        now = asyncio.get_running_loop().time
        attempt = 0
        while True:
            begin = now()
            cause = await _run_once(name, body, log)
            if now() - begin >= cap:
                attempt = 0
            delay = backoff.full_jitter(attempt, base=base, cap=cap, random=random())
            log.warning("loop_restarts", loop=name, cause=cause, attempt=attempt, delay_s=round(delay, 3))
            attempt += 1
            await asyncio.sleep(delay)

    return SupervisedLoop(name, run)


async def _run_once(name: str, body: Body, log: FilteringBoundLogger) -> str:
    """Runs the body to its end and returns why it ended."""
    try:
        await body()
    except asyncio.CancelledError:
        if _is_being_cancelled():
            raise
        return "cancelled"
    except Failure as error:
        return str(error)
    except Exception as error:
        log.exception("loop_broken", loop=name)
        return type(error).__name__
    return "returned"


async def why_ended(body: Body, *, log: FilteringBoundLogger) -> Failure | None:
    """Runs one life of a link and returns the failure that ended it; None when the body returned.

    A cancelled caller always gets its CancelledError, also when something fails in the same moment: a task group then
    tells of the failure only, and a loop that catches failures would live on. What is no failure is a bug: it is
    logged with its traceback and returned as one, so that the link comes back.
    """
    try:
        await body()
    except asyncio.CancelledError:
        if _is_being_cancelled():
            raise
        return Cancelled("the call was cancelled", reason="PEER_UNAVAILABLE")
    except Exception as error:
        if _is_being_cancelled():
            raise asyncio.CancelledError from error
        leaves = _leaves(error)
        for leaf in leaves:
            if not isinstance(leaf, Failure):
                log.error("link_broken", exc_info=leaf)
                return Internal(f"{type(leaf).__name__} in the link", reason="INTERNAL")
        return next((leaf for leaf in leaves if isinstance(leaf, Failure)), None)
    return None


def _leaves(error: Exception) -> list[Exception]:
    """Returns the exceptions in a group, however deep; an exception that is no group is its own leaf."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _is_being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0

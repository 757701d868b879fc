"""Why a link's life ended: failures, bugs, and cancellations that must not get lost."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from mesh.errors import DataLoss, Failure, Unavailable
from mesh.loops import why_ended
from mesh.telemetry import logger


async def _ended(body_failure: BaseException | None) -> Failure | None:
    async def body() -> None:
        if body_failure is not None:
            raise body_failure

    return await why_ended(body, log=logger())


async def test_a_failure_is_returned() -> None:
    """Bare or in groups of groups, the first one is told; a body that returns has none."""
    failure = Unavailable("gone", reason="PEER_UNAVAILABLE")
    assert await _ended(failure) is failure
    second = DataLoss("broken", reason="RECORD_UNDECODABLE")
    assert await _ended(ExceptionGroup("", [ExceptionGroup("", [failure]), second])) is failure
    assert await _ended(None) is None


async def test_a_bug_is_logged_and_the_link_may_come_back() -> None:
    """It is seen with its traceback even when a failure stands beside it."""
    failure = Unavailable("gone", reason="PEER_UNAVAILABLE")
    with capture_logs() as logs:
        ended = await _ended(ExceptionGroup("", [failure, KeyError("x")]))
    assert ended is not None
    assert ended.reason == "INTERNAL"
    assert [(entry["event"], type(entry["exc_info"])) for entry in logs] == [("link_broken", KeyError)]


async def test_a_cancelled_call_does_not_look_like_an_end_of_the_loop() -> None:
    """A call that was cancelled raises CancelledError in whoever awaits it, though nobody asked him to end."""
    ended = await _ended(asyncio.CancelledError())
    assert ended is not None
    assert ended.reason == "PEER_UNAVAILABLE"


async def test_a_cancellation_beside_a_failure_still_cancels() -> None:
    """A task group whose child fails while it is cancelled from outside tells of the failure only."""

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Unavailable("the stream is over", reason="PEER_UNAVAILABLE")

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_when_cancelled())
            await asyncio.Event().wait()

    async def loop() -> None:
        while True:
            await why_ended(body, log=logger())

    running = asyncio.ensure_future(loop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

"""Asking a process for its health on its own socket."""

from __future__ import annotations

from pathlib import Path

from heliograph_cli import health
from tests.support import echo
from tests.support.wait import until


async def test_what_a_process_misses_is_named(run_dir: Path) -> None:
    """Only dependencies that are gone are named; whoever does not answer names nothing."""
    async with echo.serving(run_dir) as running:
        socket = run_dir / "echo.sock"
        assert not await health.serves(socket, direct=True)
        running.server.set_serving(True)
        running.server.set_dependency("inbox", True)
        running.server.set_dependency("follow_ups", False)

        async def told() -> bool:
            return await health.missing(socket, direct=True) == ["follow_ups"]

        await until(told)
        assert await health.serves(socket, direct=True)
    assert await health.missing(socket, direct=True) == []
    assert not await health.serves(socket, direct=True)


async def test_a_clock_that_was_set_is_told(run_dir: Path) -> None:
    """Also by a process that serves; silence says nothing."""
    async with echo.serving(run_dir) as running:
        socket = run_dir / "echo.sock"
        running.server.set_serving(True)
        assert not await health.clock_was_set(socket, direct=True)
        running.server.set_clock(False)
        await until(lambda: health.clock_was_set(socket, direct=True))
        assert await health.serves(socket, direct=True)
    assert not await health.clock_was_set(socket, direct=True)

"""The rules of waiting in tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.wait import until


async def test_returns_when_the_condition_begins_to_hold() -> None:
    """A condition that another part of the loop makes true ends the wait."""
    seen = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, seen.set)
    await until(seen.is_set, 5.0)
    assert seen.is_set()


async def test_accepts_an_async_condition() -> None:
    """A condition may itself await something."""
    answers = iter([False, False, True])

    async def condition() -> bool:
        return next(answers)

    await until(condition, 5.0)
    assert next(answers, None) is None


async def test_fails_with_the_name_of_what_did_not_come() -> None:
    """The limit ends the wait, and the failure says what was awaited."""
    with pytest.raises(AssertionError, match=r"not within 0\.02 s: a light in the dark"):
        await until(lambda: False, 0.02, "a light in the dark")


async def test_asks_at_least_once_without_any_time() -> None:
    """A limit of zero still looks once, so that a condition that holds already is enough."""
    await until(lambda: True, 0.0)


def test_run_dir_is_short_enough_for_unix_sockets(run_dir: Path) -> None:
    """The longest socket name of the mesh fits into the 107 bytes that the kernel allows."""
    assert len(str(run_dir / "gw-a-rather-long-host-name-0123456789-99.admin")) < 107

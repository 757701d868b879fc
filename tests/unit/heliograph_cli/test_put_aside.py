"""What the commands about things put aside share: pages up to a limit, and small calls whose refusals add up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heliograph_cli import put_aside
from heliograph_cli.failures import REFUSED, CommandFailed


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(None, [500, 500, 500]), (1_200, [500, 500, 200]), (700, [500, 200]), (500, [500]), (3, [3])],
)
async def test_pages_are_asked_for_up_to_the_limit(limit: int | None, sizes: list[int]) -> None:
    """Each page is no larger than what is still wanted, and none is asked for after the last."""
    everything, asked = range(1_200), list[int]()

    async def ask(size: int, token: str) -> tuple[Sequence[int], str]:
        asked.append(size)
        start = int(token or 0)
        end = start + size
        return everything[start:end], str(end) if end < len(everything) else ""

    found = [item async for item in put_aside.listed(ask, limit)]
    assert found == list(everything)[:limit]
    assert asked == sizes


@pytest.mark.parametrize("dry_run", [False, True])
async def test_small_calls_add_up(capsys: pytest.CaptureFixture[str], dry_run: bool) -> None:
    """Each call has as many ids as may go at once; what stays is returned, and the line says how many went."""
    asked = list[Sequence[str]]()

    async def ask(part: Sequence[str]) -> tuple[int, Sequence[str]]:
        asked.append(part)
        return len(part) - 1, part[:1]

    refused = await put_aside.redrive(ask, list("abcde"), at_once=2, dry_run=dry_run)
    assert (asked, refused) == ([["a", "b"], ["c", "d"], ["e"]], ["a", "c", "e"])
    wanted = "2 would be redriven, 3 would stay\n" if dry_run else "2 redriven, 3 stay\n"
    assert capsys.readouterr().out == wanted


async def test_at_a_terminal_a_bar_shows_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the output, so that a pipe has the last line only; without a terminal there is none."""

    async def ask(part: Sequence[str]) -> tuple[int, Sequence[str]]:
        return len(part), ()

    await put_aside.redrive(ask, list("abcd"), at_once=2, dry_run=False)
    assert capsys.readouterr() == ("4 redriven, 0 stay\n", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    await put_aside.redrive(ask, list("abcd"), at_once=2, dry_run=False)
    out, errors = capsys.readouterr()
    assert out == "4 redriven, 0 stay\n"
    assert "redriving" in errors
    assert "100%" in errors


def test_what_was_named_and_stays_is_a_failure() -> None:
    """A script sees by the exit code that not all went."""
    put_aside.require_all([], "read")
    with pytest.raises(CommandFailed, match=r"^gone, or cannot be read: a, b$") as failed:
        put_aside.require_all(["a", "b"], "read")
    assert failed.value.code == REFUSED

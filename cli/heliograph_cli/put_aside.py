"""What the commands about dead letters and parked records share: listing in pages, and trying again in small calls.

Must not know which service is asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

import typer

from heliograph_cli.connection import OPERATOR, Actor
from heliograph_cli.failures import REFUSED, CommandFailed

CALLER: Final = Actor("operator", OPERATOR)
PAGE_SIZE: Final = 500

Item = TypeVar("Item")


async def listed(
    ask: Callable[[int, str], Awaitable[tuple[Sequence[Item], str]]], limit: int | None = None
) -> AsyncIterator[Item]:
    """Gives what is listed, page after page.

    Args:
        ask: gets a page: from its size and token, what is on it and the token of the next one, empty at the end.
        limit: so many at most; None: all.
    """
    token, left = "", limit
    while left is None or left > 0:
        items, token = await ask(PAGE_SIZE if left is None else min(PAGE_SIZE, left), token)
        for item in items:
            yield item
        if not token:
            return
        if left is not None:
            left -= len(items)


async def redrive(
    ask: Callable[[Sequence[str]], Awaitable[tuple[int, Sequence[str]]]],
    ids: Sequence[str],
    *,
    at_once: int,
    dry_run: bool,
) -> list[str]:
    """Tries again under a progress bar, and says how many went; returns those that stay.

    Args:
        ask: tries some again: returns how many went, and which stay.
        ids: what to try again.
        at_once: in one call.
        dry_run: whether nothing is tried.
    """
    from rich.console import Console
    from rich.progress import Progress

    redriven = 0
    refused: list[str] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("judging" if dry_run else "redriving", total=len(ids))
        for start in range(0, len(ids), at_once):
            part = ids[start : start + at_once]
            went, stay = await ask(part)
            redriven += went
            refused += stay
            progress.update(bar, advance=len(part))
    if dry_run:
        typer.echo(f"{redriven} would be redriven, {len(refused)} would stay")
    else:
        typer.echo(f"{redriven} redriven, {len(refused)} stay")
    return refused


def require_all(refused: Sequence[str], why: str) -> None:
    """Ends the command when something that was named stays.

    Raises:
        CommandFailed: it does; the others went.
    """
    if refused:
        raise CommandFailed(f"gone, or cannot be {why}: {', '.join(refused)}", REFUSED)

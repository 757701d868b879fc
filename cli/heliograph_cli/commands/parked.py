"""`parked`: the records that fanout put aside, and trying them again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from heliograph_cli.commands.options import AsJson, StateDir
from heliograph_cli.folders import DEFAULT_STATE_DIR


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    parked = typer.Typer(help="Show records that fanout put aside, and try them again.", no_args_is_help=True)
    parked.command("list")(list_)
    parked.command("get")(get)
    parked.command("redrive")(redrive)
    app.add_typer(parked, name="parked")


def list_(
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many at most.")] = 50,
    as_json: AsJson = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """List records that could not be read or killed the process, in the order of lanes and positions."""
    from heliograph_cli import parked
    from heliograph_cli.connection import Reach

    asyncio.run(parked.show_list(Reach(state_dir=state_dir), limit=limit, as_json=as_json))


def get(
    parked_id: Annotated[str, typer.Argument(help="As `list` printed it.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write its bytes to this file.")] = None,
    as_json: AsJson = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Show one record; with --output also its bytes, in a file, with --json in the answer."""
    from heliograph_cli import parked
    from heliograph_cli.connection import Reach

    asyncio.run(parked.show_one(Reach(state_dir=state_dir), parked_id, output=output, as_json=as_json))


def redrive(
    parked_ids: Annotated[list[str] | None, typer.Argument(help="Which ones.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read only: nothing is tried.")] = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Try records again, after an upgrade; what went leaves the list, so it can be broken off and repeated."""
    from heliograph_cli import parked
    from heliograph_cli.connection import Reach

    if everything == bool(parked_ids):
        raise typer.BadParameter("give ids, or --all alone")
    asyncio.run(parked.redrive(Reach(state_dir=state_dir), parked_ids, dry_run=dry_run))

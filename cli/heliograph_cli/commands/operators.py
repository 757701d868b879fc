"""`nodes`, `lag`, `logs` and `trace`: what runs, and how it is doing."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from heliograph_cli.commands.options import AsJson, StateDir
from heliograph_cli.failures import FAILED, CommandFailed
from heliograph_cli.folders import DEFAULT_STATE_DIR, folders


class Level(StrEnum):
    """Severities of log lines."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("nodes")(nodes)
    app.command("lag")(lag)
    app.command("logs")(logs)
    app.command("trace")(trace)


def nodes(as_json: AsJson = False, state_dir: StateDir = DEFAULT_STATE_DIR) -> None:
    """List the gateway nodes that live."""
    from heliograph_cli import operating
    from heliograph_cli.connection import Reach

    asyncio.run(operating.show_nodes(Reach(state_dir=state_dir), as_json))


def lag(as_json: AsJson = False, state_dir: StateDir = DEFAULT_STATE_DIR) -> None:
    """Show how far fanout is behind in each lane."""
    from heliograph_cli import operating
    from heliograph_cli.connection import Reach

    asyncio.run(operating.show_lag(Reach(state_dir=state_dir), as_json))


def logs(
    process: Annotated[str, typer.Argument(help="Of this process only.")] = "",
    following: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    level: Annotated[Level, typer.Option("--level", help="Lowest severity.")] = Level.info,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Show what processes logged, merged by time."""
    from heliograph_cli import logs as reading
    from heliograph_cli.tails import SEVERITIES

    folder, severity = folders(state_dir).log, SEVERITIES[level.value]
    found = reading.files(folder, process)
    if not found and not following:
        raise CommandFailed(f"{folder}: no log of {process or 'any process'} there", FAILED)
    for name, line in reading.merged(found, severity):
        typer.echo(reading.render(name, line))
    if following:
        for name, line in reading.follow(lambda: reading.files(folder, process), severity):
            typer.echo(reading.render(name, line))


def trace(
    event_id: Annotated[str, typer.Argument(help="As `publish` printed it.")],
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Show the way of one event through all processes; needs `heliograph up --trace`."""
    from heliograph_cli import logs as reading

    folder = folders(state_dir).log
    steps = reading.path_of(reading.files(folder, ""), event_id.lower())
    if not steps:
        raise CommandFailed(f"no log in {folder} knows this event; is it `heliograph up --trace`?", FAILED)
    for line in reading.render_path(steps):
        typer.echo(line)

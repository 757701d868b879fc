"""`up` and `down`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from heliograph_cli.commands.options import StateDir
from heliograph_cli.folders import DEFAULT_STATE_DIR

# As in heliograph_cli.engines, which help must not load.
_NAME = "heliograph"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("up")(up)
    app.command("down")(down)


def up(
    direct: Annotated[bool, typer.Option("--direct", help="The services alone: no Envoy, no TLS.")] = False,
    gateways: Annotated[int, typer.Option(min=0, max=16, help="Number of gateway nodes.")] = 2,
    base_port: Annotated[
        int | None, typer.Option(min=1, max=65000, help="First of the loopback ports; default: 7400.")
    ] = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    topology: Annotated[Path | None, typer.Option(help="Topology file of the mesh.")] = None,
    categories: Annotated[Path | None, typer.Option(help="Registry of categories.")] = None,
    producers: Annotated[Path | None, typer.Option(help="Registry of producers.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Log every step of every event.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings and addresses only.")] = False,
    ready_limit: Annotated[float, typer.Option(min=1, help="Seconds until all must serve.")] = 60.0,
    engines: Annotated[
        Path | None, typer.Option(help="File that says where Kafka, Redis, Cassandra and PostgreSQL are.")
    ] = None,
    name: Annotated[str, typer.Option(help="With --engines: prefix of topics and keys, keyspace, schema.")] = _NAME,
    create: Annotated[bool, typer.Option("--create", help="With --engines: first make what is missing there.")] = False,
) -> None:
    """Run everything on this machine until Ctrl-C."""
    from heliograph_cli import up as running

    options = running.UpOptions(
        state_dir=state_dir,
        direct=direct,
        gateways=gateways,
        base_port=base_port,
        topology=topology,
        categories=categories,
        producers=producers,
        trace=trace,
        quiet=quiet,
        ready_limit=ready_limit,
        engines=engines,
        name=name,
        create=create,
    )
    asyncio.run(running.up(options))


def down(state_dir: StateDir = DEFAULT_STATE_DIR) -> None:
    """Stop what runs with a state folder, and wait for its end."""
    from heliograph_cli import up as running

    stopped = asyncio.run(running.down(state_dir))
    typer.echo("everything is stopped" if stopped else "nothing runs here")

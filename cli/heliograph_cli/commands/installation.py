"""`certs`, `config` and `doctor`: what an installation is made of, and whether it is well."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Annotated

import typer

from heliograph_cli.commands.options import StateDir
from heliograph_cli.failures import FAILED, USAGE, CommandFailed
from heliograph_cli.folders import DEFAULT_STATE_DIR, deploy_file, folders

TopologyFile = Annotated[Path | None, typer.Option("--topology", help="Topology file of the mesh.")]
ProducersFile = Annotated[Path | None, typer.Option("--producers", help="Registry of producers.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    certificates = typer.Typer(help="Show and renew the development certificates.", no_args_is_help=True)
    certificates.command("show")(certs_show)
    certificates.command("rotate")(certs_rotate)
    app.add_typer(certificates, name="certs")
    settings = typer.Typer(help="Show settings as the services see them.", no_args_is_help=True)
    settings.command("show")(config_show)
    app.add_typer(settings, name="config")
    app.command("doctor")(doctor)


def certs_show(
    topology: TopologyFile = None, producers: ProducersFile = None, state_dir: StateDir = DEFAULT_STATE_DIR
) -> None:
    """List who has a certificate, until when, and what is wrong with it."""
    import time

    from heliograph_cli import envoys, texts
    from mesh.envoy import certs
    from mesh.errors import StartError

    place = folders(state_dir)
    try:
        wanted = envoys.identities(
            envoys.load(topology or deploy_file("topology.toml"), None),
            producers or deploy_file("producers.example.toml"),
        )
    except StartError as error:
        raise CommandFailed(str(error), USAGE) from None
    found = [certs.inspect(place.certs, one.path, time.time()) for one in wanted]
    rows = [(one.path, _moment(one.expire_time), one.fault or "ok", *one.uris) for one in found]
    texts.table(("IDENTITY", "EXPIRES", "STATE", "URI"), [(*row, "", "")[:4] for row in rows])
    if any(one.fault for one in found):
        raise CommandFailed("some cannot be used; remove their folders, then `heliograph certs rotate`", FAILED)


def certs_rotate(
    root: Annotated[bool, typer.Option("--root", help="A new authority too.")] = False,
    topology: TopologyFile = None,
    producers: ProducersFile = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Make new certificates; what runs takes them up without a restart."""
    import time

    from heliograph_cli import envoys
    from mesh.envoy import certs
    from mesh.errors import StartError

    place = folders(state_dir)
    place.make()
    try:
        wanted = envoys.identities(
            envoys.load(topology or deploy_file("topology.toml"), None),
            producers or deploy_file("producers.example.toml"),
        )
        made = certs.rotate(place.certs, wanted, time.time(), new_root=root)
    except StartError as error:
        raise CommandFailed(str(error), USAGE) from None
    typer.echo(f"{len(made)} new certificates in {place.certs}")


def config_show(
    process: Annotated[str, typer.Argument(help="Of this process only.")] = "",
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Print the effective settings of what runs, secrets masked."""
    import subprocess

    from heliograph_cli.record import read_running

    running = read_running(folders(state_dir).record)
    services = {name: one for name, one in running.processes.items() if one.kind == "service"}
    if process and process not in services:
        raise CommandFailed(f"{process}: no such process; there are {', '.join(services)}", USAGE)
    for name, one in services.items():
        if process in ("", name):
            done = subprocess.run([*one.argv, "--show-config"], capture_output=True, text=True, check=False)
            if done.returncode:
                raise CommandFailed(f"{name}: {done.stderr.strip()}", USAGE)
            typer.echo(f"# {name}\n{done.stdout}")


def doctor(
    base_port: Annotated[int | None, typer.Option(min=1, max=65000, help="First of the loopback ports.")] = None,
    topology: TopologyFile = None,
    producers: ProducersFile = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Look for what is wrong here and say what to do; exit code 1 when something is broken."""
    from heliograph_cli import doctor as practice

    place = folders(state_dir)
    findings = asyncio.run(practice.examine(place, base_port=base_port, topology=topology, producers=producers))
    for finding in findings:
        advice = f"; {finding.advice}" if finding.advice else ""
        typer.echo(f"{finding.level:<5} {finding.subject:<13} {finding.text}{advice}")
    if practice.worst(findings) == "fail":
        raise CommandFailed("something is broken; see the lines that begin with fail", FAILED)


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M") if seconds else "-"

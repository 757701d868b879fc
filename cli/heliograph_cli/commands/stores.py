"""`stores`: looks at, makes and migrates what the services keep outside themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph_cli.commands.options import AsJson
from heliograph_cli.failures import FAILED, USAGE, CommandFailed

if TYPE_CHECKING:
    from heliograph_cli.stores import Line, Target

Services = Annotated[list[str] | None, typer.Option("--service", help="Of this service only; may be repeated.")]
EnginesFile = Annotated[
    Path | None, typer.Option("--engines", help="File of engines, as for `heliograph up`: its URLs beat the settings.")
]
InstallationName = Annotated[
    str, typer.Option("--name", help="With --engines: prefix of topics and keys, keyspace, schema.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Settings = Annotated[
    list[str] | None, typer.Argument(help="Flags of the one --service, after --: its settings on top of all others.")
]

# As in heliograph_cli.engines, which help must not load.
_NAME = "heliograph"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    stores = typer.Typer(
        help="Look at, make and migrate Kafka's topics, Cassandra's keyspace, PostgreSQL's schema.",
        no_args_is_help=True,
    )
    stores.command("check")(check)
    stores.command("create")(create)
    stores.command("migrate")(migrate)
    app.add_typer(stores, name="stores")


def check(
    settings: Settings = None,
    service: Services = None,
    engines: EnginesFile = None,
    name: InstallationName = _NAME,
    as_json: AsJson = False,
) -> None:
    """Look at everything the services need, and change nothing; exit code 1 unless all of it is right."""
    from heliograph_cli import stores

    _run(stores.check, _targets(service or [], settings or [], engines, name), as_json)


def create(
    settings: Settings = None,
    service: Services = None,
    engines: EnginesFile = None,
    name: InstallationName = _NAME,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make what is missing; what is there stays as it is."""
    from heliograph_cli import stores

    targets = _targets(service or [], settings or [], engines, name)
    _run(lambda found: stores.create(found, dry_run=dry_run), targets, as_json)


def migrate(
    settings: Settings = None,
    service: Services = None,
    engines: EnginesFile = None,
    name: InstallationName = _NAME,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Bring schemas up to this version, one process at a time."""
    from heliograph_cli import stores

    targets = _targets(service or [], settings or [], engines, name)
    _run(lambda found: stores.migrate(found, dry_run=dry_run), targets, as_json)


def _targets(
    services: Sequence[str], settings: Sequence[str], engines: Path | None, name: str
) -> Sequence[Target | Line]:
    from heliograph_cli.engines import read_engines, service_flags
    from heliograph_cli.stores import collect

    flags = dict(service_flags(read_engines(engines), name)) if engines is not None else {}
    if settings:
        if len(services) != 1:
            raise CommandFailed("flags of a service need one --service that they belong to", USAGE)
        flags[services[0]] = (*flags.get(services[0], ()), *settings)
    return collect(services, flags)


def _run(
    work: Callable[[Sequence[Target | Line]], Coroutine[Any, Any, list[Line]]],
    targets: Sequence[Target | Line],
    as_json: bool,
) -> None:
    import msgspec

    from heliograph_cli.stores import all_well
    from mesh.telemetry import configure_logs

    # What adapters and drivers have to say beside their findings must not stand among these.
    configure_logs("stores", "warning")
    lines = asyncio.run(work(targets))
    for line in lines:
        typer.echo(msgspec.json.encode(line).decode() if as_json else _shown(line))
    if not all_well(lines):
        raise CommandFailed("not every store is as it must be; see the lines above", FAILED)


def _shown(line: Line) -> str:
    from heliograph_cli.texts import printable

    where = ": ".join(part for part in (line.store, line.text) if part)
    at = f" ({line.url})" if line.url and line.url not in line.text else ""
    remedy = f"; {line.remedy}" if line.remedy else ""
    return printable(f"{line.state:<8} {line.service:<9} {where}{remedy}{at}")

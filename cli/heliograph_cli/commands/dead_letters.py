"""`dead-letters` and `explain`: what was given up, trying it again, and why somebody got an event or did not."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from heliograph_cli.commands.options import TENANT, AsJson, StateDir, Tenant
from heliograph_cli.folders import DEFAULT_STATE_DIR


class Reason(StrEnum):
    """Why deliveries are given up."""

    undecodable = "undecodable"
    poison = "poison"
    store_refused = "store-refused"
    tries_exhausted = "tries-exhausted"


OnlyReason = Annotated[Reason | None, typer.Option("--reason", help="Only those given up for this reason.")]
OnlyTenant = Annotated[str, typer.Option("--tenant", help="Only this tenant's.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    letters = typer.Typer(help="Show deliveries that were given up, and try them again.", no_args_is_help=True)
    letters.command("list")(list_)
    letters.command("get")(get)
    letters.command("redrive")(redrive)
    app.add_typer(letters, name="dead-letters")
    app.command("explain")(explain)


def list_(
    reason: OnlyReason = None,
    tenant: OnlyTenant = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many at most.")] = 50,
    as_json: AsJson = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """List dead letters, newest first."""
    from heliograph_cli import letters
    from heliograph_cli.connection import Reach

    wanted = letters.Filter(tenant, _number(reason))
    asyncio.run(letters.show_list(Reach(state_dir=state_dir), wanted, limit=limit, as_json=as_json))


def get(
    dead_letter_id: Annotated[str, typer.Argument(help="As `list` printed it.")],
    as_json: AsJson = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Show one dead letter with its history; with --json also its bytes."""
    from heliograph_cli import letters
    from heliograph_cli.connection import Reach

    asyncio.run(letters.show_one(Reach(state_dir=state_dir), dead_letter_id.lower(), as_json=as_json))


def redrive(
    dead_letter_ids: Annotated[list[str] | None, typer.Argument(help="Which ones; or a filter.")] = None,
    reason: OnlyReason = None,
    tenant: OnlyTenant = "",
    everything: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Judge only: nothing is tried.")] = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Try dead letters again, under today's wishes; what went leaves the list, so it can be broken off and repeated."""
    from heliograph_cli import letters
    from heliograph_cli.connection import Reach

    filtered = reason is not None or bool(tenant) or everything
    if filtered == bool(dead_letter_ids) or (everything and (reason is not None or tenant)):
        raise typer.BadParameter("give ids, or --reason and --tenant, or --all alone")
    reach = Reach(state_dir=state_dir)
    if dead_letter_ids:
        asyncio.run(letters.redrive_these(reach, [one.lower() for one in dead_letter_ids], dry_run=dry_run))
    else:
        asyncio.run(letters.redrive_filtered(reach, letters.Filter(tenant, _number(reason)), dry_run=dry_run))


def explain(
    event_id: Annotated[str, typer.Argument(help="As `publish` printed it.")],
    recipient: Annotated[str, typer.Argument(help="Whose.")],
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Tell why a recipient got an event or did not."""
    from heliograph_cli import letters
    from heliograph_cli.connection import Reach

    asyncio.run(letters.explain(Reach(state_dir=state_dir), event_id.lower(), tenant, recipient, as_json=as_json))


def _number(reason: Reason | None) -> int:
    from heliograph.delivery.v1.dead_letter_service_pb2 import DeadLetterReason

    return 0 if reason is None else DeadLetterReason.Value(f"DEAD_LETTER_REASON_{reason.name.upper()}")

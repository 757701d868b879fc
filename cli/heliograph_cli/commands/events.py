"""`publish`: the producers' side."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from heliograph_cli.commands.options import (
    PRODUCER,
    TENANT,
    AsJson,
    Authority,
    Edge,
    StateDir,
    Tenant,
    Token,
)
from heliograph_cli.folders import DEFAULT_STATE_DIR


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("publish")(publish)


def publish(
    title: Annotated[str, typer.Argument(help="One line.")],
    to: Annotated[
        list[str] | None, typer.Option("--to", help="Recipients, separated by commas or given again.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Topics whose subscribers get it, as above.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option("--exclude", help="Recipients who do not get it.")] = None,
    body: Annotated[str, typer.Option(help="Text below the title.")] = "",
    link: Annotated[str, typer.Option(help="Where a tap leads.")] = "",
    data: Annotated[str, typer.Option("--data", help="A JSON object for the app.")] = "",
    category: Annotated[str, typer.Option(help="Category of the registry.")] = "general",
    priority: Annotated[str, typer.Option(help="high, normal or bulk; default: the category's.")] = "",
    ttl: Annotated[float, typer.Option(min=0, help="Seconds of usefulness; 0: as long as the inbox keeps it.")] = 0.0,
    ordering_key: Annotated[str, typer.Option(help="Events of one key keep their order.")] = "",
    request_id: Annotated[str, typer.Option(help="UUID that makes a repeat harmless; default: a fresh one.")] = "",
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Judge, do not publish.")] = False,
    tenant: Tenant = TENANT,
    producer: Annotated[str, typer.Option(help="Who publishes.")] = PRODUCER,
    as_json: AsJson = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Publish an event to recipients and the subscribers of topics."""
    from heliograph_cli import publishing
    from heliograph_cli.connection import Actor, Reach

    draft = publishing.Draft(
        recipients=_names(to),
        topics=_names(topic),
        excluded=_names(exclude),
        title=title,
        body=body,
        link=link,
        data_json=data,
        category=category,
        priority=priority,
        ttl=ttl,
        ordering_key=ordering_key,
        request_id=request_id,
        validate_only=validate_only,
    )
    if not draft.recipients and not draft.topics:
        raise typer.BadParameter("name a recipient with --to or a topic with --topic")
    reach = Reach(state_dir=state_dir, edge=edge, ca=ca, token=token)
    typer.echo(asyncio.run(publishing.publish(draft, Actor("producer", producer, tenant), reach, as_json)))


def _names(given: list[str] | None) -> tuple[str, ...]:
    return tuple(name.strip() for names in given or () for name in names.split(",") if name.strip())

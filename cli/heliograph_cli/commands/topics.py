"""`topics`: what a recipient is subscribed to."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from heliograph_cli.commands.options import TENANT, AsJson, Authority, Edge, StateDir, Tenant, Token
from heliograph_cli.commands.recipients import Recipient, acting, reaching
from heliograph_cli.folders import DEFAULT_STATE_DIR

Topics = Annotated[list[str], typer.Argument(help="Topics; one exists by being used.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    topics = typer.Typer(help="Show and change what a recipient is subscribed to.", no_args_is_help=True)
    topics.command("subscribe")(subscribe)
    topics.command("unsubscribe")(unsubscribe)
    topics.command("list")(list_)
    app.add_typer(topics, name="topics")


def subscribe(
    recipient: Recipient,
    topics: Topics,
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Subscribe to topics: every event that is accepted from now on finds the recipient."""
    from heliograph_cli import wishes

    asyncio.run(wishes.subscribe(acting(recipient, tenant), reaching(state_dir, edge, ca, token), topics, as_json))


def unsubscribe(
    recipient: Recipient,
    topics: Topics,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """End subscriptions; what is not subscribed is no failure."""
    from heliograph_cli import wishes

    asyncio.run(wishes.unsubscribe(acting(recipient, tenant), reaching(state_dir, edge, ca, token), topics))


def list_(
    recipient: Recipient,
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """List a recipient's subscriptions."""
    from heliograph_cli import wishes

    asyncio.run(wishes.show_subscriptions(acting(recipient, tenant), reaching(state_dir, edge, ca, token), as_json))

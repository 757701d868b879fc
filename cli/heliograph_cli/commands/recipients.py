"""`listen`, `inbox`, `unread`, `mark` and `prefs`: a recipient's side; and `token`."""

from __future__ import annotations

import asyncio
import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph_cli.commands.options import TENANT, AsJson, Authority, Edge, StateDir, Tenant, Token
from heliograph_cli.folders import DEFAULT_STATE_DIR

if TYPE_CHECKING:
    from heliograph_cli.connection import Actor, Reach

Recipient = Annotated[str, typer.Argument(help="Whose.")]
MutedCategory = Annotated[str, typer.Option("--category", help="Of this category; default: any.")]
MutedTopic = Annotated[str, typer.Option("--topic", help="By this topic; default: whatever way.")]


class Kind(StrEnum):
    """What can be said about notifications."""

    read = "read"
    unread = "unread"
    hidden = "hidden"
    seen = "seen"
    received = "received"


class Role(StrEnum):
    """Whom a token can be for."""

    recipient = "recipient"
    producer = "producer"


class Carrier(StrEnum):
    """What can carry a session."""

    websocket = "websocket"
    grpc = "grpc"


class Switch(StrEnum):
    """On or off."""

    on = "on"
    off = "off"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("listen")(listen)
    app.command("inbox")(inbox)
    app.command("unread")(unread)
    app.command("mark")(mark)
    app.command("token")(token_)
    preferences = typer.Typer(help="Show and change what a recipient wants.", no_args_is_help=True)
    preferences.command("get")(prefs_get)
    preferences.command("set")(prefs_set)
    preferences.command("mute")(prefs_mute)
    preferences.command("unmute")(prefs_unmute)
    app.add_typer(preferences, name="prefs")


def listen(
    recipient: Recipient,
    device: Annotated[str, typer.Option("--device", help="The device; it holds one session.")] = "terminal",
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Say that it has arrived.")] = True,
    read: Annotated[bool, typer.Option("--read", help="Say also that it was read.")] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="End after so many; 0: never.")] = 0,
    anew: Annotated[bool, typer.Option("--anew", help="Take the whole inbox again.")] = False,
    node: Annotated[str, typer.Option("--node", help="This gateway node (direct mode only).")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing about the connection.")] = False,
    transport: Annotated[Carrier, typer.Option("--transport", help="What carries the session.")] = Carrier.websocket,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Subscribe to it first; may be repeated.")] = None,
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Print a recipient's notifications as they come, until Ctrl-C."""
    from heliograph_cli import listening

    how = listening.Listening(
        device_id=device,
        node=node,
        as_json=as_json,
        ack=ack,
        read=read,
        count=count,
        forget=anew,
        quiet=quiet,
        transport=transport.value,
        topics=tuple(topic or ()),
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(listening.listen(acting(recipient, tenant), reaching(state_dir, edge, ca, token), how))


def inbox(
    recipient: Recipient,
    unread_only: Annotated[bool, typer.Option("--unread", help="Only what is not read.")] = False,
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """List a recipient's notifications, newest first."""
    from heliograph_cli import reading

    actor, reach = acting(recipient, tenant), reaching(state_dir, edge, ca, token)
    asyncio.run(reading.show_inbox(actor, reach, unread_only=unread_only, as_json=as_json))


def unread(
    recipient: Recipient,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Print how many notifications a recipient has not read."""
    from heliograph_cli import reading

    asyncio.run(reading.show_unread(acting(recipient, tenant), reaching(state_dir, edge, ca, token)))


def mark(
    recipient: Recipient,
    notification_ids: Annotated[list[str] | None, typer.Argument(help="Which ones.")] = None,
    kind: Annotated[Kind, typer.Option("--as", help="What to say about them.")] = Kind.read,
    everything: Annotated[bool, typer.Option("--all", help="Mark all that are listed as read.")] = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Mark notifications as read, unread or hidden."""
    from heliograph_cli import reading

    actor, reach = acting(recipient, tenant), reaching(state_dir, edge, ca, token)
    if everything == bool(notification_ids) or (everything and kind is not Kind.read):
        raise typer.BadParameter("give ids, or --all alone")
    if notification_ids:
        asyncio.run(reading.mark(actor, reach, kind.value, notification_ids))
    else:
        asyncio.run(reading.mark_all(actor, reach))


def prefs_get(
    recipient: Recipient,
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Show what a recipient wants, by category."""
    from heliograph_cli import reading

    actor, reach = acting(recipient, tenant), reaching(state_dir, edge, ca, token)
    asyncio.run(reading.show_preferences(actor, reach, as_json))


def prefs_set(
    recipient: Recipient,
    category: Annotated[str, typer.Argument(help="Which category.")],
    state: Annotated[Switch | None, typer.Option("--state", help="All of it.")] = None,
    live: Annotated[Switch | None, typer.Option("--live", help="The live channel.")] = None,
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Change what a recipient wants of one category."""
    from heliograph_cli import reading

    if state is None and live is None:
        raise typer.BadParameter("give --state or --live")
    actor, reach = acting(recipient, tenant), reaching(state_dir, edge, ca, token)
    asyncio.run(reading.choose(actor, reach, category, enabled=_flag(state), live=_flag(live), as_json=as_json))


def prefs_mute(
    recipient: Recipient,
    category: MutedCategory = "",
    topic: MutedTopic = "",
    span: Annotated[str, typer.Option("--for", help="90s, 30m, 2h, 7d; default: until it is taken back.")] = "",
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Mute a category, a topic, or a category on a topic."""
    from heliograph_cli import wishes

    _check_muted(category, topic)
    span_s = wishes.span_of(span) if span else None
    actor, reach = acting(recipient, tenant), reaching(state_dir, edge, ca, token)
    asyncio.run(wishes.mute(actor, reach, category, topic, span_s, as_json))


def prefs_unmute(
    recipient: Recipient,
    category: MutedCategory = "",
    topic: MutedTopic = "",
    as_json: AsJson = False,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    edge: Edge = "",
    ca: Authority = None,
    token: Token = "",
) -> None:
    """Take a mute back, named as it was set."""
    from heliograph_cli import wishes

    _check_muted(category, topic)
    actor, reach = acting(recipient, tenant), reaching(state_dir, edge, ca, token)
    asyncio.run(wishes.unmute(actor, reach, category, topic, as_json))


def token_(
    name: Annotated[str, typer.Argument(help="Recipient or producer.")],
    role: Annotated[Role, typer.Option("--role", help="Whom it is for.")] = Role.recipient,
    ttl: Annotated[float, typer.Option(min=1, help="Seconds until it expires.")] = 3600.0,
    tenant: Tenant = TENANT,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Print a token signed with the development key."""
    from heliograph_cli.connection import Actor, sign
    from heliograph_cli.folders import folders

    typer.echo(sign(folders(state_dir), Actor(role.value, name, tenant), ttl))


def acting(recipient: str, tenant: str) -> Actor:
    """Returns who makes a recipient's calls: the recipient."""
    from heliograph_cli.connection import Actor

    return Actor("recipient", recipient, tenant)


def reaching(state_dir: StateDir, edge: str, ca: Authority, token: str) -> Reach:
    """Returns where the mesh is that the options mean."""
    from heliograph_cli.connection import Reach

    return Reach(state_dir=state_dir, edge=edge, ca=ca, token=token)


def _check_muted(category: str, topic: str) -> None:
    if not category and not topic:
        raise typer.BadParameter("give --category, --topic or both")


def _flag(switch: Switch | None) -> bool | None:
    return None if switch is None else switch is Switch.on

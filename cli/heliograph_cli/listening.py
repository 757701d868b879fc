"""What `heliograph listen` does: one device of a recipient, printing what arrives.

Notifications go to standard output, what happens to the connection to standard error.
"""

from __future__ import annotations

import json

import msgspec
import typer
from google.protobuf import json_format

from heliograph_cli import texts
from heliograph_cli.connection import Actor, Reach, connect
from heliograph_client import AckLevel, Connected, Disconnected, Notification, Subscriber, Transport, Update


class Listening(msgspec.Struct, frozen=True):
    """How to listen.

    Attributes:
        device_id: the device; it holds one session and is shown each notification once.
        node: connect to this gateway node; empty: any. In direct mode only.
        as_json: one JSON object a line.
        ack: say that what was printed has arrived.
        read: say also that it was read.
        count: end after so many; 0: never.
        forget: take the whole inbox anew instead of going on where this device stood.
        quiet: say nothing about the connection.
        transport: what carries the session.
        topics: subscribe the recipient to these first.
    """

    device_id: str = "terminal"
    node: str = ""
    as_json: bool = False
    ack: bool = True
    read: bool = False
    count: int = 0
    forget: bool = False
    quiet: bool = False
    transport: Transport = "websocket"
    topics: tuple[str, ...] = ()


async def listen(actor: Actor, reach: Reach, how: Listening) -> None:
    """Prints notifications until interrupted, or until there were enough.

    Raises:
        Failure: the server does not want this device to come again.
        CommandFailed: nothing runs there.
    """
    async with connect(reach) as connection:
        subscriber = connection.subscriber(
            actor,
            how.device_id,
            node=how.node,
            remember=not how.forget,
            auto_ack=how.ack,
            on_update=lambda update: _tell(update, how.quiet),
            transport=how.transport,
        )
        left = how.count
        async with subscriber:
            if how.topics:
                await subscriber.subscribe(*how.topics)
            async for notification in subscriber:
                typer.echo(render(notification, how.as_json))
                _say(subscriber, notification, how)
                left -= 1
                if left == 0:
                    break
            if how.ack or how.read:
                await subscriber.settle()


def render(notification: Notification, as_json: bool) -> str:
    """Returns a notification as it is printed."""
    if as_json:
        content = json_format.MessageToDict(notification.message)
        return json.dumps({**content, "replayed": notification.replayed}, ensure_ascii=False)
    when = texts.clock_time(notification.message.event_time)
    words = [when, f"[{notification.category}]", notification.title]
    words += [f"- {notification.body}"] if notification.body else []
    words += [notification.link] if notification.link else []
    words += ["(earlier)"] if notification.replayed else []
    return texts.printable(" ".join([*words, f" {notification.id}"]))


def _say(subscriber: Subscriber, notification: Notification, how: Listening) -> None:
    if how.read:
        subscriber.mark_read(notification)
    elif how.ack:
        subscriber.ack(notification, AckLevel.RECEIVED)


def _tell(update: Update, quiet: bool) -> None:
    if quiet:
        return
    if isinstance(update, Connected):
        typer.echo("connected" if update.number == 1 else f"connected again ({update.number})", err=True)
    elif isinstance(update, Disconnected):
        typer.echo(f"disconnected: {update.reason}; trying again in {update.retry_delay:.1f} s", err=True)

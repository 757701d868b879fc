"""What the recipients' commands do: list an inbox, count, mark, and change preferences."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from heliograph.delivery.v1 import inbox_service_pb2, inbox_service_pb2_grpc
from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc
from heliograph.type.v1 import notification_pb2
from heliograph_cli import texts
from heliograph_cli.connection import Actor, Connection, Reach, connect
from heliograph_cli.failures import REFUSED, USAGE, CommandFailed

_PAGE_SIZE = 200


async def show_inbox(actor: Actor, reach: Reach, *, unread_only: bool, as_json: bool) -> None:
    """Prints the inbox, newest first."""
    items: list[inbox_service_pb2.InboxItem] = []
    page = ""
    async with connect(reach) as connection:
        while True:
            request = inbox_service_pb2.ListInboxRequest(page_size=_PAGE_SIZE, page_token=page, unread_only=unread_only)
            answer = await connection.call(
                "delivery",
                lambda channel: inbox_service_pb2_grpc.InboxServiceStub(channel).ListInbox,
                request,
                actor,
            )
            items += answer.items
            page = answer.next_page_token
            if not page:
                break
    if as_json:
        for item in items:
            typer.echo(texts.json_line(item))
        return
    if items:
        texts.table(("TIME", "STATE", "CATEGORY", "TITLE", "ID"), [_row(item) for item in items])
    typer.echo(f"{len(items)} listed, {answer.unread.unread_count} unread")


async def show_unread(actor: Actor, reach: Reach) -> None:
    """Prints the number of unread notifications."""
    async with connect(reach) as connection:
        answer = await connection.call(
            "delivery",
            lambda channel: inbox_service_pb2_grpc.InboxServiceStub(channel).GetUnread,
            inbox_service_pb2.GetUnreadRequest(),
            actor,
        )
    typer.echo(str(answer.unread.unread_count))


async def mark(actor: Actor, reach: Reach, kind: str, notification_ids: Sequence[str]) -> None:
    """Marks notifications.

    Raises:
        CommandFailed: refused, or ids that are not in the inbox; the others are marked.
    """
    try:
        number = notification_pb2.MarkKind.Value(f"MARK_KIND_{kind.upper()}")
    except ValueError:
        raise CommandFailed(f"{kind}: no such mark", USAGE) from None
    one = notification_pb2.Mark(
        kind=number, refs=[notification_pb2.NotificationRef(notification_id=id_) for id_ in notification_ids]
    )
    async with connect(reach) as connection:
        answer = await connection.call(
            "delivery",
            lambda channel: inbox_service_pb2_grpc.InboxServiceStub(channel).BatchMark,
            inbox_service_pb2.BatchMarkRequest(marks=[one]),
            actor,
        )
    unknown = [ref.notification_id for ref in answer.unknown_refs]
    if unknown:
        raise CommandFailed(f"not in this inbox: {', '.join(unknown)}", REFUSED)
    typer.echo(f"{len(notification_ids)} marked as {kind}")


async def mark_all(actor: Actor, reach: Reach) -> None:
    """Marks everything read that the inbox lists now."""
    async with connect(reach) as connection:
        answer = await connection.call(
            "delivery",
            lambda channel: inbox_service_pb2_grpc.InboxServiceStub(channel).MarkAllRead,
            inbox_service_pb2.MarkAllReadRequest(),
            actor,
        )
    typer.echo(f"{answer.unread.unread_count} unread")


async def show_preferences(actor: Actor, reach: Reach, as_json: bool) -> None:
    """Prints what a recipient chose."""
    async with connect(reach) as connection:
        answer = await connection.call(
            "prefs",
            lambda channel: prefs_service_pb2_grpc.PrefsServiceStub(channel).GetPreferences,
            prefs_service_pb2.GetPreferencesRequest(),
            actor,
        )
    print_preferences(answer.preferences, as_json)


async def choose(
    actor: Actor, reach: Reach, category: str, *, enabled: bool | None, live: bool | None, as_json: bool
) -> None:
    """Changes the choice for one category; what is None stays."""
    async with connect(reach) as connection:
        choice = await _current(connection, actor, category)
        if enabled is not None:
            choice.enabled = enabled
        if live is not None:
            kept = [channel for channel in choice.disabled_channels if channel != notification_pb2.CHANNEL_LIVE]
            choice.disabled_channels[:] = kept if live else [*kept, notification_pb2.CHANNEL_LIVE]
        request = prefs_service_pb2.UpdatePreferencesRequest(
            preferences=prefs_service_pb2.Preferences(categories=[choice])
        )
        answer = await connection.call(
            "prefs",
            lambda channel: prefs_service_pb2_grpc.PrefsServiceStub(channel).UpdatePreferences,
            request,
            actor,
        )
    print_preferences(answer.preferences, as_json)


async def _current(connection: Connection, actor: Actor, category: str) -> prefs_service_pb2.CategoryPreference:
    answer = await connection.call(
        "prefs",
        lambda channel: prefs_service_pb2_grpc.PrefsServiceStub(channel).GetPreferences,
        prefs_service_pb2.GetPreferencesRequest(),
        actor,
    )
    known = {one.category: one for one in answer.preferences.categories}
    if category not in known:
        raise CommandFailed(f"{category}: no such category; known are {', '.join(known)}", REFUSED)
    return known[category]


def print_preferences(preferences: prefs_service_pb2.Preferences, as_json: bool) -> None:
    """Prints preferences: what is on, and below it what is muted."""
    if as_json:
        typer.echo(texts.json_line(preferences))
        return
    rows = []
    for one in preferences.categories:
        live = one.enabled and notification_pb2.CHANNEL_LIVE not in one.disabled_channels
        rows.append((one.category, "on" if one.enabled else "off", "on" if live else "off"))
    texts.table(("CATEGORY", "INBOX", "LIVE"), rows)
    if preferences.mutes:
        typer.echo()
        muted = [
            (
                one.category or "any",
                one.topic_id or "any",
                texts.clock_time(one.expire_time) if one.HasField("expire_time") else "unmuted",
            )
            for one in preferences.mutes
        ]
        texts.table(("MUTED CATEGORY", "TOPIC", "UNTIL"), muted)


def _row(item: inbox_service_pb2.InboxItem) -> tuple[str, ...]:
    shown = item.notification
    state = notification_pb2.NotificationState.Name(item.state).removeprefix("NOTIFICATION_STATE_").lower()
    return (
        texts.clock_time(shown.event_time),
        state,
        shown.category,
        shown.content.title,
        shown.notification_id,
    )

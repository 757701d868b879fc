"""What `prefs mute`, `prefs unmute` and `topics` do."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import typer

from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc, topic_service_pb2, topic_service_pb2_grpc
from heliograph_cli import texts
from heliograph_cli.connection import Actor, Reach, connect
from heliograph_cli.failures import USAGE, CommandFailed
from heliograph_cli.reading import print_preferences
from mesh import times

_PAGE_SIZE = 1_000
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_LONGEST_S = 100 * 365 * 86_400
_MICROS = 1_000_000


def span_of(text: str) -> float:
    """Returns a span such as "90s", "30m", "2h" or "7d" as seconds.

    Raises:
        CommandFailed: it is none, or longer than a hundred years.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise CommandFailed(f"{text}: no such time; write 90s, 30m, 2h or 7d", USAGE)
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _LONGEST_S:
        raise CommandFailed(f"{text}: too long; leave it out to mute until it is taken back", USAGE)
    return seconds


async def mute(actor: Actor, reach: Reach, category: str, topic_id: str, span_s: float | None, as_json: bool) -> None:
    """Mutes a category, a topic, or a category on a topic; without a span until it is taken back."""
    one = prefs_service_pb2.Mute(category=category, topic_id=topic_id)
    if span_s is not None:
        times.set_micros(one.expire_time, round((time.time() + span_s) * _MICROS))
    await _change(actor, reach, one, as_json)


async def unmute(actor: Actor, reach: Reach, category: str, topic_id: str, as_json: bool) -> None:
    """Takes a mute back; where there is none, nothing changes."""
    one = prefs_service_pb2.Mute(category=category, topic_id=topic_id)
    # An end that is over on every clock.
    times.set_micros(one.expire_time, 0)
    await _change(actor, reach, one, as_json)


async def subscribe(actor: Actor, reach: Reach, topic_ids: Sequence[str], as_json: bool) -> None:
    """Subscribes, and prints the subscriptions as they are stored."""
    async with connect(reach) as connection:
        answer = await connection.call(
            "prefs",
            lambda channel: topic_service_pb2_grpc.TopicServiceStub(channel).Subscribe,
            topic_service_pb2.SubscribeRequest(topic_ids=topic_ids),
            actor,
        )
    _print_subscriptions(answer.subscriptions, as_json)


async def unsubscribe(actor: Actor, reach: Reach, topic_ids: Sequence[str]) -> None:
    """Ends subscriptions; what is not subscribed is no failure."""
    async with connect(reach) as connection:
        await connection.call(
            "prefs",
            lambda channel: topic_service_pb2_grpc.TopicServiceStub(channel).Unsubscribe,
            topic_service_pb2.UnsubscribeRequest(topic_ids=topic_ids),
            actor,
        )
    typer.echo(f"not subscribed: {', '.join(texts.printable(topic_id) for topic_id in topic_ids)}")


async def show_subscriptions(actor: Actor, reach: Reach, as_json: bool) -> None:
    """Prints all subscriptions of a recipient."""
    found: list[topic_service_pb2.Subscription] = []
    page = ""
    async with connect(reach) as connection:
        while True:
            answer = await connection.call(
                "prefs",
                lambda channel: topic_service_pb2_grpc.TopicServiceStub(channel).ListSubscriptions,
                topic_service_pb2.ListSubscriptionsRequest(page_size=_PAGE_SIZE, page_token=page),
                actor,
            )
            found += answer.subscriptions
            page = answer.next_page_token
            if not page:
                break
    _print_subscriptions(found, as_json)


async def _change(actor: Actor, reach: Reach, mute: prefs_service_pb2.Mute, as_json: bool) -> None:
    # Without a mask only this mute changes.
    request = prefs_service_pb2.UpdatePreferencesRequest(preferences=prefs_service_pb2.Preferences(mutes=[mute]))
    async with connect(reach) as connection:
        answer = await connection.call(
            "prefs",
            lambda channel: prefs_service_pb2_grpc.PrefsServiceStub(channel).UpdatePreferences,
            request,
            actor,
        )
    print_preferences(answer.preferences, as_json)


def _print_subscriptions(subscriptions: Sequence[topic_service_pb2.Subscription], as_json: bool) -> None:
    if as_json:
        for one in subscriptions:
            typer.echo(texts.json_line(one))
        return
    rows = [(one.topic_id, texts.clock_time(one.create_time)) for one in subscriptions]
    texts.table(("TOPIC", "SINCE"), rows)

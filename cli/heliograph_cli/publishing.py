"""What `heliograph publish` does: builds the request and sends it as a producer."""

from __future__ import annotations

import secrets
import time

import msgspec

from heliograph.ingest.v1 import ingest_service_pb2, ingest_service_pb2_grpc
from heliograph.type.v1 import event_pb2, notification_pb2
from heliograph_cli import texts
from heliograph_cli.connection import Actor, Reach, connect
from heliograph_cli.failures import USAGE, CommandFailed
from mesh import ids, times


class Draft(msgspec.Struct, frozen=True):
    """An event as the command line describes it; empty fields take the contract's defaults."""

    recipients: tuple[str, ...]
    title: str
    body: str = ""
    link: str = ""
    data_json: str = ""
    category: str = "general"
    priority: str = ""
    ttl: float = 0.0
    ordering_key: str = ""
    topics: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    request_id: str = ""
    validate_only: bool = False


async def publish(draft: Draft, actor: Actor, reach: Reach, as_json: bool) -> str:
    """Publishes and returns what to print: the event's id, or the whole answer as JSON.

    Raises:
        CommandFailed: it was refused or could not be sent.
    """
    request = build(draft)
    async with connect(reach) as connection:
        answer = await connection.call(
            "ingest", lambda channel: ingest_service_pb2_grpc.IngestServiceStub(channel).Publish, request, actor
        )
    if as_json:
        return texts.json_line(answer)
    if draft.validate_only:
        return "valid"
    return f"{answer.event_id}{'  (published before)' if answer.replayed else ''}"


def build(draft: Draft) -> ingest_service_pb2.PublishRequest:
    """Returns the request.

    Raises:
        CommandFailed: a value has no meaning.
    """
    event = event_pb2.Event(
        category=draft.category,
        audience=event_pb2.Audience(
            recipient_ids=draft.recipients, topic_ids=draft.topics, excluded_recipient_ids=draft.excluded
        ),
        content=notification_pb2.Content(
            title=draft.title, body=draft.body, link=draft.link, data_json=draft.data_json
        ),
        priority=priority_of(draft.priority),
        ordering_key=draft.ordering_key,
    )
    if draft.ttl:
        event.ttl.CopyFrom(times.duration_of(draft.ttl))
    fresh = ids.to_text(ids.uuid7(time.time_ns() // 1_000_000, secrets.token_bytes(10)))
    return ingest_service_pb2.PublishRequest(
        event=event, request_id=draft.request_id or fresh, validate_only=draft.validate_only
    )


def priority_of(name: str) -> notification_pb2.Priority.ValueType:
    """Returns a priority by its short name.

    Raises:
        CommandFailed: there is none of this name.
    """
    if not name:
        return notification_pb2.PRIORITY_UNSPECIFIED
    try:
        return notification_pb2.Priority.Value(f"PRIORITY_{name.upper()}")
    except ValueError:
        raise CommandFailed(f"--priority {name}: use high, normal or bulk", USAGE) from None

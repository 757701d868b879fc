"""What `heliograph publish` does: describes an event and has the SDK publish it as a producer."""

from __future__ import annotations

import json
from typing import cast

import msgspec

from heliograph_cli.connection import Actor, Reach, connect
from heliograph_cli.failures import USAGE, CommandFailed
from heliograph_client import EventFields, Publisher, Receipt
from heliograph_client.events import PriorityName

_PRIORITIES = ("", "high", "normal", "bulk")


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
        CommandFailed: a value has no meaning, or nothing runs there.
        Failure: it was refused or could not be sent.
    """
    fields = fields_of(draft)
    async with connect(reach) as connection, connection.publisher(actor) as publisher:
        receipt = await send(publisher, draft, fields)
    return render(receipt, draft.validate_only, as_json)


async def send(publisher: Publisher, draft: Draft, fields: EventFields) -> Receipt:
    """Publishes a draft with an open publisher."""
    return await publisher.publish(request_id=draft.request_id or None, validate_only=draft.validate_only, **fields)


def fields_of(draft: Draft) -> EventFields:
    """Returns the event in the SDK's keywords.

    Raises:
        CommandFailed: the priority does not exist.
    """
    if draft.priority not in _PRIORITIES:
        raise CommandFailed(f"--priority {draft.priority}: use high, normal or bulk", USAGE)
    fields = EventFields(
        category=draft.category,
        to=draft.recipients,
        topics=draft.topics,
        excluded=draft.excluded,
        title=draft.title,
        body=draft.body,
        link=draft.link,
        data=draft.data_json,
        ordering_key=draft.ordering_key,
    )
    if draft.priority:
        fields["priority"] = cast(PriorityName, draft.priority)
    if draft.ttl:
        fields["ttl"] = draft.ttl
    return fields


def render(receipt: Receipt, validated: bool, as_json: bool) -> str:
    """Returns a receipt as it is printed."""
    if as_json:
        words = {"eventId": receipt.event_id, "requestId": receipt.request_id, "replayed": receipt.replayed}
        return json.dumps({**words, "acceptTime": receipt.accept_time.isoformat()})
    if validated:
        return "valid"
    return f"{receipt.event_id}  (published before)" if receipt.replayed else receipt.event_id

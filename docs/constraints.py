"""Bounds of the contract's fields as JSON Schema says them, from the places in the code that enforce them.

What a schema cannot say (bytes, times, what belongs together) stands in the fields' comments. Must not hold a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from heliograph.ingest.v1.ingest_service_pb2 import BatchPublishRequest, PublishRequest
from svc_delivery import core as delivery
from svc_ingest import limits as ingest
from svc_prefs import mutes, topics

# Any: numbers and texts.
Bounds = dict[str, Any]

_RECIPIENT: Final = "^[A-Za-z0-9._@:+=-]*$"
_TOPIC: Final = "^[A-Za-z0-9._@:+=/-]*$"
_ALPHABETS: Final = {
    "heliograph.type.v1.Event.category": "^[a-z0-9_.-]*$",
    "heliograph.type.v1.Audience.recipient_ids": _RECIPIENT,
    "heliograph.type.v1.Audience.topic_ids": _TOPIC,
    "heliograph.type.v1.Audience.excluded_recipient_ids": _RECIPIENT,
}
# What a request cannot do without, beside what must not be empty.
_NEEDED: Final = (
    "heliograph.ingest.v1.PublishRequest.event",
    "heliograph.ingest.v1.BatchPublishRequest.requests",
    "heliograph.type.v1.Event.audience",
    "heliograph.type.v1.Event.content",
    "heliograph.delivery.v1.BatchMarkRequest.marks",
    "heliograph.type.v1.Mark.kind",
    "heliograph.type.v1.Mark.refs",
    "heliograph.prefs.v1.SubscribeRequest.topic_ids",
    "heliograph.prefs.v1.UnsubscribeRequest.topic_ids",
)


def _field(path: str, message: Descriptor) -> FieldDescriptor | None:
    """Follows a path like "event.content.title" through messages."""
    found: FieldDescriptor | None = None
    inside: Descriptor | None = message
    for name in path.split("."):
        found = None if inside is None else inside.fields_by_name.get(name)
        if found is None:
            return None
        inside = found.message_type
    return found


def _published() -> Iterator[tuple[FieldDescriptor, bool, ingest.Limit]]:
    """Yields the limits of Publish that are about a field, and whether they are about each of its items."""
    for limit in ingest.LIMITS:
        path, items = limit.applies_to.removesuffix("[i]"), limit.applies_to.endswith("[i]")
        for request in (PublishRequest.DESCRIPTOR, BatchPublishRequest.DESCRIPTOR):
            field = _field(path, request)
            if field is not None:
                yield field, items, limit


def _lengths(least: float, most: float) -> Bounds:
    return {**({"minLength": int(least)} if least else {}), "maxLength": int(most)}


def _counts(least: float, most: float) -> Bounds:
    return {**({"minItems": int(least)} if least else {}), "maxItems": int(most)}


def _constraints() -> dict[str, Bounds]:
    found = {
        "heliograph.delivery.v1.BatchMarkRequest.marks": _counts(1, delivery.MARKS_A_CALL),
        "heliograph.type.v1.Mark.refs": _counts(1, delivery.REFS_A_MARK),
        "heliograph.prefs.v1.Preferences.mutes": _counts(0, mutes.LARGEST_MUTES),
        "heliograph.prefs.v1.SubscribeRequest.topic_ids": _counts(1, topics.TOPICS_A_CALL),
        "heliograph.prefs.v1.UnsubscribeRequest.topic_ids": _counts(1, topics.TOPICS_A_CALL),
    }
    for field, items, limit in _published():
        if items:
            continue
        if limit.unit == "characters":
            alphabet = {"pattern": _ALPHABETS[field.full_name]} if field.full_name in _ALPHABETS else {}
            found[field.full_name] = {**_lengths(limit.least, limit.most), **alphabet}
        elif field.is_repeated:
            found[field.full_name] = _counts(limit.least, limit.most)
    return found


def _items() -> dict[str, Bounds]:
    topic = {**_lengths(1, mutes.TOPIC_CHARACTERS), "pattern": _TOPIC}
    found = {
        "heliograph.prefs.v1.SubscribeRequest.topic_ids": topic,
        "heliograph.prefs.v1.UnsubscribeRequest.topic_ids": topic,
    }
    for field, items, limit in _published():
        if items:
            found[field.full_name] = {**_lengths(limit.least, limit.most), "pattern": _ALPHABETS[field.full_name]}
    return found


# By a field's full name: bounds of the field itself, and of each item where it is a list.
CONSTRAINTS: Final[Mapping[str, Bounds]] = _constraints()
ITEMS: Final[Mapping[str, Bounds]] = _items()
REQUIRED: Final = frozenset({*_NEEDED, *(name for name, bounds in CONSTRAINTS.items() if bounds.get("minLength"))})

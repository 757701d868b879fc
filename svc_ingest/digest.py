"""The digest of what a producer sent: the same request always has the same one, another one never.

Path step 1. Protobuf bytes are not canonical, so they are never hashed: an explicit list of fields is, in an encoding
of our own. Repeats rely on it: whoever changes how a field is encoded raises DIGEST_VERSION. A field that is added gets
a part of its own at the end, only where it is not empty, so events without it keep their digest. Tenant, producer and
request id are not in it (the event id has them); a default that ingest fills in is not in it either.

Version 1 is BLAKE2b-256 over, big-endian:

    1 version · 4 priority as sent · 1 source (1: content) · 1 expiration (0 none, 1 expire_time, 2 ttl) · 8 + 4 its
    seconds and nanos · 1 event_time is there · 8 + 4 its seconds and nanos · 4 number of recipient ids, then the byte
    lengths, 4 each, of: category, recipient ids joined by newlines, ordering_key, title, body, link, data_json; then
    those texts in UTF-8; then each part that is there, in the order of its tag: 1 tag (1: topic ids, 2: excluded
    recipient ids) · 4 number of ids · 4 byte length · the ids joined by newlines in UTF-8.

Absent times are zeros. Ids are taken in the order sent, repeated ones included; no valid id has a newline.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final

from heliograph.type.v1 import event_pb2

DIGEST_VERSION: Final = 1

_HEAD = Struct(">BiBBqiBqiI7I")
_PART = Struct(">BII")
_CONTENT: Final = 1
_TOPICS: Final = 1
_EXCLUDED: Final = 2
_EXPIRATIONS: Final = {None: 0, "expire_time": 1, "ttl": 2}


def digest_of(event: event_pb2.Event) -> bytes:
    """Returns the 32-byte digest of an event that follows the rules."""
    recipient_ids = event.audience.recipient_ids
    content = event.content
    texts = (
        event.category.encode(),
        "\n".join(recipient_ids).encode(),
        event.ordering_key.encode(),
        content.title.encode(),
        content.body.encode(),
        content.link.encode(),
        content.data_json.encode(),
    )
    expiration = event.WhichOneof("expiration")
    span = event.ttl if expiration == "ttl" else event.expire_time
    event_time = event.event_time
    head = _HEAD.pack(
        DIGEST_VERSION,
        event.priority,
        _CONTENT,
        _EXPIRATIONS[expiration],
        span.seconds,
        span.nanos,
        event.HasField("event_time"),
        event_time.seconds,
        event_time.nanos,
        len(recipient_ids),
        *map(len, texts),
    )
    parts = (
        *_part(_TOPICS, event.audience.topic_ids),
        *_part(_EXCLUDED, event.audience.excluded_recipient_ids),
    )
    return blake2b(b"".join((head, *texts, *parts)), digest_size=32).digest()


def _part(tag: int, ids: Sequence[str]) -> tuple[bytes, ...]:
    if not ids:
        return ()
    text = "\n".join(ids).encode()
    return _PART.pack(tag, len(ids), len(text)), text

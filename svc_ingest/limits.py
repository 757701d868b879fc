"""How much a producer may send, and how long things are remembered: one table, read by core, tests and docs.

Must not decide anything. What the contract's comments promise to callers stands here as numbers.
"""

from __future__ import annotations

from typing import Final

import msgspec

CONTENT_BYTES: Final = 16 * 1024
TITLE_CHARACTERS: Final = 200
BODY_CHARACTERS: Final = 4_000
LINK_CHARACTERS: Final = 2_000
DATA_BYTES: Final = 8 * 1024
DATA_LEVELS: Final = 16
RECIPIENTS: Final = 10_000
RECIPIENT_CHARACTERS: Final = 128
EXCLUDED: Final = 10_000
TOPICS: Final = 10
TOPIC_CHARACTERS: Final = 128
CATEGORY_CHARACTERS: Final = 64
ORDERING_KEY_CHARACTERS: Final = 128
BATCH_ITEMS: Final = 500
VIOLATIONS: Final = 20

PAST_S: Final = 24 * 3600
FUTURE_S: Final = 60
USEFUL_DAYS: Final = 90
USEFUL_S: Final = USEFUL_DAYS * 24 * 3600

REQUEST_LEASE_S: Final = 10.0
REQUEST_LOG_WAIT_S: Final = 0.05
REQUEST_LOG_S: Final = 24 * 3600
LANE_DAYS: Final = 7
LANE_S: Final = LANE_DAYS * 24 * 3600


class Limit(msgspec.Struct, frozen=True):
    """One line of the table.

    Attributes:
        applies_to: the field as in the request, or what is limited.
        least: smallest allowed value; 0 where the field may be empty or absent.
        most: largest allowed value.
        unit: what is counted.
        reason: the ErrorReason of a refusal, or "" where nothing is refused.
    """

    applies_to: str
    least: float
    most: float
    unit: str
    reason: str


LIMITS: Final = (
    Limit("requests", 1, BATCH_ITEMS, "items", "FIELD_INVALID"),
    Limit("event.category", 1, CATEGORY_CHARACTERS, "characters", "FIELD_INVALID"),
    Limit("event.audience.recipient_ids", 0, RECIPIENTS, "ids", "AUDIENCE_TOO_LARGE"),
    Limit("event.audience.recipient_ids[i]", 1, RECIPIENT_CHARACTERS, "characters", "FIELD_INVALID"),
    Limit("event.audience.topic_ids", 0, TOPICS, "ids", "FIELD_INVALID"),
    Limit("event.audience.topic_ids[i]", 1, TOPIC_CHARACTERS, "characters", "FIELD_INVALID"),
    Limit("event.audience.excluded_recipient_ids", 0, EXCLUDED, "ids", "AUDIENCE_TOO_LARGE"),
    Limit("event.audience.excluded_recipient_ids[i]", 1, RECIPIENT_CHARACTERS, "characters", "FIELD_INVALID"),
    Limit("event.content", 0, CONTENT_BYTES, "bytes", "CONTENT_TOO_LARGE"),
    Limit("event.content.title", 1, TITLE_CHARACTERS, "characters", "FIELD_INVALID"),
    Limit("event.content.body", 0, BODY_CHARACTERS, "characters", "FIELD_INVALID"),
    Limit("event.content.link", 0, LINK_CHARACTERS, "characters", "FIELD_INVALID"),
    Limit("event.content.data_json", 0, DATA_BYTES, "bytes", "FIELD_INVALID"),
    Limit("event.content.data_json", 0, DATA_LEVELS, "levels", "FIELD_INVALID"),
    Limit("event.ordering_key", 0, ORDERING_KEY_CHARACTERS, "characters", "FIELD_INVALID"),
    Limit("event.ttl", 0, USEFUL_DAYS, "days", "FIELD_INVALID"),
    Limit("event.expire_time", 0, USEFUL_DAYS, "days ahead", "FIELD_INVALID"),
    Limit("event.event_time", 0, PAST_S, "seconds ago", "EVENT_TIME_INVALID"),
    Limit("event.event_time", 0, FUTURE_S, "seconds ahead", "EVENT_TIME_INVALID"),
    Limit("violations in one refusal", 0, VIOLATIONS, "violations", ""),
    Limit("lease of a request being worked on", 0, REQUEST_LEASE_S, "seconds", "REQUEST_PENDING"),
    Limit("wait for the request log", 0, REQUEST_LOG_WAIT_S, "seconds", ""),
    Limit("memory of the request log", 0, REQUEST_LOG_S, "seconds", ""),
    Limit("retention of the event lanes", 0, LANE_DAYS, "days", ""),
)

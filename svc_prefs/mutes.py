"""The rules of mutes: what may be muted, how an update changes mutes, and whether one stops an event.

Pure: no I/O, time is an argument. What a mute does to a decision is in `core`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from mesh.errors import Violation
from svc_prefs.registry import UNKNOWN, Registry

LARGEST_MUTES: Final = 200
TOPIC_CHARACTERS: Final = 128
TOPIC_RULE: Final = f"must be 1 to {TOPIC_CHARACTERS} characters out of A-Z a-z 0-9 . _ - @ : + = /"

# When a mute ends that has no end.
NEVER: Final = 1 << 63

# By category and topic, "" for any: when it ends, in microseconds.
Mutes: TypeAlias = Mapping[tuple[str, str], int]

_TOPIC = re.compile(rf"[A-Za-z0-9._@:+=/-]{{1,{TOPIC_CHARACTERS}}}")
_MICROS: Final = 1_000_000
_NANOS: Final = 1_000_000_000
# The last second of the year 9999, where timestamps end.
_LAST_SECOND: Final = 253_402_300_799


def is_topic(topic_id: str) -> bool:
    """Says whether this can be a topic's id."""
    return _TOPIC.fullmatch(topic_id) is not None


def read(mutes: Iterable[pb.Mute]) -> dict[tuple[str, str], int]:
    """Returns mutes by what they stop; of two for the same the later one counts."""
    return {
        (mute.category, mute.topic_id): _micros(mute.expire_time) if mute.HasField("expire_time") else NEVER
        for mute in mutes
    }


def write(mutes: Mutes) -> list[pb.Mute]:
    """Returns mutes as messages, ordered by category and topic."""
    return [_message(key, mutes[key]) for key in sorted(mutes)]


def check(registry: Registry, mutes: Iterable[pb.Mute]) -> Iterator[Violation]:
    """Yields what is wrong with the mutes of an update."""
    seen: set[tuple[str, str]] = set()
    for index, mute in enumerate(mutes):
        where = f"preferences.mutes[{index}]"
        if mute.category and mute.category not in registry:
            yield Violation(f"{where}.category", "must be a category of the registry, or empty")
        elif registry.get(mute.category, UNKNOWN).mandatory:
            yield Violation(f"{where}.category", f"{mute.category!r} is mandatory: it cannot be muted")
        if mute.topic_id and not is_topic(mute.topic_id):
            yield Violation(f"{where}.topic_id", f"{TOPIC_RULE}, or empty")
        if not mute.category and not mute.topic_id:
            yield Violation(where, "must name a category, a topic or both")
        elif (mute.category, mute.topic_id) in seen:
            yield Violation(where, "is named twice")
        if not (0 <= mute.expire_time.seconds <= _LAST_SECOND and 0 <= mute.expire_time.nanos < _NANOS):
            yield Violation(f"{where}.expire_time", "must be a time from 1970 to 9999")
        seen.add((mute.category, mute.topic_id))


def active(mutes: Mutes, now_us: int) -> dict[tuple[str, str], int]:
    """Returns the mutes that are not over."""
    return {key: end_us for key, end_us in mutes.items() if end_us > now_us}


def visible(registry: Registry, mutes: Mutes, now_us: int) -> dict[tuple[str, str], int]:
    """Returns the mutes that their recipient is shown: not over, and of categories that can be muted now."""
    return {
        (category, topic_id): end_us
        for (category, topic_id), end_us in active(mutes, now_us).items()
        if not category or (category in registry and not registry[category].mandatory)
    }


def end_of(mutes: Mutes, category: str, topic_id: str, now_us: int) -> int:
    """Returns until when mutes stop an event, 0 when none does.

    Several may: the event stays stopped until the last of them is over.

    Args:
        mutes: of the recipient.
        category: the event's.
        topic_id: the topic that leads to the recipient; "" when the event names the recipient.
        now_us: the time.
    """
    if not mutes:
        return 0
    end_us = mutes.get((category, ""), 0)
    if topic_id:
        end_us = max(end_us, mutes.get(("", topic_id), 0), mutes.get((category, topic_id), 0))
    return end_us if end_us > now_us else 0


def set_end(timestamp: Timestamp, end_us: int) -> None:
    """Sets a time to when mutes end; one that never comes leaves it absent."""
    if end_us < NEVER:
        timestamp.seconds, rest = divmod(end_us, _MICROS)
        timestamp.nanos = rest * 1_000
        timestamp.SetInParent()


def _micros(timestamp: Timestamp) -> int:
    return timestamp.seconds * _MICROS + timestamp.nanos // 1_000


def _message(key: tuple[str, str], end_us: int) -> pb.Mute:
    mute = pb.Mute(category=key[0], topic_id=key[1])
    set_end(mute.expire_time, end_us)
    return mute

"""What a hello, a mark and a change of topics may say, and the text of a cursor. Pure.

Must not know sessions. Step 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.gateway.v1.client_frames_pb2 import ClientMark, Hello
from heliograph.type.v1.notification_pb2 import MARK_KIND_UNSPECIFIED, Cursor, MarkKind, NotificationRef
from mesh.errors import InvalidArgument, Violation

_DEVICE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TOPIC = re.compile(r"[A-Za-z0-9._@:+=/-]{1,128}")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_CURSOR = re.compile(r"([0-9]{1,18})\.([\x21-\x7e]{1,128})")
_KINDS = frozenset(MarkKind.values()) - {MARK_KIND_UNSPECIFIED}
_MICROS = 1_000_000
_NANOS_A_MICRO = 1_000

LARGEST_REFS = 500
LARGEST_MARKS = 100
LONGEST_CLIENT_NAME = 100
LARGEST_TOPICS = 100


def invalid_frame(violations: list[Violation]) -> InvalidArgument:
    """The frame breaks rules; all of them are named."""
    text = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
    return InvalidArgument(text, reason="FIELD_INVALID", violations=violations)


def check_hello(hello: Hello) -> None:
    """Checks everything in a hello but its token and its cursor; raises InvalidArgument naming each violation."""
    violations = []
    if not _DEVICE.fullmatch(hello.device_id):
        violations.append(Violation("hello.device_id", "must be 1 to 128 characters out of A-Z a-z 0-9 . _ -"))
    if len(hello.client_name) > LONGEST_CLIENT_NAME:
        violations.append(Violation("hello.client_name", f"must have at most {LONGEST_CLIENT_NAME} characters"))
    if len(hello.received_refs) > LARGEST_REFS:
        violations.append(Violation("hello.received_refs", f"at most {LARGEST_REFS}, not {len(hello.received_refs)}"))
    violations += _check_refs(hello.received_refs, "hello.received_refs")
    if len(hello.unconfirmed_marks) > LARGEST_MARKS:
        violations.append(Violation("hello.unconfirmed_marks", f"at most {LARGEST_MARKS}"))
    for index, mark in enumerate(hello.unconfirmed_marks):
        violations += _check_mark(mark, f"hello.unconfirmed_marks[{index}]")
    if violations:
        raise invalid_frame(violations)


def check_mark(mark: ClientMark) -> None:
    """Checks a mark's kind and ids; raises InvalidArgument naming each violation."""
    violations = _check_mark(mark, "mark")
    if violations:
        raise invalid_frame(violations)


def check_topics(topic_ids: Sequence[str], field: str) -> None:
    """Checks the topics of a frame; raises InvalidArgument naming each violation.

    Args:
        topic_ids: what the client wrote.
        field: which frame, for the text.
    """
    violations = []
    if not 1 <= len(topic_ids) <= LARGEST_TOPICS:
        violations.append(Violation(f"{field}.topic_ids", f"must be 1 to {LARGEST_TOPICS}, not {len(topic_ids)}"))
    for index, topic_id in enumerate(topic_ids[:LARGEST_TOPICS]):
        if not _TOPIC.fullmatch(topic_id):
            rule = "must be 1 to 128 characters out of A-Z a-z 0-9 . _ - @ : + = /"
            violations.append(Violation(f"{field}.topic_ids[{index}]", rule))
            break
    if violations:
        raise invalid_frame(violations)


def _check_mark(mark: ClientMark, field: str) -> list[Violation]:
    violations = []
    if mark.kind not in _KINDS:
        violations.append(Violation(f"{field}.kind", "must be one of the known kinds"))
    if not 1 <= len(mark.refs) <= LARGEST_REFS:
        violations.append(Violation(f"{field}.refs", f"must be 1 to {LARGEST_REFS}, not {len(mark.refs)}"))
    return violations + _check_refs(mark.refs, f"{field}.refs")


def _check_refs(refs: Iterable[NotificationRef], field: str) -> list[Violation]:
    for index, ref in enumerate(refs):
        if not _ID.fullmatch(ref.notification_id) or ref.revision < 0:
            # The first is enough: hundreds of the same kind help nobody.
            return [Violation(f"{field}[{index}]", "needs a lower-case UUID and a revision that is not negative")]
    return []


def micros_of(stamp: Timestamp) -> int:
    """Returns a stamp in microseconds since 1970."""
    return stamp.seconds * _MICROS + stamp.nanos // _NANOS_A_MICRO


def cursor_text(epoch: str, stamp: int) -> str:
    """Returns what a client keeps of a cursor."""
    return f"{stamp}.{epoch}"


def read_cursor(text: str) -> tuple[str, int]:
    """Returns epoch and stamp of a cursor's text.

    Raises:
        InvalidArgument: it is none of ours (CURSOR_INVALID).
    """
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidArgument("the cursor is malformed; everything follows", reason="CURSOR_INVALID")
    return match[2], int(match[1])


def cursor_of(epoch: str, stamp: int) -> Cursor:
    """Returns a cursor's message."""
    seconds, rest = divmod(stamp, _MICROS)
    cursor = Cursor(epoch=epoch)
    cursor.stamp_time.seconds = seconds
    cursor.stamp_time.nanos = rest * _NANOS_A_MICRO
    return cursor

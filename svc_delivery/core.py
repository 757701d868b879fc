"""The rules of deliveries and marks: whose inbox a caller may see, what a mark does, what a follow-up needs next.

Path steps 8, 9 and 11. Pure: time is an argument, no I/O. What a window shows and what a replay sends is in `replay`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.errors import InvalidArgument, PermissionDenied, Unavailable, Violation
from mesh.ids import from_text, join_key, split_key, to_text
from svc_delivery.ports import AckLevel, MarkWrite, RowState

MARKS_A_CALL: Final = 500
REFS_A_MARK: Final = 500
REFS_A_CALL: Final = 5_000
KEYS_A_CALL: Final = 1_000
REPLAYS_A_CALL: Final = 100
RECEIVED_REFS: Final = 500
RETRY_DELAYS: Final = (10.0, 60.0, 600.0)
_LARGEST_ANSWER: Final = 20
_SECOND_US: Final = 1_000_000

# ---------------------------------------------------------------- failures


def invalid(violations: Sequence[Violation]) -> InvalidArgument:
    """The request breaks rules; all of them are named, up to a limit."""
    named = violations[:_LARGEST_ANSWER]
    text = "; ".join(f"{violation.field}: {violation.description}" for violation in named)
    return InvalidArgument(text, reason="FIELD_INVALID", violations=named)


def not_allowed(caller: str, recipient: str) -> PermissionDenied:
    """The caller may not act for this recipient."""
    return PermissionDenied(
        f"{caller} may not act for {recipient}",
        reason="CALLER_NOT_ALLOWED",
        metadata={"caller": caller, "recipient": recipient},
    )


def too_slow(limit: float) -> Unavailable:
    """The store answers, but so late that nothing it says counts."""
    return Unavailable(
        f"the inbox store did not answer within {limit:g} s, several times in a row",
        reason="STORE_UNAVAILABLE",
        metadata={"limit_seconds": f"{limit:g}"},
        retry_delay=limit,
    )


# ---------------------------------------------------------------- whose inbox


class Asker(msgspec.Struct, frozen=True, gc=False):
    """Who asks: "recipient", "operator" or "gateway", with its name and, of a recipient, its tenant."""

    role: str
    name: str
    tenant_id: str


def inbox_of(asker: Asker, *, recipient_id: str, tenant_id: str) -> str:
    """Returns the key of the inbox that a recipient or an operator asks for.

    Raises:
        PermissionDenied: a recipient names another one or another tenant.
        InvalidArgument: an operator does not name tenant and recipient.
    """
    if asker.role == "recipient":
        if recipient_id not in ("", asker.name) or tenant_id not in ("", asker.tenant_id):
            raise not_allowed(asker.name, join_key(tenant_id or asker.tenant_id, recipient_id or asker.name))
        return join_key(asker.tenant_id, asker.name)
    named = {"tenant_id": tenant_id, "recipient_id": recipient_id}
    if missing := [Violation(field, "must be given") for field, value in named.items() if not value]:
        raise invalid(missing)
    return join_key(tenant_id, recipient_id)


def is_recipient_key(key: str) -> bool:
    """Whether this is an escaped "tenant/recipient"."""
    try:
        parts = split_key(key)
    except ValueError:
        return False
    return len(parts) == 2 and all(parts)


def check_replays(count: int) -> None:
    """Checks how many replays a call asks for.

    Raises:
        InvalidArgument: none or too many.
    """
    if not 1 <= count <= REPLAYS_A_CALL:
        raise invalid([Violation("requests", f"must be 1 to {REPLAYS_A_CALL}")])


def check_keys(recipient_keys: Sequence[str]) -> None:
    """Checks the keys of a batch.

    Raises:
        InvalidArgument: there are none or too many, or one is malformed.
    """
    if not 1 <= len(recipient_keys) <= KEYS_A_CALL:
        raise invalid([Violation("recipient_keys", f"must be 1 to {KEYS_A_CALL}")])
    wrong = [
        Violation(f"recipient_keys[{index}]", 'must be an escaped "tenant/recipient"')
        for index, key in enumerate(recipient_keys)
        if not is_recipient_key(key)
    ]
    if wrong:
        raise invalid(wrong)


# ---------------------------------------------------------------- states and marks


def state_of(row: RowState) -> notification_pb2.NotificationState.ValueType:
    """Returns the state that clients are shown."""
    if row.hidden:
        return notification_pb2.NOTIFICATION_STATE_HIDDEN
    if row.read:
        return notification_pb2.NOTIFICATION_STATE_READ
    if row.ack >= AckLevel.SEEN:
        return notification_pb2.NOTIFICATION_STATE_SEEN
    if row.ack >= AckLevel.RECEIVED:
        return notification_pb2.NOTIFICATION_STATE_RECEIVED
    return notification_pb2.NOTIFICATION_STATE_NEW


class _Effect(msgspec.Struct, frozen=True, gc=False):
    ack: AckLevel = AckLevel.NONE
    read: bool | None = None
    hide: bool = False


_EFFECTS: Final[Mapping[int, _Effect]] = {
    notification_pb2.MARK_KIND_RECEIVED: _Effect(ack=AckLevel.RECEIVED),
    notification_pb2.MARK_KIND_FOREGROUND: _Effect(ack=AckLevel.FOREGROUND),
    notification_pb2.MARK_KIND_SEEN: _Effect(ack=AckLevel.SEEN),
    notification_pb2.MARK_KIND_READ: _Effect(ack=AckLevel.SEEN, read=True),
    notification_pb2.MARK_KIND_UNREAD: _Effect(read=False),
    notification_pb2.MARK_KIND_HIDDEN: _Effect(hide=True),
}


def plan_marks(marks: Sequence[notification_pb2.Mark], asker: Asker) -> list[MarkWrite]:
    """Returns what marks do to rows. A gateway vouches for its ids and may mark for any recipient.

    Raises:
        InvalidArgument: counts, a kind, a key or an id is wrong; nothing of the call is stored.
        PermissionDenied: a recipient marks for another one.
    """
    if not 1 <= len(marks) <= MARKS_A_CALL:
        raise invalid([Violation("marks", f"must be 1 to {MARKS_A_CALL}")])
    if sum(len(mark.refs) for mark in marks) > REFS_A_CALL:
        raise invalid([Violation("marks", f"must have at most {REFS_A_CALL} refs in all")])
    violations: list[Violation] = []
    planned = [_plan_mark(mark, f"marks[{index}]", asker, violations) for index, mark in enumerate(marks)]
    if violations:
        raise invalid(violations)
    return planned


def sift_marks(
    marks: Sequence[notification_pb2.Mark], asker: Asker
) -> tuple[list[notification_pb2.Mark], list[MarkWrite], list[Violation]]:
    """Returns the marks that can be stored, what they do to rows, and what is wrong with the others.

    For marks that nobody waits for: one malformed mark must not hold up those behind it.
    """
    kept: list[notification_pb2.Mark] = []
    planned: list[MarkWrite] = []
    wrong: list[Violation] = []
    for index, mark in enumerate(marks):
        violations: list[Violation] = []
        write = _plan_mark(mark, f"marks[{index}]", asker, violations)
        if violations:
            wrong += violations
        else:
            kept.append(mark)
            planned.append(write)
    return kept, planned, wrong


def _plan_mark(mark: notification_pb2.Mark, field: str, asker: Asker, violations: list[Violation]) -> MarkWrite:
    key = mark.recipient_key
    if asker.role == "recipient":
        own = join_key(asker.tenant_id, asker.name)
        if key not in ("", own):
            raise not_allowed(asker.name, key)
        key = own
    elif not is_recipient_key(key):
        violations.append(Violation(f"{field}.recipient_key", 'must be an escaped "tenant/recipient"'))
    effect = _EFFECTS.get(mark.kind)
    if effect is None:
        violations.append(Violation(f"{field}.kind", "must be a kind of mark that this server knows"))
        effect = _Effect()
    if not 1 <= len(mark.refs) <= REFS_A_MARK:
        violations.append(Violation(f"{field}.refs", f"must be 1 to {REFS_A_MARK}"))
    ids = ids_of(mark.refs, f"{field}.refs", violations)
    return MarkWrite(key, ids, effect.ack, effect.read, effect.hide, vouched=asker.role == "gateway")


def ids_of(refs: Sequence[notification_pb2.NotificationRef], field: str, violations: list[Violation]) -> list[bytes]:
    """Returns the ids that refs name; adds a violation for each malformed one."""
    ids: list[bytes] = []
    for index, ref in enumerate(refs):
        try:
            ids.append(from_text(ref.notification_id))
        except ValueError:
            violations.append(Violation(f"{field}[{index}].notification_id", "must be lower-case UUID text"))
        if ref.revision < 0:
            violations.append(Violation(f"{field}[{index}].revision", "must not be negative"))
    return ids


def received_of(refs: Sequence[notification_pb2.NotificationRef]) -> Mapping[bytes, int]:
    """Returns the revisions that a client has, by id.

    Raises:
        InvalidArgument: there are too many, or one is malformed.
    """
    violations: list[Violation] = []
    if len(refs) > RECEIVED_REFS:
        violations.append(Violation("received_refs", f"must be at most {RECEIVED_REFS}"))
    ids = ids_of(refs, "received_refs", violations)
    if violations:
        raise invalid(violations)
    return dict(zip(ids, (ref.revision for ref in refs), strict=True))


def ref_of(row: RowState) -> notification_pb2.NotificationRef:
    """Names the stored revision of a row."""
    return notification_pb2.NotificationRef(notification_id=to_text(row.notification_id), revision=row.revision)


def by_state(
    rows: Sequence[RowState],
) -> Mapping[notification_pb2.NotificationState.ValueType, list[notification_pb2.NotificationRef]]:
    """Groups changed rows by the state that they are in now; the last word on a row counts."""
    latest = {row.notification_id: row for row in rows}
    groups: dict[notification_pb2.NotificationState.ValueType, list[notification_pb2.NotificationRef]] = {}
    for row in latest.values():
        groups.setdefault(state_of(row), []).append(ref_of(row))
    return groups


# ---------------------------------------------------------------- follow-ups


class Done(msgspec.Struct, frozen=True, gc=False):
    """Nothing is left to do: "ACKED", "HIDDEN", "EXPIRED", "TRIMMED" or "RESTS" (in the inbox)."""

    reason: str


class OfferAgain(msgspec.Struct, frozen=True, gc=False):
    """Offer it to the recipient's sessions; look again then, with this number of tries, or never again."""

    due_us: int | None
    try_count: int


class LookAgain(msgspec.Struct, frozen=True, gc=False):
    """Nobody could say where the recipient is: that is no try, look again then."""

    due_us: int


NextStep: TypeAlias = Done | OfferAgain | LookAgain


def first_due(now_us: int, plan: plan_pb2.Plan, delays: Sequence[float] = RETRY_DELAYS) -> int | None:
    """Returns when a plan's rows are to be looked at first; None when being in the inbox is all it asks for."""
    for step in plan.steps:
        if step.channel == notification_pb2.CHANNEL_LIVE:
            window = step.ack_window
            seconds = window.seconds + window.nanos / 1e9 if step.HasField("ack_window") else delays[0]
            return now_us + round(seconds * _SECOND_US)
    return None


def next_step(
    *,
    plan: plan_pb2.Plan,
    try_count: int,
    row: RowState | None,
    present: bool | None,
    now_us: int,
    delays: Sequence[float] = RETRY_DELAYS,
) -> NextStep:
    """Decides what a due follow-up needs.

    Live has no dead letters: after the last try, or when nobody is there, the row rests in the inbox.

    Args:
        plan: the delivery's channels.
        try_count: how often it was offered again so far.
        row: its cells; None when it is not there any more.
        present: whether the recipient has a session; None when presence did not answer.
        now_us: wall clock.
        delays: seconds from one look to the next.
    """
    if row is None:
        return Done("TRIMMED")
    if row.hidden:
        return Done("HIDDEN")
    if row.read or row.ack >= AckLevel.RECEIVED:
        return Done("ACKED")
    if row.expire_us <= now_us:
        return Done("EXPIRED")
    if all(step.channel != notification_pb2.CHANNEL_LIVE for step in plan.steps):
        return Done("RESTS")
    if present is None:
        return LookAgain(now_us + round(delays[0] * _SECOND_US))
    if not present or try_count >= len(delays):
        return Done("RESTS")
    due_us = now_us + round(delays[try_count + 1] * _SECOND_US) if try_count + 1 < len(delays) else None
    return OfferAgain(due_us, try_count + 1)

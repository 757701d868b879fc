"""Failure categories: what went wrong, whether the caller may retry, whether somebody must look.

Pure: no I/O and no gRPC, so the rules in a service's core may raise them. A failure is a category (the gRPC status
code's number), a stable `reason`, the variable parts as metadata, and, where they apply, violations and a delay.
Must not know the reasons of any contract, and must not translate to a status: that is `mesh.status`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

_NANOS = 1_000_000_000

M = TypeVar("M")


class StartError(Exception):
    """A process cannot start. The text is one line: what and where, then what to do about it."""


class Violation(msgspec.Struct, frozen=True):
    """One broken rule of a request: the path of the field and what it must be instead."""

    field: str
    description: str


class Failure(Exception):
    """Base of all categories. Raise a subclass.

    Attributes:
        code: number of the gRPC status code.
        retriable: a caller may repeat a call that is safe to repeat.
        alert: somebody must look when it is raised; otherwise it is only counted.
        message: text for a developer; may be reworded at any time.
        reason: stable name of the cause, UPPER_SNAKE; callers may branch on it.
        metadata: every variable part of the message, by name.
        violations: all broken rules of the request at once.
        retry_delay: seconds after which a repetition may help, or None.
        outcome_unknown: what was asked for may have been done all the same; never sent, the caller's side finds it.
    """

    code: ClassVar[int] = 2
    retriable: ClassVar[bool] = False
    alert: ClassVar[bool] = False
    outcome_unknown: bool = False

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_delay: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata: Mapping[str, str] = dict(metadata) if metadata else {}
        self.violations = tuple(violations)
        self.retry_delay = retry_delay

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.reason else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own reduce passes the positional arguments only, and `reason` has none.
        given = (type(self), self.message, self.reason, self.metadata, self.violations, self.retry_delay)
        return _rebuild, (*given, self.outcome_unknown)


def _rebuild(
    kind: type[Failure],
    message: str,
    reason: str,
    metadata: Mapping[str, str],
    violations: tuple[Violation, ...],
    retry_delay: float | None,
    outcome_unknown: bool,
) -> Failure:
    built = kind(message, reason=reason, metadata=metadata, violations=violations, retry_delay=retry_delay)
    built.outcome_unknown = outcome_unknown
    return built


class Cancelled(Failure):
    """The caller gave the call up."""

    code = 1


class Unknown(Failure):
    """The other side answered with something that has no better category."""

    code = 2
    alert = True


class InvalidArgument(Failure):
    """The request is wrong whatever the state of the system."""

    code = 3


class DeadlineExceeded(Failure):
    """The call's time is over; it may or may not have been done."""

    code = 4


class NotFound(Failure):
    """What the request names does not exist."""

    code = 5


class AlreadyExists(Failure):
    """What the request wants to make exists with another content."""

    code = 6


class PermissionDenied(Failure):
    """The caller is known and may not do this."""

    code = 7


class ResourceExhausted(Failure):
    """A quota or a bounded queue is full."""

    code = 8


class FailedPrecondition(Failure):
    """The system is not in the state the request needs; repeating it unchanged will not help."""

    code = 9


class Aborted(Failure):
    """Another change came between; start again from the read."""

    code = 10


class OutOfRange(Failure):
    """The request points past what exists."""

    code = 11


class Unimplemented(Failure):
    """The method or the requested variant is not there."""

    code = 12


class Internal(Failure):
    """A bug or a broken invariant on this side."""

    code = 13
    alert = True


class Unavailable(Failure):
    """Not now: a peer or a store cannot be reached; a call that is safe to repeat may be repeated."""

    code = 14
    retriable = True


class DataLoss(Failure):
    """Stored data is damaged."""

    code = 15
    alert = True


class Unauthenticated(Failure):
    """The caller did not prove who it is."""

    code = 16


_CATEGORIES: Mapping[int, type[Failure]] = {
    kind.code: kind
    for kind in (
        Cancelled,
        Unknown,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
        Unauthenticated,
    )
}


def category(code: int) -> type[Failure]:
    """Returns the category with this status code; a number that is no error code is Unknown."""
    return _CATEGORIES.get(code, Unknown)


def describe(failure: Failure, into: M) -> M:
    """Fills a message that carries a failure where a status cannot travel, and returns it.

    Args:
        failure: what happened.
        into: an empty message with the fields code, reason, message, metadata (map of strings), violations (repeated:
            field, description) and retry_delay (a duration: seconds, nanos).
    """
    # Any: the message's type belongs to a contract this package must not know.
    message: Any = into
    message.code = failure.code
    message.reason = failure.reason
    message.message = failure.message
    for name, value in failure.metadata.items():
        message.metadata[name] = value
    for violation in failure.violations:
        message.violations.add(field=violation.field, description=violation.description)
    if failure.retry_delay is not None:
        seconds, nanos = _split_seconds(failure.retry_delay)
        message.retry_delay.seconds = seconds
        message.retry_delay.nanos = nanos
        # Zero is a delay too, and assigning zero to a field does not make its message present.
        message.retry_delay.SetInParent()
    return into


def from_description(message: Any) -> Failure:
    """Returns the failure that such a message describes: the reverse of `describe`."""
    delay: float | None = None
    if message.HasField("retry_delay"):
        delay = message.retry_delay.seconds + message.retry_delay.nanos / _NANOS
    return category(message.code)(
        message.message,
        reason=message.reason,
        metadata=dict(message.metadata),
        violations=[Violation(field=item.field, description=item.description) for item in message.violations],
        retry_delay=delay,
    )


def _split_seconds(value: float) -> tuple[int, int]:
    """Splits seconds as a duration does: both parts carry the sign."""
    nanos = round(math.fabs(value) * _NANOS)
    sign = -1 if value < 0 else 1
    return sign * (nanos // _NANOS), sign * (nanos % _NANOS)

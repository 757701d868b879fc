"""Failures to gRPC statuses with typed details, and back.

The only importer of `google.rpc`. Must not decide what failed: that is a `mesh.errors.Failure` already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from mesh import errors, times
from mesh.errors import Failure, Violation

DOMAIN = "heliograph"

# For callers over HTTP: trailers of an answer without a message are its headers.
_DELAY_HEADER = "retry-after"
_DETAILS_KEY = "grpc-status-details-bin"
_LONGEST_TEXT = 1024
# Peers cut off or refuse metadata above 8 KiB; the status travels in it as base64, and its text once more.
_LARGEST_STATUS = 4096


def to_status(failure: Failure) -> status_pb2.Status:
    """Returns a failure as a status: ErrorInfo always, BadRequest and RetryInfo when they apply, each at most once.

    Texts are single lines. What does not fit into the metadata of an answer is left out: the last violations first,
    then the failure's metadata.
    """
    violations = [Violation(_clean(item.field), _clean(item.description)) for item in failure.violations]
    metadata = {_clean(name): _clean(value) for name, value in failure.metadata.items()}
    status = _build(failure, metadata, violations)
    while violations and status.ByteSize() > _LARGEST_STATUS:
        violations = violations[: len(violations) // 2]
        status = _build(failure, metadata, violations)
    if status.ByteSize() > _LARGEST_STATUS:
        status = _build(failure, {}, violations)
    return status


class Ending(NamedTuple):
    """How a gRPC call ends; what `abort_with_status` takes."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def to_ending(failure: Failure) -> Ending:
    """Returns how a call that failed ends: the status, and `retry-after` in whole seconds when there is a delay."""
    made = rpc_status.to_status(to_status(failure))
    trailing = tuple(made.trailing_metadata or ())
    if failure.retry_delay is not None:
        trailing = (*trailing, (_DELAY_HEADER, str(math.ceil(max(0.0, failure.retry_delay)))))
    return Ending(made.code, made.details, trailing)


def from_call(error: grpc.aio.AioRpcError) -> Failure:
    """Returns the failure that a call ended with: the category by its code, the rest from its details, if any.

    Details of another domain are not ours to interpret: their failure has an empty reason.
    """
    code, text = error.code().value[0], error.details() or ""
    try:
        return _interpret(code, text, _details(error))
    except DecodeError:
        # A broken peer still gives its code and text.
        return _interpret(code, text, ())


def _interpret(code: int, text: str, details: Iterable[Any]) -> Failure:
    reason, metadata, violations, delay = "", dict[str, str](), list[Violation](), None
    for detail in details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo.FromString(detail.value)
            if info.domain == DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            request = error_details_pb2.BadRequest.FromString(detail.value)
            violations = [Violation(item.field, item.description) for item in request.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = times.seconds_of(error_details_pb2.RetryInfo.FromString(detail.value).retry_delay)
    return errors.category(code)(text, reason=reason, metadata=metadata, violations=violations, retry_delay=delay)


def _build(failure: Failure, metadata: Mapping[str, str], violations: Iterable[Violation]) -> status_pb2.Status:
    status = status_pb2.Status(code=failure.code, message=_clean(failure.message))
    info = error_details_pb2.ErrorInfo(reason=_clean(failure.reason), domain=DOMAIN, metadata=metadata)
    status.details.add().Pack(info)
    request = error_details_pb2.BadRequest()
    for item in violations:
        request.field_violations.add(field=item.field, description=item.description)
    if request.field_violations:
        status.details.add().Pack(request)
    if failure.retry_delay is not None:
        delay = times.duration_of(failure.retry_delay)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _details(error: grpc.aio.AioRpcError) -> Iterable[Any]:
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            details: Iterable[Any] = status_pb2.Status.FromString(value).details
            return details
    return ()


def _clean(text: str) -> str:
    """Makes a text one printable line that protobuf and a log accept, of bounded length."""
    line = " ".join(text[: 4 * _LONGEST_TEXT].split())
    line = "".join([character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line])
    return line if len(line) <= _LONGEST_TEXT else line[: _LONGEST_TEXT - 1] + "…"

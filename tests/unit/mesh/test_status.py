"""Failures through gRPC statuses: typed details, safe texts, bounded size, and the way back."""

from __future__ import annotations

import ast
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from mesh import errors, status
from mesh.errors import Failure, Violation


def _details(message: status_pb2.Status) -> dict[str, bytes]:
    kinds = [detail.TypeName().removeprefix("google.rpc.") for detail in message.details]
    assert len(kinds) == len(set(kinds)), "each kind of detail at most once"
    return {kind: detail.value for kind, detail in zip(kinds, message.details, strict=True)}


def _call_error(
    code: grpc.StatusCode, text: str | None, trailing: list[tuple[str, str | bytes]] | None = None
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*(trailing or [])), details=text)


def _over_the_wire(failure: Failure) -> Failure:
    """Does what a server and a client do with a failure, without the wire itself."""
    sent = status.to_ending(failure)
    return status.from_call(_call_error(sent.code, sent.details, list(sent.trailing_metadata)))


def test_error_info_is_always_there() -> None:
    """The reason, our domain and the variable parts travel in ErrorInfo; nothing else is added."""
    message = status.to_status(errors.NotFound("no topic t1", reason="TOPIC_UNKNOWN", metadata={"topic": "t1"}))
    details = _details(message)
    assert (message.code, message.message, set(details)) == (5, "no topic t1", {"ErrorInfo"})
    info = error_details_pb2.ErrorInfo.FromString(details["ErrorInfo"])
    assert (info.reason, info.domain, dict(info.metadata)) == ("TOPIC_UNKNOWN", "heliograph", {"topic": "t1"})


def test_violations_and_delay_have_their_own_details() -> None:
    """Violations travel as BadRequest, a delay as RetryInfo."""
    details = _details(
        status.to_status(
            errors.ResourceExhausted("slow down", reason="X", violations=[Violation("a.b", "bad")], retry_delay=1.5)
        )
    )
    assert set(details) == {"ErrorInfo", "BadRequest", "RetryInfo"}
    request = error_details_pb2.BadRequest.FromString(details["BadRequest"])
    assert [(item.field, item.description) for item in request.field_violations] == [("a.b", "bad")]
    delay = error_details_pb2.RetryInfo.FromString(details["RetryInfo"]).retry_delay
    assert delay == Duration(seconds=1, nanos=500_000_000)


@pytest.mark.parametrize(
    ("delay", "header"), [(None, None), (0.0, "0"), (0.001, "1"), (1.0, "1"), (99.2, "100"), (-1.0, "0")]
)
def test_a_delay_is_a_header_too(delay: float | None, header: str | None) -> None:
    """In whole seconds, never less than the delay; without one there is no header."""
    ending = status.to_ending(errors.Unavailable("later", reason="DRAINING", retry_delay=delay))
    assert (ending.code, ending.details) == (grpc.StatusCode.UNAVAILABLE, "later")
    trailing = dict(ending.trailing_metadata)
    assert trailing.get("retry-after") == header
    assert "grpc-status-details-bin" in trailing


@pytest.mark.parametrize("code", range(1, 17))
def test_every_category_comes_back(code: int) -> None:
    """What a service raises is what its caller catches, in each category."""
    failure = errors.category(code)(
        "what happened",
        reason="SOME_REASON",
        metadata={"name": "Łódź"},
        violations=[Violation("x[0].y", "too long")],
        retry_delay=0.0,
    )
    back = _over_the_wire(failure)
    assert type(back) is type(failure)
    assert (back.message, back.reason, back.metadata) == (failure.message, failure.reason, failure.metadata)
    assert (back.violations, back.retry_delay) == (failure.violations, failure.retry_delay)


@pytest.mark.parametrize("text", ["a\nb", "a\r\n b", "a\x00b", "\x1b[2Jx", "\x9bx", "a\u2028b", "\ud800"])
def test_texts_are_single_printable_lines(text: str) -> None:
    """Nothing that was copied into a text can break a line, drive a terminal, or fail to be encoded."""
    failure = errors.InvalidArgument(text, reason="X", metadata={"k": text}, violations=[Violation(text, text)])
    back = _over_the_wire(failure)
    for part in (back.message, back.metadata["k"], back.violations[0].field, back.violations[0].description):
        assert part.isprintable()
        assert part


def test_the_status_fits_into_metadata() -> None:
    """However much is wrong, the answer arrives: what is too much is left out, the reason stays."""
    failure = errors.InvalidArgument(
        "x" * 100_000,
        reason="FIELD_INVALID",
        metadata={f"key{number}": "v" * 5000 for number in range(50)},
        violations=[Violation(f"field{number}", "d" * 5000) for number in range(500)],
    )
    message = status.to_status(failure)
    assert message.ByteSize() <= 4096
    assert _over_the_wire(failure).reason == "FIELD_INVALID"


def test_many_short_violations_are_cut_at_the_end() -> None:
    """The first violations are kept, with the metadata, when not all fit."""
    violations = [Violation(f"recipients[{number}]", "is empty") for number in range(1000)]
    back = _over_the_wire(errors.InvalidArgument("bad", reason="X", metadata={"a": "b"}, violations=violations))
    assert 50 < len(back.violations) < 1000
    assert list(back.violations) == violations[: len(back.violations)]
    assert back.metadata == {"a": "b"}


def test_a_status_without_details_gives_its_category() -> None:
    """A proxy's or library's own error has a code and a text, and an empty reason."""
    back = status.from_call(_call_error(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert isinstance(back, errors.Unavailable)
    assert (back.message, back.reason, back.retriable) == ("connection refused", "", True)
    assert status.from_call(_call_error(grpc.StatusCode.INTERNAL, None)).message == ""


def _broken_inside() -> bytes:
    message = status_pb2.Status(code=10)
    message.details.add().Pack(error_details_pb2.ErrorInfo(reason="A", domain="heliograph"))
    message.details[0].value = b"\xff\xff"
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("value", [b"\xff\xff", "text", _broken_inside()])
def test_broken_details_do_not_hide_the_code(value: str | bytes) -> None:
    """A peer whose details cannot be parsed is still understood by its code."""
    back = status.from_call(_call_error(grpc.StatusCode.ABORTED, "x", [("grpc-status-details-bin", value)]))
    assert isinstance(back, errors.Aborted)
    assert back.reason == ""


def test_reasons_of_other_domains_are_not_ours() -> None:
    """A reason means something only within its domain."""
    message = status_pb2.Status(code=7, message="x")
    message.details.add().Pack(error_details_pb2.ErrorInfo(reason="CALLER_NOT_ALLOWED", domain="example.org"))
    sent = rpc_status.to_status(message)
    assert sent.trailing_metadata is not None
    back = status.from_call(_call_error(sent.code, sent.details, list(sent.trailing_metadata)))
    assert (type(back), back.reason) == (errors.PermissionDenied, "")


def test_only_this_module_imports_google_rpc() -> None:
    """The untyped package stays behind one module of ours."""
    importers = set()
    for file in Path(status.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if any(name.startswith("google.rpc") for name in names):
                importers.add(file.name)
    assert importers == {"status.py"}

"""Failure categories: numbers, properties, and the way through a message and back."""

from __future__ import annotations

import copy
import pickle

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory
from google.protobuf.message import Message

from mesh import errors
from mesh.errors import Failure, InvalidArgument, NotFound, ResourceExhausted, Unavailable, Violation

_FIELD = descriptor_pb2.FieldDescriptorProto


def _refusal() -> Message:
    """Builds an empty message shaped like the contract's, which this package must not import."""
    file = descriptor_pb2.FileDescriptorProto(name="shape.proto", package="shape", syntax="proto3")
    file.dependency.append(duration_pb2.DESCRIPTOR.name)
    violation = file.message_type.add(name="Violation")
    for number, name in enumerate(("field", "description"), 1):
        violation.field.add(name=name, number=number, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    refusal = file.message_type.add(name="Refusal")
    entry = refusal.nested_type.add(name="MetadataEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    one, many = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
    refusal.field.add(name="code", number=1, type=_FIELD.TYPE_INT32, label=one)
    refusal.field.add(name="reason", number=2, type=_FIELD.TYPE_STRING, label=one)
    refusal.field.add(name="message", number=3, type=_FIELD.TYPE_STRING, label=one)
    nested = _FIELD.TYPE_MESSAGE
    refusal.field.add(name="metadata", number=4, type=nested, label=many, type_name=".shape.Refusal.MetadataEntry")
    refusal.field.add(name="violations", number=5, type=nested, label=many, type_name=".shape.Violation")
    refusal.field.add(name="retry_delay", number=6, type=nested, label=one, type_name=".google.protobuf.Duration")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shape.Refusal"))()


def _parts(failure: Failure) -> tuple[object, ...]:
    return (
        type(failure),
        failure.message,
        failure.reason,
        dict(failure.metadata),
        failure.violations,
        failure.retry_delay,
    )


def test_every_grpc_error_code_has_its_category() -> None:
    """Every status code of gRPC except OK maps to a category with that number and that name."""
    for status in grpc.StatusCode:
        number, _ = status.value
        if number != 0:
            kind = errors.category(number)
            assert kind.code == number
            assert kind.__name__.lower() == status.name.replace("_", "").lower()


@pytest.mark.parametrize("code", [0, 17, -1, 404])
def test_a_number_that_is_no_error_code_is_unknown(code: int) -> None:
    """A code from a newer or broken peer still gives a failure to raise."""
    assert errors.category(code) is errors.Unknown


def test_only_unavailable_may_be_retried() -> None:
    """Automatic retries are for UNAVAILABLE alone."""
    assert [code for code in range(1, 17) if errors.category(code).retriable] == [14]


def test_bugs_and_damage_alert_and_refusals_do_not() -> None:
    """Somebody is called for what no caller can have caused."""
    assert {errors.category(code).__name__ for code in range(1, 17) if errors.category(code).alert} == {
        "Unknown",
        "Internal",
        "DataLoss",
    }


def test_describe_and_back_keeps_everything() -> None:
    """A failure survives the way through a message: category, reason, text, data, violations and delay."""
    failure = ResourceExhausted(
        "too much",
        reason="QUOTA_EXCEEDED",
        metadata={"limit": "500", "name": "ä/%"},
        violations=[Violation("a.b", "too long"), Violation("c", "missing")],
        retry_delay=1.25,
    )
    message = _refusal()
    assert errors.describe(failure, message) is message
    copied = type(message).FromString(message.SerializeToString())
    assert _parts(errors.from_description(copied)) == _parts(failure)


@pytest.mark.parametrize("delay", [None, 0.0, 0.5, 3600.0])
def test_no_delay_and_a_delay_of_zero_stay_different(delay: float | None) -> None:
    """Zero says "at once"; None says that waiting does not help."""
    message = errors.describe(Unavailable("later", reason="X", retry_delay=delay), _refusal())
    copied = type(message).FromString(message.SerializeToString())
    assert errors.from_description(copied).retry_delay == delay


def test_a_failure_can_be_copied_and_pickled() -> None:
    """Process pools and test runners pickle exceptions; the keyword arguments must come along."""
    failure = InvalidArgument("bad", reason="FIELD_INVALID", metadata={"a": "b"}, violations=[Violation("x", "y")])
    for twin in (copy.copy(failure), pickle.loads(pickle.dumps(failure))):
        assert _parts(twin) == _parts(failure)


def test_the_metadata_is_a_copy() -> None:
    """A failure does not change when the dictionary it was made from does."""
    data = {"id": "1"}
    failure = NotFound("gone", reason="NOTIFICATION_UNKNOWN", metadata=data)
    data["id"] = "2"
    assert failure.metadata == {"id": "1"}


def test_text_shows_reason_and_message() -> None:
    """A logged failure names its reason first."""
    assert str(NotFound("gone", reason="TOPIC_UNKNOWN")) == "TOPIC_UNKNOWN: gone"
    assert str(NotFound("gone", reason="")) == "gone"

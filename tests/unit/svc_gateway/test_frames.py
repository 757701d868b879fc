"""What goes out is the same in both forms, and what comes in is read the same from both."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from heliograph.gateway.v1.client_frames_pb2 import (
    Changed,
    ClientMark,
    Confirmed,
    ConnectRequest,
    ConnectResponse,
    GoAway,
    Hello,
    Notify,
    Ping,
    Pong,
    Reauthenticate,
    Refused,
    Replayed,
    Welcome,
)
from heliograph.type.v1.notification_pb2 import Content, Notification, NotificationRef, NotificationState, Unread
from heliograph.type.v1.refusal_pb2 import FieldViolation, Refusal
from mesh.errors import DataLoss, InvalidArgument
from svc_gateway import frames
from svc_gateway.host import Form

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(max_size=12)
TIMES = st.builds(Timestamp, seconds=st.integers(-62_135_596_800, 253_402_300_799), nanos=st.integers(0, 999_999_999))
REFS = st.builds(NotificationRef, notification_id=TEXTS, revision=INT32)
MARKS = st.builds(
    ClientMark, kind=st.integers(0, 9), refs=st.lists(REFS, max_size=3), mark_time=st.one_of(st.none(), TIMES)
)
HELLOS = st.builds(
    Hello,
    token=TEXTS,
    device_id=TEXTS,
    cursor=TEXTS,
    received_refs=st.lists(REFS, max_size=3),
    unconfirmed_marks=st.lists(MARKS, max_size=2),
    client_name=TEXTS,
    features=st.lists(TEXTS, max_size=2),
)
REQUESTS = st.one_of(
    st.builds(ConnectRequest, hello=HELLOS, frame_number=INT32),
    st.builds(ConnectRequest, mark=MARKS, frame_number=INT32),
    st.builds(ConnectRequest, reauthenticate=st.builds(Reauthenticate, token=TEXTS), frame_number=INT32),
    st.builds(ConnectRequest, ping=st.just(Ping()), frame_number=INT32),
    st.builds(ConnectRequest, pong=st.just(Pong()), frame_number=INT32),
)
NOTIFICATIONS = st.builds(
    Notification,
    notification_id=TEXTS,
    revision=INT32,
    category=TEXTS,
    priority=st.integers(0, 4),
    event_time=st.one_of(st.none(), TIMES),
    expire_time=st.one_of(st.none(), TIMES),
    content=st.builds(Content, title=TEXTS, body=st.text(max_size=300), link=TEXTS, data_json=TEXTS),
    producer_id=TEXTS,
)
REFUSALS = st.builds(
    Refusal,
    code=INT32,
    reason=TEXTS,
    message=TEXTS,
    metadata=st.dictionaries(TEXTS, TEXTS, max_size=2),
    violations=st.lists(st.builds(FieldViolation, field=TEXTS, description=TEXTS), max_size=2),
)
RESPONSES = st.one_of(
    st.builds(ConnectResponse, welcome=st.builds(Welcome, session_id=TEXTS, server_time=TIMES)),
    st.builds(ConnectResponse, notify=st.builds(Notify, notification=NOTIFICATIONS, state=st.integers(0, 6))),
    st.builds(ConnectResponse, changed=st.builds(Changed, refs=st.lists(REFS, max_size=3), state=st.integers(0, 6))),
    st.builds(ConnectResponse, unread=st.builds(Unread, unread_count=INT32, head_time=TIMES)),
    st.builds(ConnectResponse, replayed=st.builds(Replayed, cursor=TEXTS, reload=st.booleans(), checksum=INT32)),
    st.builds(ConnectResponse, confirmed=st.builds(Confirmed, frame_number=INT32)),
    st.builds(ConnectResponse, refused=st.builds(Refused, frame_number=INT32, refusal=REFUSALS)),
    st.builds(ConnectResponse, go_away=st.builds(GoAway, reason=TEXTS, reconnect=st.booleans())),
    st.builds(ConnectResponse, ping=st.just(Ping())),
    st.builds(ConnectResponse, pong=st.just(Pong())),
)


def payload_of(frame: bytes, opcode: int) -> bytes:
    """Returns what a server frame carries, after checking its header."""
    assert frame[0] == 0x80 | opcode
    size, start = frame[1], 2
    if size == 126:
        size, start = int.from_bytes(frame[2:4], "big"), 4
    elif size == 127:
        size, start = int.from_bytes(frame[2:10], "big"), 10
    assert len(frame) == start + size
    return frame[start:]


def reason_of(call: Callable[[], object]) -> str:
    """Returns the reason a refused frame gives."""
    with pytest.raises(InvalidArgument) as caught:
        call()
    return caught.value.reason


@given(request=REQUESTS)
def test_a_request_reads_the_same_from_either_form(request: ConnectRequest) -> None:
    """JSON as the contract's own printer writes it and the serialised message give the same frame."""
    text = json_format.MessageToJson(request).encode()
    binary = request.SerializeToString()
    assert frames.decode(text, True) == frames.decode(binary, False) == request
    assert frames.decode(bytearray(text), True) == frames.decode(bytearray(binary), False)


@given(
    request=REQUESTS,
    names=st.booleans(),
    numbers=st.booleans(),
    defaults=st.booleans(),
    extra=st.dictionaries(
        st.text("xyz", min_size=1), st.recursive(st.none() | TEXTS, st.lists, max_leaves=3), max_size=2
    ),
)
def test_every_spelling_of_proto3_json_is_read(
    request: ConnectRequest, names: bool, numbers: bool, defaults: bool, extra: dict[str, object]
) -> None:
    """Original field names, enum numbers, printed defaults and unknown fields change nothing."""
    value = json_format.MessageToDict(
        request,
        preserving_proto_field_name=names,
        use_integers_for_enums=numbers,
        always_print_fields_with_no_presence=defaults,
    )
    assert frames.decode(json.dumps(extra | value).encode(), True) == request


@given(request=REQUESTS)
def test_the_usual_spelling_takes_the_fast_way(request: ConnectRequest) -> None:
    """A frame with known enum values, printed by default, never needs the general parser."""
    known = all(mark.kind <= 6 for mark in (request.mark, *request.hello.unconfirmed_marks))
    simple = frames._decode_simple(json_format.MessageToJson(request).encode())
    assert (simple == request) if known else (simple is None)


@given(response=RESPONSES)
def test_a_response_says_the_same_in_both_forms(response: ConnectResponse) -> None:
    """Parsing the text frame and parsing the binary frame give the message that was encoded."""
    encoded = frames.encode(response)
    text = payload_of(encoded.text, 1)
    assert json_format.Parse(text, ConnectResponse()) == response
    assert ConnectResponse.FromString(payload_of(encoded.binary, 2)) == response


@given(notification=NOTIFICATIONS, state=st.integers(0, 5))
def test_a_notification_is_wrapped_without_being_parsed(notification: Notification, state: int) -> None:
    """`notify` makes the bytes that encoding the whole message makes, in both forms."""
    made = frames.notify(notification.SerializeToString(), state)
    message = ConnectResponse()
    message.notify.notification.CopyFrom(notification)
    message.notify.state = state  # type: ignore[assignment]  # a number names a value of an enum too
    whole = frames.encode(message)
    assert made.binary == whole.binary
    assert made.text == whole.text


def test_each_form_is_made_once() -> None:
    """Every session gets the same object, not an equal one."""
    encoded = frames.notify(Notification(notification_id="n").SerializeToString())
    assert encoded.text is encoded.text
    assert encoded.binary is encoded.binary


def test_text_frames_are_compact_camel_case() -> None:
    """The text form has lowerCamelCase names, names of enum values and no spaces."""
    response = ConnectResponse(
        changed=Changed(
            refs=[NotificationRef(notification_id="ä", revision=2)], state=NotificationState.NOTIFICATION_STATE_READ
        )
    )
    assert payload_of(frames.encode(response).text, 1).decode() == (
        '{"changed":{"refs":[{"notificationId":"ä","revision":2}],"state":"NOTIFICATION_STATE_READ"}}'
    )


def test_bytes_that_are_no_notification_have_no_text_form() -> None:
    """Damaged content is reported as lost data instead of reaching a client as half a frame."""
    with pytest.raises(DataLoss) as caught:
        _ = frames.notify(b"\xff\xff").text
    assert caught.value.reason == "RECORD_UNDECODABLE"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[",
        b"[]",
        b"7",
        b"null",
        b'"hello"',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"1e999",
        b"[" * 60_000,
        b'{"hello":' * 10_000,
        b'{"ping":"x"}',
        b'{"ping":[]}',
        b'{"ping":false}',
        b'{"hello":["token"]}',
        b'{"hello":{"token":5}}',
        b'{"hello":{"token":"\\ud800"}}',
        b'{"hello":{"features":"x"}}',
        b'{"mark":{},"ping":{}}',
        b'{"mark":{"refs":"x"}}',
        b'{"mark":{"refs":[null]}}',
        b'{"mark":{"markTime":5}}',
        b'{"mark":{"markTime":"0000-01-01T00:00:00Z"}}',
        b'{"mark":{"markTime":"2024-02-30T00:00:00Z"}}',
        b'{"frameNumber":99999999999,"ping":{}}',
        b'{"frameNumber":1.5,"ping":{}}',
        b'{"frameNumber":' + b"9" * 5_000 + b',"ping":{}}',
    ],
)
def test_malformed_text_is_refused(text: bytes) -> None:
    """Whatever is no JSON object of this shape is FRAME_INVALID, and nothing else is raised."""
    assert reason_of(lambda: frames.decode(text, True)) == "FRAME_INVALID"


@given(payload=st.binary(max_size=40), text=st.booleans())
def test_random_bytes_are_read_or_refused(payload: bytes, text: bool) -> None:
    """No input raises anything but a refusal with one of two reasons."""
    try:
        reason = "" if frames.decode(payload, text).WhichOneof("frame") else "a frame without a kind"
    except InvalidArgument as refused:
        reason = refused.reason
    assert reason in {"", "FRAME_INVALID", "FRAME_UNKNOWN"}


def test_a_damaged_message_is_refused() -> None:
    """Bytes that are no serialised message are FRAME_INVALID."""
    assert reason_of(lambda: frames.decode(b"\x0a\x05a", False)) == "FRAME_INVALID"


@pytest.mark.parametrize(
    ("payload", "text"),
    [(b'{"later":{},"frameNumber":7}', True), (b'{"ping":null,"frameNumber":"7"}', True), (b"\x5a\x00\x78\x07", False)],
)
def test_a_frame_of_an_unknown_kind_is_named_as_such(payload: bytes, text: bool) -> None:
    """A kind from a later version is FRAME_UNKNOWN with its number, so that the session can go on."""
    with pytest.raises(InvalidArgument) as caught:
        frames.decode(payload, text)
    assert caught.value.reason == "FRAME_UNKNOWN"
    assert caught.value.metadata == {"frame_number": "7"}


def test_repeated_keys_are_harmless() -> None:
    """The last of equal keys counts, as in every common JSON reader."""
    assert frames.decode(b'{"ping":{},"frameNumber":1,"ping":{},"frameNumber":2}', True).frame_number == 2


def test_an_unknown_mark_kind_is_unspecified() -> None:
    """A name from a later version reads as no kind, which the session refuses."""
    read = frames.decode(b'{"mark":{"kind":"MARK_KIND_LATER","refs":[{"notificationId":"n"}]}}', True)
    assert read.mark.kind == 0
    assert read.mark.refs[0].notification_id == "n"


def test_each_connection_gets_the_frame_in_its_form_and_the_message_is_made_once() -> None:
    """GRPC gets the bytes that WebSocket frames contain."""
    encoded = frames.encode(ConnectResponse(pong=Pong()))
    assert encoded.in_form(Form.TEXT) is encoded.text
    assert encoded.in_form(Form.BINARY) is encoded.binary
    assert encoded.in_form(Form.MESSAGE) is encoded.message
    assert encoded.binary.endswith(encoded.message)
    assert ConnectResponse.FromString(encoded.message).HasField("pong")


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
@pytest.mark.parametrize("topics", [[], ["deploys"], ["a/b", "c"]])
def test_topics_are_read_in_both_forms(kind: str, topics: list[str]) -> None:
    """As protobuf's own JSON prints them, and however else it may be written."""
    said = ConnectRequest(frame_number=2)
    getattr(said, kind).topic_ids.extend(topics)
    getattr(said, kind).SetInParent()
    assert frames.decode(said.SerializeToString(), text=False) == said
    assert frames.decode(json_format.MessageToJson(said).encode(), text=True) == said
    snake = json_format.MessageToJson(said, preserving_proto_field_name=True)
    assert frames.decode(snake.encode(), text=True) == said

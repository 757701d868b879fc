"""The frames of a session as bytes: server frames encoded once for all sessions, client frames read from either form.

Must not decide what a frame means for a session. Steps 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.gateway.v1.client_frames_pb2 import (
    ClientMark,
    ConnectRequest,
    ConnectResponse,
    Hello,
    Ping,
    Pong,
    Reauthenticate,
    Subscribe,
    Unsubscribe,
)
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationRef
from mesh.errors import DataLoss, InvalidArgument
from svc_gateway import wire
from svc_gateway.host import Form

_KINDS = tuple(field.name for field in ConnectRequest.DESCRIPTOR.oneofs_by_name["frame"].fields)
_MARK_KINDS = dict(MarkKind.items())
_NO_MARK_KIND = MarkKind.Name(MarkKind.MARK_KIND_UNSPECIFIED)
# ConnectResponse.notify = 2 and Notify.notification = 1, both length-delimited; Notify.state = 2, a varint.
_NOTIFY_TAG, _NOTIFICATION_TAG, _STATE_TAG = b"\x12", b"\x0a", b"\x10"
_REASON_CHARACTERS = 200
# A client frame is four messages deep at most.
_DEPTH = 10


class Encoded:
    """One server frame in every form, each made on first use and then shared by every session that gets it."""

    __slots__ = ("_binary", "_payload", "_response", "_text")

    def __init__(self, response: ConnectResponse | None, payload: bytes | None) -> None:
        # One of the two is enough; the other is made when its form is asked for.
        self._response = response
        self._payload = payload
        self._text: bytes | None = None
        self._binary: bytes | None = None

    @property
    def text(self) -> bytes:
        """The WebSocket text frame: proto3 JSON.

        Raises:
            DataLoss: the notification given to `notify` is none.
        """
        if self._text is None:
            self._text = wire.frame(wire.TEXT, self._json())
        return self._text

    @property
    def binary(self) -> bytes:
        """The WebSocket binary frame: the serialised message."""
        if self._binary is None:
            self._binary = wire.frame(wire.BINARY, self.message)
        return self._binary

    @property
    def message(self) -> bytes:
        """The serialised message, as gRPC carries it."""
        if self._payload is None:
            assert self._response is not None
            self._payload = self._response.SerializeToString()
        return self._payload

    def in_form(self, form: Form) -> bytes:
        """Returns the frame as a connection of this form writes it.

        Raises:
            DataLoss: as `text`.
        """
        if form is Form.BINARY:
            # Hundreds of sessions may ask for it in a row.
            return self._binary or self.binary
        return self.message if form is Form.MESSAGE else self.text

    def _json(self) -> bytes:
        try:
            response = self._response or ConnectResponse.FromString(self.message)
            return msgspec.json.encode(json_format.MessageToDict(response))
        except (DecodeError, json_format.Error, ValueError) as error:
            raise DataLoss(f"a frame that has no JSON form: {error}", reason="RECORD_UNDECODABLE") from error


def notify(notification: bytes, state: int = 0) -> Encoded:
    """Returns the frame of one notification.

    Args:
        notification: a serialised `Notification`; it becomes part of the binary form unread.
        state: a `NotificationState`, in a replay; 0 live.
    """
    inner = _NOTIFICATION_TAG + _varint(len(notification)) + notification
    if state:
        inner += _STATE_TAG + _varint(state)
    return Encoded(None, _NOTIFY_TAG + _varint(len(inner)) + inner)


def encode(response: ConnectResponse) -> Encoded:
    """Returns the frame of any response; the message must not change afterwards."""
    return Encoded(response, None)


def decode(payload: bytes | bytearray, text: bool) -> ConnectRequest:
    """Returns a client's frame.

    Args:
        payload: one whole WebSocket message.
        text: it is proto3 JSON; otherwise the serialised message.

    Raises:
        InvalidArgument: with reason FRAME_INVALID for what is no frame, with FRAME_UNKNOWN for a frame of no kind that
            this server knows; then the metadata has its `frame_number`.
    """
    if text:
        request = _decode_simple(payload) or _decode_any(payload)
    else:
        try:
            request = ConnectRequest.FromString(bytes(payload))
        except DecodeError as error:
            raise _invalid(str(error)) from None
    if request.WhichOneof("frame") is None:
        number = request.frame_number
        raise InvalidArgument(
            f"frame {number} is of no kind that this server knows",
            reason="FRAME_UNKNOWN",
            metadata={"frame_number": str(number)},
        )
    return request


def _varint(value: int) -> bytes:
    if 0x7F < value < 0x4000:
        # What the length of nearly every notification takes.
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0:
        raise ValueError("a length or a state is never negative")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _invalid(cause: str) -> InvalidArgument:
    return InvalidArgument(f"not a client frame: {cause[:_REASON_CHARACTERS]}", reason="FRAME_INVALID")


# ---------------------------------------------------------------- JSON as most clients write it
# Exactly what proto3 JSON prints by default: camelCase, names of enum values, no field that the contract lacks. What
# differs is no error; it takes the general way below, at five times the cost.

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _Simple(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    pass


class _Ref(_Simple):
    notification_id: str | None = None
    revision: _Int32 | None = None


class _Mark(_Simple):
    kind: str | None = None
    refs: list[_Ref] | None = None
    mark_time: str | None = None


class _Hello(_Simple):
    token: str | None = None
    device_id: str | None = None
    cursor: str | None = None
    received_refs: list[_Ref] | None = None
    unconfirmed_marks: list[_Mark] | None = None
    client_name: str | None = None
    features: list[str] | None = None


class _Reauthenticate(_Simple):
    token: str | None = None


class _Empty(_Simple):
    pass


class _Topics(_Simple):
    topic_ids: list[str] | None = None


class _Frame(_Simple):
    hello: _Hello | None = None
    mark: _Mark | None = None
    reauthenticate: _Reauthenticate | None = None
    ping: _Empty | None = None
    pong: _Empty | None = None
    subscribe: _Topics | None = None
    unsubscribe: _Topics | None = None
    frame_number: _Int32 | None = None


_read_simple = msgspec.json.Decoder(_Frame).decode
_read_any = msgspec.json.Decoder().decode
_SIMPLE_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 both ends of the difference are UTC without saying so


class _NotSimpleError(Exception):
    """The general way must decide."""


def _decode_simple(payload: bytes | bytearray) -> ConnectRequest | None:
    """Returns the frame, or None when it is not written in the usual way, right or wrong."""
    try:
        frame = _read_simple(payload)
        request = ConnectRequest(frame_number=frame.frame_number or 0)
        if frame.mark is not None:
            request.mark.CopyFrom(_mark(frame.mark))
        _fill_rare(request, frame)
    except (msgspec.MsgspecError, ValueError, RecursionError, _NotSimpleError):
        return None
    return request


def _fill_rare(request: ConnectRequest, frame: _Frame) -> None:
    """Sets the kinds other than a mark; a second kind is not simple."""
    kinds = (
        frame.hello,
        frame.mark,
        frame.reauthenticate,
        frame.ping,
        frame.pong,
        frame.subscribe,
        frame.unsubscribe,
    )
    if sum(kind is not None for kind in kinds) > 1:
        raise _NotSimpleError
    if frame.hello is not None:
        request.hello.CopyFrom(_hello(frame.hello))
    elif frame.reauthenticate is not None:
        request.reauthenticate.CopyFrom(Reauthenticate(token=frame.reauthenticate.token or ""))
    elif frame.ping is not None:
        request.ping.CopyFrom(Ping())
    elif frame.pong is not None:
        request.pong.CopyFrom(Pong())
    elif frame.subscribe is not None:
        request.subscribe.CopyFrom(Subscribe(topic_ids=frame.subscribe.topic_ids or ()))
    elif frame.unsubscribe is not None:
        request.unsubscribe.CopyFrom(Unsubscribe(topic_ids=frame.unsubscribe.topic_ids or ()))


def _mark(mark: _Mark) -> ClientMark:
    kind = _MARK_KINDS.get(mark.kind or _NO_MARK_KIND)
    if kind is None:
        raise _NotSimpleError
    return ClientMark(
        kind=kind,
        refs=_refs(mark.refs),
        mark_time=None if mark.mark_time is None else _timestamp(mark.mark_time),
    )


def _hello(hello: _Hello) -> Hello:
    return Hello(
        token=hello.token or "",
        device_id=hello.device_id or "",
        cursor=hello.cursor or "",
        received_refs=_refs(hello.received_refs),
        unconfirmed_marks=[_mark(mark) for mark in hello.unconfirmed_marks or ()],
        client_name=hello.client_name or "",
        features=hello.features or (),
    )


def _refs(refs: Iterable[_Ref] | None) -> list[NotificationRef]:
    return [
        NotificationRef(notification_id=ref.notification_id or "", revision=ref.revision or 0) for ref in refs or ()
    ]


def _timestamp(text: str) -> Timestamp:
    match = _SIMPLE_TIME.fullmatch(text)
    if match is None:
        raise _NotSimpleError
    span = datetime.fromisoformat(match[1]) - _EPOCH
    return Timestamp(seconds=span.days * 86_400 + span.seconds, nanos=int((match[2] or "").ljust(9, "0")))


# ---------------------------------------------------------------- all of proto3 JSON


def _decode_any(payload: bytes | bytearray) -> ConnectRequest:
    request = ConnectRequest()
    try:
        # Any: JSON of any shape; what may not be there is refused by the conversion.
        value: Any = _read_any(payload)
        if not isinstance(value, dict):
            raise _invalid("a frame is a JSON object")
        for kind in _KINDS:
            if not isinstance(value.get(kind), dict | None):
                raise _invalid(f"{kind} is a JSON object")
        json_format.ParseDict(value, request, ignore_unknown_fields=True, max_recursion_depth=_DEPTH)
    except RecursionError:
        raise _invalid("nested too deep") from None
    except (msgspec.MsgspecError, json_format.Error, ValueError, TypeError, AttributeError, KeyError) as error:
        raise _invalid(str(error)) from None
    return request

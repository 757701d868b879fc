"""The frames of a session as WebSocket messages, in both encodings.

Must not decide what a frame means.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from mesh.errors import DataLoss

Encoding: TypeAlias = Literal["proto", "json"]

SUBPROTOCOLS: dict[Encoding, str] = {"proto": "heliograph.v1.proto", "json": "heliograph.v1.json"}


def encode(frame: ConnectRequest, encoding: Encoding) -> str | bytes:
    """Returns the message of a frame: text for JSON, bytes for the binary form."""
    if encoding == "proto":
        return frame.SerializeToString()
    # One line; a frame has at most 64 KiB, and spaces count.
    return json_format.MessageToJson(frame, indent=None)


def decode(message: str | bytes, encoding: Encoding) -> ConnectResponse:
    """Returns the frame of a message; fields and kinds that this version does not know are left out.

    Raises:
        DataLoss: it is no frame of this encoding.
    """
    if isinstance(message, str) != (encoding == "json"):
        raise _not_a_frame("it came in the other encoding")
    try:
        if isinstance(message, bytes):
            return ConnectResponse.FromString(message)
        return json_format.Parse(message, ConnectResponse(), ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
        raise _not_a_frame(str(error)[:200]) from None


def _not_a_frame(cause: str) -> DataLoss:
    return DataLoss(f"not a frame of the server's: {cause}", reason="FRAME_INVALID")

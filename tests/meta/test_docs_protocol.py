"""The page of the session protocol: its examples are frames of the contract, its close codes those of the gateway."""

from __future__ import annotations

import json
import re

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from heliograph_client import frames as client_frames
from mesh.ids import from_text
from svc_gateway import frames as server_frames
from svc_gateway.decisions import CloseCode
from svc_gateway.handshake import JSON_SUBPROTOCOL, PROTO_SUBPROTOCOL
from svc_gateway.hello import read_cursor
from tests.meta.tree import ROOT

_PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
_FROM_CLIENT = re.findall(r"^```json client\n(.*?)\n```$", _PAGE, re.MULTILINE | re.DOTALL)
_FROM_SERVER = re.findall(r"^```json server\n(.*?)\n```$", _PAGE, re.MULTILINE | re.DOTALL)


def _kinds(message: type[Message]) -> set[str]:
    return {field.json_name for field in message.DESCRIPTOR.oneofs_by_name["frame"].fields}


def _shown(examples: list[str]) -> set[str]:
    return {kind for example in examples for kind in json.loads(example) if kind != "frameNumber"}


def test_every_kind_of_frame_has_an_example_and_no_other() -> None:
    """Whoever writes a client finds each frame as it is on the wire."""
    assert _shown(_FROM_CLIENT) == _kinds(ConnectRequest)
    assert _shown(_FROM_SERVER) == _kinds(ConnectResponse)


@pytest.mark.parametrize("example", _FROM_CLIENT)
def test_the_gateway_reads_the_clients_examples(example: str) -> None:
    """An example parses as the gateway parses it, and says in the contract's JSON just what it said."""
    frame = server_frames.decode(example.encode(), text=True)
    assert json.loads(json_format.MessageToJson(frame)) == json.loads(example)


@pytest.mark.parametrize("example", _FROM_SERVER)
def test_the_sdk_reads_the_servers_examples(example: str) -> None:
    """An example parses without any unknown field, also as the SDK parses it."""
    frame = json_format.Parse(example, ConnectResponse())
    assert client_frames.decode(example, "json") == frame


def test_ids_and_cursors_of_the_examples_are_well_formed() -> None:
    """A reader who copies an id or a cursor from the page gets no refusal for its form."""
    for text in re.findall(r'"notificationId": "([^"]*)"', _PAGE):
        assert len(from_text(text)) == 16
    for text in re.findall(r'"cursor": "([^"]*)"', _PAGE):
        assert read_cursor(text)


def test_close_codes_are_those_of_the_gateway() -> None:
    """Number, name and whether to reconnect agree with the code."""
    rows = re.findall(r"^\| (\d{4}) \| `(\w+)` \| (yes|no) \|", _PAGE, re.MULTILINE)
    assert rows == [(str(code.value), code.name, "yes" if code < 4500 else "no") for code in CloseCode]


def test_subprotocols_are_those_of_the_gateway() -> None:
    """The two names stand in the page as they are negotiated."""
    assert f"`{JSON_SUBPROTOCOL}`" in _PAGE
    assert f"`{PROTO_SUBPROTOCOL}`" in _PAGE

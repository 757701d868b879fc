"""The AsyncAPI document: well built, complete, and its examples are frames of the contract."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from google.protobuf import json_format

from docs.asyncapi import SIDES, Side, close_codes
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from mesh.envoy.topology import load_topology
from svc_gateway.decisions import CloseCode
from svc_gateway.handshake import JSON_SUBPROTOCOL, PROTO_SUBPROTOCOL
from tests.meta.tree import ROOT
from tests.support.schemas import faults

# Any: JSON.
DOCUMENT: dict[str, Any] = json.loads((ROOT / "docs" / "asyncapi.json").read_text(encoding="utf-8"))
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]
FRAMES = {"client": ConnectRequest, "server": ConnectResponse}
# What AsyncAPI 3.0 allows at each place, besides extensions.
ALLOWED = {
    "root": {"asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations", "components"},
    "server": {"host", "protocol", "pathname", "title", "summary", "description", "variables", "security", "bindings"},
    "channel": {"address", "messages", "title", "summary", "description", "servers", "parameters", "bindings", "tags"},
    "operation": {"action", "channel", "title", "summary", "description", "messages", "reply", "bindings", "security"},
    "message": {"headers", "payload", "contentType", "name", "title", "summary", "description", "examples", "bindings"},
}


def _resolve(reference: dict[str, str]) -> Any:
    found = DOCUMENT
    for part in reference["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def _odd(place: str, value: dict[str, Any]) -> set[str]:
    return {name for name in value if not name.startswith("x-")} - ALLOWED[place]


def test_it_has_the_structure_of_asyncapi_3() -> None:
    """Each object has the fields that the specification gives it, and those that it demands."""
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= set(DOCUMENT["info"])
    assert _odd("root", DOCUMENT) == set()
    for place, values in (
        ("server", DOCUMENT["servers"]),
        ("channel", DOCUMENT["channels"]),
        ("operation", DOCUMENT["operations"]),
        ("message", MESSAGES),
    ):
        assert values
        for name, value in values.items():
            assert re.fullmatch(r"[\w.-]+", name)
            assert _odd(place, value) == set(), name
    assert all({"host", "protocol"} <= set(server) for server in DOCUMENT["servers"].values())
    for target in re.findall(r'"\$ref": "([^"]+)"', json.dumps(DOCUMENT)):
        assert _resolve({"$ref": target}), target


def test_operations_name_messages_of_their_channels() -> None:
    """The gateway receives what clients send and sends what it sends, in both forms."""
    seen: dict[str, set[str]] = {"receive": set(), "send": set()}
    for operation in DOCUMENT["operations"].values():
        prefix = operation["channel"]["$ref"]
        assert _resolve(operation["channel"])["messages"]
        for message in operation["messages"]:
            assert message["$ref"].startswith(f"{prefix}/messages/")
            seen[operation["action"]].add(message["$ref"].rpartition("/")[2])
    assert seen["receive"] | seen["send"] == set(MESSAGES)
    assert {name.partition(".")[0] for name in seen["receive"]} == {"client"}
    assert {name.partition(".")[0] for name in seen["send"]} == {"server"}


def test_channels_are_the_gateways_path_in_both_subprotocols() -> None:
    """Whoever connects as the document says is taken."""
    path = load_topology(ROOT / "deploy" / "topology.toml").gateway.websocket_path
    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == {path}
    named = [
        channel["bindings"]["ws"]["headers"]["properties"]["Sec-WebSocket-Protocol"]["const"]
        for channel in DOCUMENT["channels"].values()
    ]
    assert named == [JSON_SUBPROTOCOL, PROTO_SUBPROTOCOL]


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.name)
def test_every_kind_of_frame_is_described_with_an_example(side: Side) -> None:
    """Each example parses as the contract's frame, and fits the schema beside it with nothing left over."""
    for kind in side.kinds:
        message = MESSAGES[f"{side.name}.{kind.json_name}"]
        assert message["summary"]
        assert message["description"]
        assert message["examples"]
        for example in message["examples"]:
            frame = json_format.ParseDict(example["payload"], FRAMES[side.name]())
            assert frame.WhichOneof("frame") == kind.name
            assert faults(DOCUMENT, message["payload"], example["payload"]) == []


def test_the_binary_form_is_the_contract_itself() -> None:
    """A reader gets the very file that the gateway's code is generated from."""
    text = (ROOT / "proto" / "heliograph" / "gateway" / "v1" / "client_frames.proto").read_text(encoding="utf-8")
    for side in SIDES:
        payload = MESSAGES[f"{side.name}.frame"]["payload"]
        assert payload == {"schemaFormat": "application/vnd.google.protobuf;version=3", "schema": text}
        assert f"message {side.frame.name} " in text


def test_close_codes_say_whether_to_reconnect() -> None:
    """All of the gateway's, with a text each."""
    found = {one["code"]: one for one in DOCUMENT["x-close-codes"]}
    assert {code: one["name"] for code, one in found.items()} == {int(code): code.name for code in CloseCode}
    assert all(one["reconnect"] == (code < 4500) and one["description"] for code, one in found.items())
    with pytest.raises(LookupError, match="REVOKED"):
        close_codes("| 4000 | `GO_AWAY` | yes | The session reached its age. |")

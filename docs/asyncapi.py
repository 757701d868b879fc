"""The session protocol as an AsyncAPI 3.0 document: every frame both ways, both forms, and how a session ends.

Frames come from the contract, examples and close codes from the page of the protocol, whose tests compare them with the
gateway. Must not say in which order frames come: the page does.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from docs.contract import comment
from docs.schemas import Schema, field_schema, schemas_of
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from mesh.envoy.topology import load_topology
from svc_gateway.decisions import CloseCode
from svc_gateway.handshake import JSON_SUBPROTOCOL, PROTO_SUBPROTOCOL

ROOT: Final = Path(__file__).resolve().parents[1]
PROTOCOL: Final = "docs/protocol.md"

_PROTO: Final = "proto/heliograph/gateway/v1/client_frames.proto"
_PROTO_FORMAT: Final = "application/vnd.google.protobuf;version=3"
_BINDING: Final = "0.1.0"


class Side(NamedTuple):
    """One direction, as the gateway sees it.

    Attributes:
        name: whose frames these are, as the page marks its examples.
        action: what the gateway does with them.
        frame: the message that carries each of them.
    """

    name: str
    action: str
    frame: Descriptor

    @property
    def kinds(self) -> list[FieldDescriptor]:
        """The kinds of frames."""
        return list(self.frame.oneofs_by_name["frame"].fields)


SIDES: Final = (
    Side("client", "receive", ConnectRequest.DESCRIPTOR),
    Side("server", "send", ConnectResponse.DESCRIPTOR),
)


def document(protocol: str) -> Schema:
    """Returns the document.

    Args:
        protocol: text of the protocol's page.
    """
    examples = {side.name: dict(_examples(protocol, side)) for side in SIDES}
    messages = {
        _message_name(side, kind): _message(side, kind, examples[side.name]) for side in SIDES for kind in side.kinds
    }
    schemas = schemas_of(kind.message_type for side in SIDES for kind in side.kinds if kind.message_type)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Heliograph sessions",
            "version": project["version"],
            "description": (
                "One session is one WebSocket of one device, from hello to close. This document is the gateway's: it"
                " receives what clients send. Apps may speak the same frames over gRPC"
                " (`heliograph.gateway.v1.ClientService/Connect`). Frames and fields that a side does not know are left"
                " out of account."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": _servers(),
        "channels": _channels(),
        "operations": _operations(),
        "components": {"messages": {**messages, **_binary_messages()}, "schemas": schemas},
        "x-close-codes": close_codes(protocol),
    }


def page() -> str:
    """Renders the document."""
    protocol = (ROOT / PROTOCOL).read_text(encoding="utf-8")
    return json.dumps(document(protocol), indent=2, ensure_ascii=False) + "\n"


def close_codes(protocol: str) -> list[Schema]:
    """Returns the gateway's close codes with what the page says of each.

    Raises:
        LookupError: the page lacks one.
    """
    rows = re.findall(r"^\| (\d{4}) \| `\w+` \| (?:yes|no) \| (.+) \|$", protocol, re.MULTILINE)
    said = {int(code): text for code, text in rows}
    if lacking := [code.name for code in CloseCode if int(code) not in said]:
        raise LookupError(f"{PROTOCOL}: the table of close codes lacks {', '.join(lacking)}")
    return [
        {"code": int(code), "name": code.name, "reconnect": code < CloseCode.SUPERSEDED, "description": said[int(code)]}
        for code in CloseCode
    ]


def _examples(protocol: str, side: Side) -> Iterator[tuple[str, list[Any]]]:
    found: dict[str, list[Any]] = {}
    for block in re.findall(rf"^```json {side.name}\n(.*?)\n```$", protocol, re.MULTILINE | re.DOTALL):
        frame = json.loads(block)
        kind = next(name for name in frame if name != "frameNumber")
        found.setdefault(kind, []).append(frame)
    yield from found.items()


# ---------------------------------------------------------------- where


def _servers() -> Schema:
    topology = load_topology(ROOT / "deploy" / "topology.toml")
    host = f"{topology.edge.public_names[0]}:{topology.port_of('edge')}"
    return {"edge": {"host": host, "protocol": "wss", "description": "The edge of a development installation."}}


def _channels() -> Schema:
    address = load_topology(ROOT / "deploy" / "topology.toml").gateway.websocket_path
    both = {_message_name(side, kind): _component(side, kind) for side in SIDES for kind in side.kinds}
    binary = {_binary_name(side): {"$ref": f"#/components/messages/{_binary_name(side)}"} for side in SIDES}
    return {
        "session": _channel(address, JSON_SUBPROTOCOL, "Text messages, each one frame in proto3 JSON.", both),
        "binarySession": _channel(address, PROTO_SUBPROTOCOL, "Binary messages, each one serialised frame.", binary),
    }


def _channel(address: str, subprotocol: str, text: str, messages: Schema) -> Schema:
    headers = {
        "type": "object",
        "properties": {"Sec-WebSocket-Protocol": {"type": "string", "const": subprotocol}},
        "required": ["Sec-WebSocket-Protocol"],
    }
    return {
        "address": address,
        "title": subprotocol,
        "description": text,
        "servers": [{"$ref": "#/servers/edge"}],
        "messages": messages,
        "bindings": {"ws": {"method": "GET", "headers": headers, "bindingVersion": _BINDING}},
    }


def _operations() -> Schema:
    found: Schema = {}
    for side in SIDES:
        names = [_message_name(side, kind) for kind in side.kinds]
        found[f"{side.action}Frame"] = _operation(side, "session", names)
        found[f"{side.action}BinaryFrame"] = _operation(side, "binarySession", [_binary_name(side)])
    return found


def _operation(side: Side, channel: str, names: list[str]) -> Schema:
    return {
        "action": side.action,
        "summary": comment(side.frame.full_name),
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names],
    }


# ---------------------------------------------------------------- what


def _message_name(side: Side, kind: FieldDescriptor) -> str:
    return f"{side.name}.{kind.json_name}"


def _component(side: Side, kind: FieldDescriptor) -> Schema:
    return {"$ref": f"#/components/messages/{_message_name(side, kind)}"}


def _message(side: Side, kind: FieldDescriptor, examples: Mapping[str, list[Any]]) -> Schema:
    assert kind.message_type is not None
    beside = [field for field in side.frame.fields if field.containing_oneof is None]
    payload = {
        "type": "object",
        "properties": {field.json_name: field_schema(field) for field in (kind, *beside)},
        "required": [field.json_name for field in (kind, *beside)],
    }
    return {
        "name": kind.json_name,
        "title": f"{kind.json_name}, from the {side.name}",
        "summary": comment(kind.message_type.full_name),
        "description": comment(kind.full_name),
        "payload": payload,
        "examples": [{"payload": frame} for frame in _shown(kind, examples)],
    }


def _shown(kind: FieldDescriptor, examples: Mapping[str, list[Any]]) -> list[Any]:
    if kind.json_name not in examples:
        raise LookupError(f"{PROTOCOL}: no example of the frame {kind.json_name}")
    return examples[kind.json_name]


def _binary_name(side: Side) -> str:
    return f"{side.name}.frame"


def _binary_messages() -> Schema:
    schema = (ROOT / _PROTO).read_text(encoding="utf-8")
    return {
        _binary_name(side): {
            "name": side.frame.name,
            "title": f"A frame from the {side.name}",
            "summary": f"A serialised `{side.frame.full_name}`.",
            "contentType": "application/protobuf",
            "payload": {"schemaFormat": _PROTO_FORMAT, "schema": schema},
        }
        for side in SIDES
    }

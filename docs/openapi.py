"""The REST interface as an OpenAPI 3.1 document: what the edge turns into the contract's calls.

Routes come from `google.api.http`, texts from the protos, limits from the code, errors from what the edge answers. The
edge itself is configured from the same descriptors, so both say the same. Must not name a route.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.api import annotations_pb2
from google.protobuf.descriptor import MethodDescriptor

from docs.contract import comment, services
from docs.examples import EXAMPLES, Example
from docs.schemas import PREFIX, Schema, field_schema, reference, schemas_of
from heliograph.access.v1 import access_pb2
from heliograph.type.v1.refusal_pb2 import ErrorReason
from mesh.access import PRODUCER, RECIPIENT, roles_of
from mesh.envoy.topology import load_topology
from mesh.status import DOMAIN

ROOT: Final = Path(__file__).resolve().parents[1]

_TYPE: Final = "type.googleapis.com/google.rpc."
_JSON: Final = "application/json"
# HTTP statuses by the code that the service answers; those of the edge itself are among them.
_HTTP: Final[Mapping[str, int]] = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_ANSWERS: Final[Mapping[int, str]] = {
    400: "A field is wrong; the violations name each. Or the request is no JSON of this shape.",
    401: "No token where one is needed, or one that does not verify or is over.",
    403: "The caller may not do this, or not for this recipient.",
    404: "It does not exist.",
    409: "It contradicts what is stored: another request under this id, or a version that is not the stored one.",
    413: "The body has more bytes than a request may have.",
    429: "Too much at once; repeat after the delay.",
    503: "A part does not answer now; repeat after the delay, a publish unchanged under its request id.",
    504: "The call's time was over; it may have been carried out. Repeat, a publish unchanged under its request id.",
}
_EVERY: Final = (400, 401, 403, 429, 503, 504)


class Route(NamedTuple):
    """One method as it is called over REST."""

    verb: str
    path: str
    has_body: bool
    called: MethodDescriptor


def routes() -> Iterator[Route]:
    """Yields every method that has a REST form."""
    for service in services().values():
        for method in service.methods:
            options = method.GetOptions()
            if options.HasExtension(annotations_pb2.http):
                rule = options.Extensions[annotations_pb2.http]
                verb = rule.WhichOneof("pattern")
                yield Route(verb, getattr(rule, verb), rule.body == "*", method)


def document() -> Schema:
    """Returns the document.

    Raises:
        LookupError: a route has no example.
    """
    found = sorted(routes(), key=lambda route: (route.path, route.verb))
    paths: dict[str, Schema] = {}
    for route in found:
        paths.setdefault(route.path, {})[route.verb] = _operation(route)
    messages = [kind for route in found for kind in (route.called.input_type, route.called.output_type)]
    owners = {route.called.containing_service.full_name for route in found}
    return {
        "openapi": "3.1.0",
        "info": _info(),
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": _servers(),
        "tags": [{"name": name.rpartition(".")[2], "description": comment(name)} for name in sorted(owners)],
        "paths": paths,
        "components": {
            "schemas": {**schemas_of(messages), **_error_schemas()},
            "responses": {_answer_name(code): _refusal(code, text) for code, text in _ANSWERS.items()},
            "securitySchemes": _security_schemes(),
        },
    }


def page() -> str:
    """Renders the document."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def _info() -> Schema:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (
        "REST as the edge of an installation serves it. Every call is also a gRPC method of the same name; sessions are"
        " WebSockets at another path (`asyncapi.json`). Requests and answers are proto3 JSON: fields at their default"
        " are left out, 64-bit numbers are texts. Unknown fields of a body are left out of account, unknown parameters"
        " of a query are refused. Errors are `google.rpc.Status`; programs branch on the reason in its `ErrorInfo`."
    )
    return {
        "title": "Heliograph",
        "version": project["version"],
        "description": text,
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    }


def _servers() -> list[Schema]:
    topology = load_topology(ROOT / "deploy" / "topology.toml")
    port, edge = topology.port_of("edge"), topology.edge
    return [
        {"url": f"https://{edge.public_names[0]}:{port}", "description": "The edge of a development installation."},
        *(
            {"url": f"https://{name}:{port}", "description": "The same, asking for a producer's certificate."}
            for name in edge.producer_names
        ),
    ]


def _security_schemes() -> Schema:
    return {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": 'A JWT (EdDSA) with `iss` and `aud` "heliograph", `sub`, `tenant`, `role`, `iat` and `exp`.',
        },
        "certificate": {
            "type": "mutualTLS",
            "description": "A producer's certificate, shown at the name that asks for one.",
        },
    }


# ---------------------------------------------------------------- operations


def _operation(route: Route) -> Schema:
    method, example = route.called, _example(route.called)
    text = comment(method.full_name)
    operation: Schema = {
        "operationId": f"{method.containing_service.name}.{method.name}",
        "tags": [method.containing_service.name],
        "summary": text.partition(". ")[0].rstrip("."),
        "description": text,
        "security": _security(method),
    }
    if route.has_body:
        body = {_JSON: {"schema": reference(method.input_type), "example": example.request}}
        operation["requestBody"] = {"required": True, "content": body}
    elif method.input_type.fields:
        operation["parameters"] = [
            {"name": field.json_name, "in": "query", "required": False, **_parameter(field_schema(field))}
            for field in method.input_type.fields
        ]
    answer = {"schema": reference(method.output_type), "example": example.response}
    operation["responses"] = {
        "200": {"description": comment(method.output_type.full_name), "content": {_JSON: answer}},
        **{str(code): {"$ref": f"#/components/responses/{_answer_name(code)}"} for code in _codes(route, text)},
        "default": {"description": "Any other failure.", "content": _error_content()},
    }
    return operation


def _example(method: MethodDescriptor) -> Example:
    found = EXAMPLES.get(method.full_name)
    if found is None:
        raise LookupError(f"docs/examples.py: {method.full_name} has a REST form and no example")
    return found


def _parameter(schema: Schema) -> Schema:
    text = schema.pop("description", "")
    return {"schema": schema, **({"description": text} if text else {})}


def _security(method: MethodDescriptor) -> list[Schema]:
    numbers = method.GetOptions().Extensions[access_pb2.callers]
    roles = roles_of(numbers, access_pb2.Caller.DESCRIPTOR, method.full_name)
    certificate: list[Schema] = [{"certificate": []}] if PRODUCER in roles else []
    return [*certificate, {"token": []}] if roles & {PRODUCER, RECIPIENT} else certificate


def _codes(route: Route, text: str) -> list[int]:
    named = {_HTTP[name] for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", text) if name in _HTTP}
    return sorted({*_EVERY, *named, *((413,) if route.has_body else ())})


# ---------------------------------------------------------------- errors


def _answer_name(code: int) -> str:
    return f"Refused{code}"


def _refusal(code: int, text: str) -> Schema:
    text_of_delay = "Seconds to wait, rounded up: there whenever the refusal names a delay."
    delay = {"retry-after": {"description": text_of_delay, "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
    return {
        "description": text,
        **({"headers": delay} if code in (429, 503) else {}),
        "content": _error_content(**({"example": _EXAMPLE_400} if code == 400 else {})),
    }


def _error_content(**more: Any) -> Schema:
    return {_JSON: {"schema": {"$ref": f"{PREFIX}Status"}, **more}}


def _error_schemas() -> dict[str, Schema]:
    reasons = [name.removeprefix("ERROR_REASON_") for name in ErrorReason.DESCRIPTOR.values_by_name]
    violation = {
        "type": "object",
        "properties": {"field": {"type": "string"}, "description": {"type": "string"}},
        "required": ["field", "description"],
    }
    return {
        "Status": {
            "type": "object",
            "description": "A refusal. An answer without details was made by the way, not by a service.",
            "properties": {
                "code": {"type": "integer", "description": "A gRPC status code.", "minimum": 1, "maximum": 16},
                "message": {"type": "string", "description": "One line for people; may be reworded."},
                "details": {
                    "type": "array",
                    "items": {
                        "oneOf": [{"$ref": f"{PREFIX}{name}"} for name in ("ErrorInfo", "BadRequest", "RetryInfo")]
                    },
                },
            },
            "required": ["code", "message"],
        },
        "ErrorInfo": _detail(
            "ErrorInfo",
            "Why; always the first detail of a service's refusal.",
            reason={"type": "string", "enum": reasons[1:], "description": "Programs branch on it."},
            domain={"const": DOMAIN},
            metadata={"type": "object", "additionalProperties": {"type": "string"}},
        ),
        "BadRequest": _detail(
            "BadRequest", "Each field that is wrong.", fieldViolations={"type": "array", "items": violation}
        ),
        "RetryInfo": _detail(
            "RetryInfo",
            "When to try again.",
            retryDelay={"type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,9})?s$"},
        ),
    }


def _detail(name: str, text: str, **properties: Schema) -> Schema:
    fields = {"@type": {"const": f"{_TYPE}{name}"}, **properties}
    needed = [name for name in fields if name != "metadata"]
    return {"type": "object", "description": text, "properties": fields, "required": needed}


_EXAMPLE_400: Final = {
    "code": 3,
    "message": "event.content.title: must be 1 to 200 characters, not 0",
    "details": [
        {"@type": f"{_TYPE}ErrorInfo", "reason": "FIELD_INVALID", "domain": DOMAIN},
        {
            "@type": f"{_TYPE}BadRequest",
            "fieldViolations": [{"field": "event.content.title", "description": "must be 1 to 200 characters, not 0"}],
        },
    ],
}

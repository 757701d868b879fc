"""The OpenAPI document: valid, complete, and its examples are requests and answers of the contract."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.message import Message
from openapi_spec_validator import OpenAPIV31SpecValidator

from docs.constraints import CONSTRAINTS, ITEMS
from docs.examples import EXAMPLES
from heliograph.type.v1.refusal_pb2 import ErrorReason
from svc_ingest import core
from svc_prefs.mutes import is_topic
from tests.meta.tree import ROOT
from tests.support import contract
from tests.support.rest import Route, routes
from tests.support.schemas import faults

# Any: JSON.
DOCUMENT: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
ASCII = [chr(number) for number in range(128)]


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][route.path][route.method.lower()]
    return found


def _message(route: Route, *, answer: bool) -> Message:
    service, _, name = route.called.rpartition(".")
    method = contract.services()[service].methods_by_name[name]
    return message_factory.GetMessageClass(method.output_type if answer else method.input_type)()


def test_the_document_is_valid() -> None:
    """It is OpenAPI 3.1 by the specification's own schema, and every reference leads somewhere."""
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []
    for target in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT)):
        found = DOCUMENT
        for part in target.split("/"):
            found = found[part]


def test_it_describes_every_route_and_no_other() -> None:
    """What the edge turns into calls is in the document, and each route has examples."""
    described = {(path, verb) for path, verbs in DOCUMENT["paths"].items() for verb in verbs}
    assert described == {(route.path, route.method.lower()) for route in routes()}
    assert {route.called for route in routes()} == set(EXAMPLES)


@pytest.mark.parametrize("route", routes(), ids=lambda route: route.label)
def test_examples_are_of_the_contract_and_of_the_schemas(route: Route) -> None:
    """An example parses as the service parses it, says the same in the contract's JSON, and fits its own schema."""
    operation, example = _operation(route), EXAMPLES[route.called]
    for fields, answer in ((example.request, False), (example.response, True)):
        parsed = json_format.ParseDict(dict(fields), _message(route, answer=answer))
        assert json_format.MessageToDict(parsed) == fields
    if route.has_body:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert faults(DOCUMENT, schema, example.request) == []
    else:
        known = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
        assert [name for name, value in example.request.items() if faults(DOCUMENT, known[name], value)] == []
    answered = operation["responses"]["200"]["content"]["application/json"]
    assert faults(DOCUMENT, answered["schema"], answered["example"]) == []


@pytest.mark.parametrize("route", routes(), ids=lambda route: route.label)
def test_security_is_that_of_the_access_option(route: Route) -> None:
    """Producers come with a certificate or a token, recipients with a token; nothing is open to everybody."""
    producers = "producer" in route.roles
    assert _operation(route)["security"] == [*([{"certificate": []}] if producers else []), {"token": []}]


def test_errors_name_the_contracts_reasons() -> None:
    """A program can be generated that branches on every reason."""
    reasons = [name.removeprefix("ERROR_REASON_") for name in ErrorReason.DESCRIPTOR.values_by_name]
    assert ["UNSPECIFIED", *DOCUMENT["components"]["schemas"]["ErrorInfo"]["properties"]["reason"]["enum"]] == reasons
    for name, response in DOCUMENT["components"]["responses"].items():
        for example in [one for one in (response["content"]["application/json"].get("example"),) if one]:
            assert faults(DOCUMENT, {"$ref": "#/components/schemas/Status"}, example) == [], name


def test_bounds_are_those_that_the_services_enforce() -> None:
    """Each single character is allowed by a schema exactly when the service's own rule allows it."""
    rules: dict[str, tuple[Mapping[str, Mapping[str, Any]], Callable[[str], object]]] = {
        "heliograph.type.v1.Event.category": (CONSTRAINTS, core._CATEGORY.fullmatch),
        "heliograph.type.v1.Audience.recipient_ids": (ITEMS, core._RECIPIENT.fullmatch),
        "heliograph.type.v1.Audience.excluded_recipient_ids": (ITEMS, core._RECIPIENT.fullmatch),
        "heliograph.type.v1.Audience.topic_ids": (ITEMS, core._TOPIC.fullmatch),
        "heliograph.prefs.v1.SubscribeRequest.topic_ids": (ITEMS, is_topic),
    }
    for name, (table, rule) in rules.items():
        bounds = table[name]
        allowed = [one for one in ASCII if re.search(bounds["pattern"], one) and one != "\n"]
        assert allowed == [one for one in ASCII if rule(one)], name
        longest = "a" * bounds["maxLength"]
        assert rule(longest), name
        assert not rule(longest + "a"), name
        assert bounds["minLength"] == 1
        assert not rule("")


def test_a_request_that_breaks_a_bound_does_not_fit() -> None:
    """The strict reading notices too much, too little and what is unknown."""
    schema = {"$ref": "#/components/schemas/PublishRequest"}
    good = EXAMPLES["heliograph.ingest.v1.IngestService.Publish"].request
    assert faults(DOCUMENT, schema, good) == []
    for change in (
        {"event": {**good["event"], "category": ""}},
        {"event": {**good["event"], "category": "Upper"}},
        {"event": {**good["event"], "content": {"title": "x" * 201}}},
        {"event": {**good["event"], "audience": {"topicIds": ["t"] * 11}}},
        {"event": {**good["event"], "expireTime": "2026-11-29T17:23:20Z"}},
        {"event": {**good["event"], "ttl": "a day"}},
        {"weather": "fine"},
    ):
        assert len(faults(DOCUMENT, schema, {**good, **change})) == 1, change

"""What the edge answers is what the OpenAPI document says it answers, for each operation, good and bad."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from docs.examples import EXAMPLES, RECIPIENT
from heliograph.type.v1 import notification_pb2
from mesh.access import PRODUCER as PRODUCER_ROLE
from tests.meta.tree import ROOT
from tests.support.cluster import PRODUCER
from tests.support.publishing import publish_request
from tests.support.rest import Route, routes
from tests.support.schemas import faults
from tests.support.site import IN_A_MESH, Site
from tests.support.wait import until

pytestmark = [IN_A_MESH, pytest.mark.timeout(60)]

# Any: JSON.
DOCUMENT: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
ALL = pytest.mark.parametrize("route", routes(), ids=lambda route: route.label)
JSON = "application/json"


async def _call(
    site: Site, route: Route, fields: Mapping[str, Any], *, token: str | None = None, path: str = "", body: str = ""
) -> httpx2.Response:
    """Calls a route with these fields, or with another path or body."""
    usual_path, usual_body = route.request(dict(fields))
    owner = PRODUCER if route.role == PRODUCER_ROLE else RECIPIENT
    shown = site.cluster.token(owner, role=route.role) if token is None else token
    headers = {"authorization": f"Bearer {shown}"} if shown else {}
    content = body or usual_body
    async with site.rest() as client:
        return await client.request(
            route.method,
            path or usual_path,
            content=content.encode() or None,
            headers={**headers, **({"content-type": JSON} if content else {})},
        )


def _documented(route: Route, answer: httpx2.Response) -> Any:
    """Checks an answer against the document, and returns its JSON."""
    responses = DOCUMENT["paths"][route.path][route.method.lower()]["responses"]
    described = responses.get(str(answer.status_code))
    assert described is not None, f"{route.label} does not document {answer.status_code}: {answer.text}"
    if "$ref" in described:
        described = DOCUMENT["components"]["responses"][described["$ref"].rpartition("/")[2]]
    assert answer.headers["content-type"] == JSON
    found = answer.json()
    assert faults(DOCUMENT, described["content"][JSON]["schema"], found) == [], answer.text
    return found


async def _given(site: Site) -> str:
    """Gives the recipient a notification that uses every field, and returns its id."""
    title = f"All of it {uuid.uuid4()}"
    request = publish_request(
        title,
        to=[RECIPIENT],
        body="text",
        link="https://app.example/x",
        data_json='{"a": 1}',
        priority=notification_pb2.PRIORITY_HIGH,
    )
    event_id = (await site.publish(request)).event_id

    async def arrived() -> bool:
        items = (await site.inbox(RECIPIENT)).items
        return any(item.notification.content.title == title for item in items)

    await until(arrived, 10.0, "the notification to arrive")
    return event_id


@ALL
async def test_the_documents_own_example_is_answered_as_described(site: Site, route: Route) -> None:
    """A reader who sends the example gets 200 and a body of the schema, with nothing that it does not name."""
    await _given(site)
    answer = await _call(site, route, EXAMPLES[route.called].request)
    assert answer.status_code == 200, answer.text
    _documented(route, answer)


@ALL
async def test_what_the_service_refuses_is_described(site: Site, route: Route) -> None:
    """A request of the right shape that breaks a rule gets a reason, and wrong fields are named."""
    answer = await _call(site, route, EXAMPLES[route.called].refused)
    assert answer.status_code in (400, 403), answer.text
    refusal = _documented(route, answer)
    assert refusal["details"][0]["@type"].endswith("ErrorInfo")
    if answer.status_code == 400:
        assert refusal["details"][1]["fieldViolations"]


@ALL
async def test_what_the_edge_refuses_is_described(site: Site, route: Route) -> None:
    """An unknown parameter, a broken body and one too large have the shape of every error."""
    if not route.has_body:
        answer = await _call(site, route, {"weather": "fine"})
        assert answer.status_code == 400, answer.text
        _documented(route, answer)
        return
    for body, status in (('{"', 400), ("[1]", 400), (" " * 65_537, 413)):
        answer = await _call(site, route, {}, body=body)
        assert answer.status_code == status, answer.text
        _documented(route, answer)


@ALL
async def test_a_field_of_a_newer_contract_harms_nothing(site: Site, route: Route) -> None:
    """What the edge does not know in a body is left out of account, as the document says."""
    if route.has_body:
        answer = await _call(site, route, {**EXAMPLES[route.called].request, "weather": "fine"})
        assert answer.status_code == 200, answer.text
        _documented(route, answer)


@ALL
async def test_callers_without_the_right_token_get_the_described_refusal(site: Site, route: Route) -> None:
    """No token, no good one, one that is over, and one of another role."""
    other = "recipient" if route.role == PRODUCER_ROLE else "producer"
    tokens = {
        "": 401,
        "e30.e30.c2ln": 401,
        site.cluster.token(RECIPIENT, role=route.role, lifetime=-60.0): 401,
        site.cluster.token(PRODUCER if other == PRODUCER_ROLE else RECIPIENT, role=other): 403,
    }
    for token, status in tokens.items():
        answer = await _call(site, route, EXAMPLES[route.called].request, token=token)
        assert answer.status_code == status, answer.text
        _documented(route, answer)


async def test_conflicts_are_described(site: Site) -> None:
    """A request id of another event, and an etag that is not the stored one, are 409 as the document says."""
    by_name = {route.called.rpartition(".")[2]: route for route in routes()}
    publish, update = by_name["Publish"], by_name["UpdatePreferences"]
    first = {**EXAMPLES[publish.called].request, "requestId": str(uuid.uuid4())}
    assert (await _call(site, publish, first)).status_code == 200
    reused = await _call(site, publish, {**first, "event": {**first["event"], "category": "billing"}})
    assert reused.status_code == 409
    assert _documented(publish, reused)["details"][0]["reason"] == "REQUEST_ID_REUSED"
    preferences = {**EXAMPLES[update.called].request["preferences"], "etag": "nonsense"}
    stale = await _call(site, update, {"preferences": preferences})
    assert stale.status_code == 409
    assert _documented(update, stale)["details"][0]["reason"] == "ETAG_MISMATCH"


async def test_a_listed_notification_uses_every_documented_field(site: Site) -> None:
    """The schema of a list's row is tried in full: nothing of it is there only on paper."""
    event_id = await _given(site)
    listing = next(route for route in routes() if route.called.endswith(".ListInbox"))
    found = _documented(listing, await _call(site, listing, {"pageSize": 200}))
    row = next(item for item in found["items"] if item["notification"]["notificationId"] == event_id)
    shown = {*row["notification"], *row["notification"]["content"]}
    named = {
        *DOCUMENT["components"]["schemas"]["Notification"]["properties"],
        *DOCUMENT["components"]["schemas"]["Content"]["properties"],
    }
    assert named - shown == {"topicId", "expireTime"}

"""What prefs is asked before a late send, and what its answers mean."""

from __future__ import annotations

import pytest

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import envelope_pb2, notification_pb2, plan_pb2
from mesh.errors import Internal
from svc_delivery import wishes
from svc_delivery.wishes import Question, Wishes
from tests.support.dispatching import LIVE, NOTHING, QUIET, InProcessPrefs


def question(tenant_id: str = "acme", *recipient_ids: str, category: str = "general", topic_id: str = "") -> Question:
    """A question about one event."""
    priority = notification_pb2.PRIORITY_HIGH
    envelope = envelope_pb2.Envelope(tenant_id=tenant_id, category=category, priority=priority)
    return Question(envelope, topic_id, recipient_ids or ("alice",))


async def test_answers_come_in_the_order_of_questions() -> None:
    """One call a tenant, with category, priority and topic; who differs is told apart."""
    prefs = InProcessPrefs()
    prefs.others = {"bob": NOTHING}
    answers = await Wishes(prefs).ask(
        [question("acme", "alice", "bob"), question("other", "bob"), question("acme", category="news", topic_id="t")]
    )
    assert [answers[0].of("alice"), answers[0].of("bob"), answers[1].of("bob")] == [LIVE, NOTHING, NOTHING]
    assert [request.tenant_id for request in prefs.requests] == ["acme", "other"]
    first, second = prefs.requests[0].items
    assert (first.category, first.priority, list(first.recipient_ids)) == (
        "general",
        notification_pb2.PRIORITY_HIGH,
        ["alice", "bob"],
    )
    assert (second.category, second.topic_id) == ("news", "t")


async def test_calls_keep_to_what_prefs_takes() -> None:
    """At most 50 items and 10,000 recipients each; nothing is asked about nothing."""
    prefs = InProcessPrefs()
    asked = Wishes(prefs)
    assert await asked.ask([]) == []
    assert prefs.requests == []
    answers = await asked.ask([question("acme", *[f"r{number}" for number in range(600)])] * 120)
    assert len(answers) == 120
    assert [len(request.items) for request in prefs.requests] == [16] * 7 + [8]
    prefs.requests.clear()
    await asked.ask([question()] * 120)
    assert [len(request.items) for request in prefs.requests] == [50, 50, 20]


async def test_an_answer_to_something_else_is_not_believed() -> None:
    """Nobody is suppressed or reached by it."""

    class Mixed:
        async def resolve(self, request: pb.BatchResolveRequest) -> pb.BatchResolveResponse:
            return pb.BatchResolveResponse()

    with pytest.raises(Internal):
        await Wishes(Mixed()).ask([question()])


def test_nothing_wanted_is_a_reason_too() -> None:
    """A decision without channels and without a reason reaches nobody."""
    assert wishes.suppressed(LIVE) == wishes.suppressed(QUIET) == plan_pb2.SUPPRESS_REASON_UNSPECIFIED
    assert wishes.suppressed(NOTHING) == plan_pb2.SUPPRESS_REASON_OPTED_OUT
    assert wishes.suppressed(pb.Resolution()) == plan_pb2.SUPPRESS_REASON_OPTED_OUT
    muted = pb.Resolution(suppress_reason=plan_pb2.SUPPRESS_REASON_MUTED)
    assert wishes.suppressed(muted) == plan_pb2.SUPPRESS_REASON_MUTED

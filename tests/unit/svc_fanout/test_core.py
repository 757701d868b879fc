"""Examples and properties of `svc_fanout.core`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.ingest.v1 import event_record_pb2
from heliograph.prefs.v1 import prefs_service_pb2
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.errors import DataLoss, Internal
from svc_fanout import core
from svc_fanout.audience import NAMED, Members
from svc_fanout.batching import batches
from svc_fanout.core import Decision, Way
from svc_fanout.registry import Category
from tests.support.deciding import NOW_US, S_US, asked, cut, decided, event, parts, planned
from tests.support.dispatching import (
    LIVE,
    MUTED,
    NOTHING,
    QUIET,
    InProcessPrefs,
    make_envelope,
    make_record,
)

# ---------------------------------------------------------------- decode


def test_a_record_becomes_an_event() -> None:
    """The envelope passes as it is, and a recipient who is named twice gets it once, at his first place."""
    record = make_record(make_envelope(7), ["b", "a", "b"])
    decoded = core.decode(42, record.value)
    assert (decoded.position, decoded.recipient_ids) == (42, ("b", "a"))
    assert decoded.envelope == make_envelope(7)
    wide = core.decode(1, make_record(make_envelope(7), topic_ids=["t", "t"], excluded=["c"]).value)
    assert (wide.recipient_ids, wide.topic_ids, list(wide.excluded)) == ((), ("t",), ["c"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.envelope.ClearField("kind"),
        lambda record: setattr(record.envelope, "kind", 77),
        lambda record: record.envelope.ClearField("tenant_id"),
        lambda record: record.envelope.ClearField("notification_id"),
        lambda record: record.audience.ClearField("recipient_ids"),
        lambda record: record.audience.recipient_ids.append(""),
        lambda record: record.audience.topic_ids.append(""),
        lambda record: record.Clear(),
    ],
    ids=[
        "no kind",
        "unknown kind",
        "no tenant",
        "no id",
        "no audience",
        "nameless recipient",
        "nameless topic",
        "empty",
    ],
)
def test_what_cannot_be_delivered_is_refused_as_undecodable(spoil: object) -> None:
    """A kind that is unknown or a part that is missing is never guessed."""
    record = event_record_pb2.EventRecord.FromString(make_record(make_envelope(1), ["a"]).value)
    assert callable(spoil)
    spoil(record)
    with pytest.raises(DataLoss) as caught:
        core.decode(1, record.SerializeToString())
    assert caught.value.reason == "RECORD_UNDECODABLE"


@given(st.binary(max_size=200))
def test_any_bytes_are_an_event_or_undecodable(value: bytes) -> None:
    """Broken bytes raise nothing else."""
    with contextlib.suppress(DataLoss):
        decoded = core.decode(1, value)
        assert decoded.recipient_ids or decoded.topic_ids


# ---------------------------------------------------------------- expiry


@pytest.mark.parametrize(
    ("expire_us", "expired"),
    [(None, False), (NOW_US, False), (NOW_US - S_US, False), (NOW_US - S_US - 1, True), (NOW_US - 10 * S_US, True)],
)
def test_nothing_expires_before_every_clock_agrees(expire_us: int | None, expired: bool) -> None:
    """An event is over only when the clock furthest behind says so."""
    assert core.is_expired(make_envelope(1, expire_us=expire_us), NOW_US) is expired


def test_expired_events_ask_nobody_and_travel_with_their_reason() -> None:
    """Prefs is not asked about them; delivery gets them to write the decision down."""
    over = event(1, 3, expire_us=NOW_US - 2 * S_US)
    assert asked([over]) == []
    (batch,) = cut([over], InProcessPrefs())
    (plan,) = batch.message.plans
    assert plan == plan_pb2.Plan(suppress_reason=plan_pb2.SUPPRESS_REASON_EXPIRED)
    assert list(batch.message.dispatches[0].groups[0].recipient_ids) == ["r0", "r1", "r2"]


def test_an_event_that_expires_while_prefs_is_asked_is_expired() -> None:
    """The later look decides."""
    events = [event(1, 2, expire_us=NOW_US)]
    answers = decided(events, InProcessPrefs())
    (batch,) = batches(planned(events, answers, NOW_US + 2 * S_US))
    assert batch.message.plans[0].suppress_reason == plan_pb2.SUPPRESS_REASON_EXPIRED


# ---------------------------------------------------------------- questions and answers


def in_category(number: int, category: str, names: Sequence[str], tenant_id: str = "acme") -> core.Event:
    """An event of a category and tenant."""
    envelope = make_envelope(number, category=category, tenant_id=tenant_id)
    return core.decode(number, make_record(envelope, names).value)


def test_a_recipient_is_asked_about_once_a_category() -> None:
    """Many events of one page become one item a category, with each recipient once."""
    events = [
        in_category(1, "general", ["a", "b"]),
        in_category(2, "mention", ["a"]),
        in_category(3, "general", ["b", "c"]),
    ]
    (request,) = asked(events)
    assert request.tenant_id == "acme"
    assert {item.category: list(item.recipient_ids) for item in request.items} == {
        "general": ["a", "b", "c"],
        "mention": ["a"],
    }
    assert {item.priority for item in request.items} == {notification_pb2.PRIORITY_NORMAL}


def test_tenants_are_asked_about_apart() -> None:
    """One call is about one tenant, and the same recipient id in two tenants is two people."""
    events = [in_category(1, "general", ["a"], "acme"), in_category(2, "general", ["a"], "beta")]
    requests = asked(events)
    assert [request.tenant_id for request in requests] == ["acme", "beta"]
    ((acme, live),) = core.answers(requests[0], InProcessPrefs(LIVE).decide(requests[0]))
    ((beta, nothing),) = core.answers(requests[1], InProcessPrefs(NOTHING).decide(requests[1]))
    assert (acme.tenant_id, live["a"].allows) == ("acme", True)
    assert (beta.tenant_id, nothing["a"].allows) == ("beta", False)


def test_calls_stay_within_the_limits_of_prefs() -> None:
    """At most 50 items and 2,000 recipients a call, and nobody is left out."""
    events = [in_category(number, f"c{number:03}", ["a", "b"]) for number in range(120)]
    events.append(core.Event(500, make_envelope(500), [f"r{index}" for index in range(5_000)]))
    requests = asked(events)
    named_in: Counter[tuple[str, str]] = Counter()
    for request in requests:
        assert 1 <= len(request.items) <= 50
        assert sum(len(item.recipient_ids) for item in request.items) <= 2_000
        named_in.update((item.category, recipient_id) for item in request.items for recipient_id in item.recipient_ids)
    wanted = {(one.envelope.category, recipient_id) for one in events for recipient_id in one.recipient_ids}
    assert named_in == Counter(dict.fromkeys(wanted, 1))
    assert len(requests) <= 5


def test_decisions_of_a_page_that_took_several_calls_are_joined() -> None:
    """Who differs in the first call and who differs in the second are both known."""
    prefs = InProcessPrefs()
    prefs.others = {"r3": NOTHING, "r2005": QUIET}
    events = [core.Event(1, make_envelope(1), [f"r{index}" for index in range(2_400)])]
    assert len(asked(events)) == 2
    (decisions,) = decided(events, prefs).values()
    assert len(decisions) == 2_400
    live = core.decision_of(LIVE)
    assert {name: one for name, one in decisions.items() if one != live} == {
        "r3": core.decision_of(NOTHING),
        "r2005": core.decision_of(QUIET),
    }


def test_an_answer_that_does_not_fit_its_question_is_a_failure() -> None:
    """Nothing is planned with it; the worker asks again."""
    (request,) = asked([event(1, 1)])
    with pytest.raises(Internal, match="0 of 1 items"):
        core.answers(request, prefs_service_pb2.BatchResolveResponse())


def test_an_answer_about_strangers_is_not_taken() -> None:
    """Only those who were asked about have a decision afterwards, whoever a group names."""
    (request,) = asked([event(1, 1)])
    response = InProcessPrefs().decide(request)
    response.items[0].groups.add(resolution=NOTHING, recipient_ids=["mallory"])
    ((_, decisions),) = core.answers(request, response)
    assert decisions == {"r0": core.decision_of(LIVE)}


def test_a_topic_is_a_question_of_its_own() -> None:
    """Wishes about a topic are asked for by the topic, each recipient for every way that leads to him."""
    one = core.Event(1, make_envelope(1), ["a"], ["t", "u"])
    members = Members({NAMED: ["a"], 2: ["b"], 2 | 4: ["c"], NAMED | 4: ["d"]})
    (request,) = core.questions(core.wanted([(one, members)], NOW_US))
    assert {item.topic_id: sorted(item.recipient_ids) for item in request.items} == {
        "": ["a", "d"],
        "t": ["b", "c"],
        "u": ["c", "d"],
    }


# ---------------------------------------------------------------- decisions

_GO, _OFF, _MUTED = (core.decision_of(one) for one in (LIVE, NOTHING, MUTED))


@pytest.mark.parametrize(
    ("by_topic", "by_other", "expected"),
    [
        (_GO, _GO, _GO),
        (_MUTED, _GO, _GO),
        (_GO, _MUTED, _GO),
        (_GO, None, _GO),
        (_MUTED, None, None),
        (_MUTED, _MUTED, _MUTED),
        (_MUTED, _OFF, _OFF),
        (_OFF, _MUTED, _OFF),
        (None, None, None),
    ],
)
def test_any_way_that_allows_is_enough(
    by_topic: Decision | None, by_other: Decision | None, expected: Decision | None
) -> None:
    """Suppressed only when no way allows, undecided only when it depends on a way of which nothing is known."""
    one = core.Event(1, make_envelope(1), [], ["t", "u"])
    decisions: dict[Way, dict[str, Decision]] = {}
    for topic_id, decision in (("t", by_topic), ("u", by_other)):
        if decision is not None:
            decisions[Way("acme", "general", notification_pb2.PRIORITY_NORMAL, topic_id)] = {"a": decision}
    plan = core.decide(one, Members({2 | 4: ["a"]}), decisions, NOW_US)
    assert (None if plan is None else plan.groups) == (None if expected is None else [(expected, ["a"])])


def test_the_excluded_get_a_reason() -> None:
    """They are in no other group, and nobody is asked about them."""
    one = core.Event(1, make_envelope(1), ["a", "b"], [], ["b"])
    (batch,) = cut([one], InProcessPrefs())
    found = {
        group.recipient_ids[0]: batch.message.plans[group.plan_index].suppress_reason
        for group in batch.message.dispatches[0].groups
    }
    assert found == {"a": 0, "b": plan_pb2.SUPPRESS_REASON_EXCLUDED}
    assert [list(item.recipient_ids) for request in asked([one]) for item in request.items] == [["a"]]


def test_what_is_not_known_is_decided_by_the_fallback_only() -> None:
    """Without one the event waits; with one the known wishes still count."""
    one, members = parts([event(1, 2)])[0]
    way = Way("acme", "general", notification_pb2.PRIORITY_NORMAL)
    assert core.decide(one, members, {}, NOW_US) is None
    plan = core.decide(one, members, {way: {"r0": _OFF}}, NOW_US, _GO)
    assert plan is not None
    assert plan.groups == [(_OFF, ["r0"]), (_GO, ["r1"])]


def test_only_essential_categories_have_a_fallback() -> None:
    """It is their default in the registry; a category that nobody knows here waits."""
    categories = {
        "security": Category(essential=True),
        "quiet": Category(essential=True, channels=("inbox",)),
        "off": Category(essential=True, enabled=False),
        "general": Category(),
    }
    assert core.fallback_of(categories, "security") == _GO
    assert core.fallback_of(categories, "quiet") == core.decision_of(QUIET)
    assert core.fallback_of(categories, "off") == _OFF
    assert core.fallback_of(categories, "general") is None
    assert core.fallback_of(categories, "gossip") is None


def test_equal_decisions_of_several_answers_make_one_group() -> None:
    """Decisions that were learnt at different times are told apart by their value."""
    one, members = parts([event(1, 3)])[0]
    way = Way("acme", "general", notification_pb2.PRIORITY_NORMAL)
    known = {way: {f"r{number}": core.decision_of(LIVE) for number in range(3)}}
    plan = core.decide(one, members, known, NOW_US)
    assert plan is not None
    assert plan.groups == [(_GO, ["r0", "r1", "r2"])]


def test_chunks_are_bounded() -> None:
    """Events stay in order; a chunk has few topics and names few recipients, but an event is never cut."""
    events = [core.Event(number, make_envelope(number), ["a"] * 9_000, ["t"] * 5) for number in range(4)]
    events += [core.Event(number, make_envelope(number), [], ["t"] * 10) for number in range(4, 8)]
    events.append(core.Event(8, make_envelope(8), ["a"] * 30_000))
    assert [[one.position for one in chunk] for chunk in core.chunks(events)] == [
        [0, 1],
        [2, 3],
        [4],
        [5],
        [6],
        [7],
        [8],
    ]
    assert list(core.chunks([])) == []

"""What a batch from fanout becomes: examples, and that nobody is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.delivery.v1 import lane_record_pb2
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.errors import DataLoss
from mesh.ids import from_text, join_key
from mesh.times import micros_of
from svc_delivery import intake
from svc_delivery.ports import DecisionWrite, RowWrite
from tests.support.dispatching import id_of, make_envelope

NOW_US = 1_700_000_100_000_000
S_US = intake.CLOCK_ALLOWANCE_US
INBOX = plan_pb2.PlanStep(channel=notification_pb2.CHANNEL_INBOX)
LIVE_STEP = plan_pb2.PlanStep(channel=notification_pb2.CHANNEL_LIVE)
LIVE = plan_pb2.Plan(steps=[INBOX, LIVE_STEP])
QUIET = plan_pb2.Plan(steps=[INBOX])
NOTHING = plan_pb2.Plan(suppress_reason=plan_pb2.SUPPRESS_REASON_OPTED_OUT)
PLANS = [LIVE, QUIET, NOTHING]


def dispatch(number: int, *groups: Sequence[str], expire_us: int | None = None) -> pb.Dispatch:
    """Event `number` for groups of recipients, the first under the first plan and so on."""
    return pb.Dispatch(
        envelope=make_envelope(number, expire_us=expire_us),
        groups=[
            plan_pb2.RecipientGroup(recipient_ids=recipient_ids, plan_index=index)
            for index, recipient_ids in enumerate(groups)
            if recipient_ids
        ],
    )


def batch(*dispatches: pb.Dispatch) -> pb.DispatchBatch:
    """A batch with all plans."""
    return pb.DispatchBatch(sequence=1, plans=PLANS, dispatches=dispatches)


def follow_ups(taken: intake.Intake) -> lane_record_pb2.LaneRecord:
    """The follow-up record of a batch."""
    assert taken.follow_up is not None
    return lane_record_pb2.LaneRecord.FromString(taken.follow_up.record)


def test_recipients_get_rows_and_the_suppressed_a_decision() -> None:
    """Rows share the content; one decision record a group says why its recipients get nothing."""
    taken = intake.take(batch(dispatch(1, ["a", "b"], ["c"], ["d", "e"])), NOW_US)
    id_ = from_text(id_of(1))
    assert taken.rows == [RowWrite(f"acme/{name}", id_, 1, "general", b"content 1", None) for name in ("a", "b", "c")]
    assert taken.decisions == [DecisionWrite("acme", id_, plan_pb2.SUPPRESS_REASON_OPTED_OUT, ("d", "e"), NOW_US)]
    assert taken.suppressed_count == 2
    assert taken.refusals == []


def test_only_live_plans_are_offered_and_followed_up() -> None:
    """The follow-up names ids and steps, no content, and is due after the ack window."""
    taken = intake.take(batch(dispatch(1, ["a"], ["b"]), dispatch(2, ["a/b"])), NOW_US)
    assert [(offer.envelope.event_id, list(offer.recipient_keys)) for offer in taken.offers] == [
        (id_of(1), ["acme/a"]),
        (id_of(2), ["acme/a%2Fb"]),
    ]
    record = follow_ups(taken)
    assert list(record.follow_ups.plans) == PLANS
    assert [(item.recipient_key, item.ref.notification_id, item.ref.revision) for item in record.follow_ups.items] == [
        ("acme/a", id_of(1), 1),
        ("acme/a%2Fb", id_of(2), 1),
    ]
    assert all(record.follow_ups.plans[item.plan_index] == LIVE for item in record.follow_ups.items)
    assert {(item.step_index, item.try_count, item.priority) for item in record.follow_ups.items} == {
        (1, 0, notification_pb2.PRIORITY_NORMAL)
    }
    assert taken.follow_up is not None
    assert taken.follow_up.due_us == micros_of(record.due_time) == NOW_US + 10_000_000


def test_a_plan_may_name_its_own_ack_window() -> None:
    """It counts from now."""
    plan = plan_pb2.Plan(steps=[INBOX, LIVE_STEP])
    plan.steps[1].ack_window.FromMilliseconds(2_500)
    one = pb.DispatchBatch(plans=[plan], dispatches=[dispatch(1, ["a"])])
    taken = intake.take(one, NOW_US)
    assert taken.follow_up is not None
    assert taken.follow_up.due_us == NOW_US + 2_500_000


def test_a_follow_up_goes_with_what_is_most_urgent_in_it_and_lives_as_long_as_its_last_event() -> None:
    """So that a backlog can be worked in the right order without a look inside."""
    envelopes = [make_envelope(number, expire_us=NOW_US + 60_000_000 * number) for number in (1, 2)]
    envelopes[1].priority = notification_pb2.PRIORITY_BULK
    group = plan_pb2.RecipientGroup(recipient_ids=["a"])
    for envelope, expected in ((None, NOW_US + 120_000_000), (make_envelope(3), None)):
        envelopes += [envelope] if envelope is not None else []
        dispatches = [pb.Dispatch(envelope=one, groups=[group]) for one in envelopes]
        follow_up = intake.take(pb.DispatchBatch(plans=[LIVE], dispatches=dispatches), NOW_US).follow_up
        assert follow_up is not None
        assert (follow_up.priority, follow_up.expire_us) == (notification_pb2.PRIORITY_NORMAL, expected)


def test_without_a_live_plan_there_is_no_follow_up() -> None:
    """Being in the inbox is all these ask for."""
    taken = intake.take(batch(dispatch(1, [], ["a"], ["b"])), NOW_US)
    assert (len(taken.rows), len(taken.decisions), taken.follow_up, taken.offers) == (1, 1, None, [])


@pytest.mark.parametrize(("late_us", "is_expired"), [(0, False), (S_US, False), (S_US + 1, True)])
def test_an_expired_event_becomes_decisions(late_us: int, is_expired: bool) -> None:
    """Nobody gets it, and whoever would have is named with that reason; the clocks' difference is allowed for."""
    taken = intake.take(batch(dispatch(1, ["a"], ["b"], expire_us=NOW_US - late_us)), NOW_US)
    if not is_expired:
        assert [row.expire_us for row in taken.rows] == [NOW_US - late_us] * 2
        return
    assert (taken.rows, taken.offers, taken.follow_up) == ([], [], None)
    assert [(one.suppress_reason, one.recipient_ids) for one in taken.decisions] == [
        (plan_pb2.SUPPRESS_REASON_EXPIRED, ("a",)),
        (plan_pb2.SUPPRESS_REASON_EXPIRED, ("b",)),
    ]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one: one.envelope.ClearField("kind"),
        lambda one: setattr(one.envelope, "kind", 9),
        lambda one: setattr(one.envelope, "notification_id", "no id"),
        lambda one: setattr(one.envelope, "event_id", ""),
        lambda one: one.envelope.ClearField("tenant_id"),
        lambda one: one.envelope.ClearField("revision"),
        lambda one: setattr(one.groups[0], "plan_index", 3),
        lambda one: setattr(one.groups[0], "plan_index", -1),
    ],
    ids=["no kind", "unknown kind", "bad id", "no event id", "no tenant", "no revision", "no such plan", "negative"],
)
def test_what_cannot_be_read_is_refused_by_its_index(spoil: Callable[[pb.Dispatch], None]) -> None:
    """Nothing of it is written, and its neighbours are taken as if it were not there."""
    good, bad = dispatch(1, ["a"]), dispatch(2, ["x"], ["y"])
    spoil(bad)
    taken = intake.take(batch(good, bad, good), NOW_US)
    ((index, failure),) = taken.refusals
    assert index == 1
    assert isinstance(failure, DataLoss)
    assert failure.reason == "RECORD_UNDECODABLE"
    assert not failure.retriable
    assert {row.recipient_key for row in taken.rows} == {"acme/a"}
    assert {item.recipient_key for item in follow_ups(taken).follow_ups.items} == {"acme/a"}
    assert len(taken.offers) == 2


def test_the_same_batch_later_becomes_the_same_rows() -> None:
    """Rows and who is decided about do not depend on when or how often it arrives."""
    one = batch(dispatch(1, ["a", "b"], ["c"], ["d"]), dispatch(2, ["a"]))
    first, again = intake.take(one, NOW_US), intake.take(one, NOW_US + 60_000_000)
    assert first.rows == again.rows
    assert [decision.recipient_ids for decision in first.decisions] == [
        decision.recipient_ids for decision in again.decisions
    ]
    assert follow_ups(first).follow_ups == follow_ups(again).follow_ups


_DISPATCHES = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcdefgh"), unique=True),
        st.lists(st.sampled_from("ijklmnop"), unique=True),
        st.lists(st.sampled_from("qrstuvwx"), unique=True),
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
)


@given(_DISPATCHES)
def test_every_recipient_is_in_exactly_one_place(
    drawn: list[tuple[list[str], list[str], list[str], bool, bool]],
) -> None:
    """A row, a decision or a refusal for each; an offer and a follow-up for exactly those rows whose plan is live."""
    dispatches = []
    rows: Counter[tuple[str, str]] = Counter()
    decided: Counter[tuple[str, str]] = Counter()
    live: Counter[tuple[str, str]] = Counter()
    refused = []
    for number, (loud, quiet, silenced, over, broken) in enumerate(drawn):
        one = dispatch(number, loud, quiet, silenced, expire_us=NOW_US - 10 * S_US if over else None)
        dispatches.append(one)
        if broken:
            one.envelope.kind = 0  # type: ignore[assignment]  # the enum's zero
            refused.append(number)
            continue
        suppressed = [*loud, *quiet, *silenced] if over else silenced
        decided.update((id_of(number), name) for name in suppressed)
        if not over:
            rows.update((id_of(number), join_key("acme", name)) for name in (*loud, *quiet))
            live.update((id_of(number), join_key("acme", name)) for name in loud)
    taken = intake.take(batch(*dispatches), NOW_US)
    id_texts = {from_text(id_of(number)): id_of(number) for number in range(len(drawn))}
    assert Counter((id_texts[row.notification_id], row.recipient_key) for row in taken.rows) == rows
    assert Counter((id_texts[one.event_id], name) for one in taken.decisions for name in one.recipient_ids) == decided
    assert taken.suppressed_count == decided.total()
    assert [index for index, _ in taken.refusals] == refused
    offered = Counter((offer.envelope.event_id, key) for offer in taken.offers for key in offer.recipient_keys)
    assert offered == live
    if not live:
        assert taken.follow_up is None
        return
    items = follow_ups(taken).follow_ups.items
    assert Counter((item.ref.notification_id, item.recipient_key) for item in items) == live

"""Rules of `svc_delivery.core`: callers, marks, states, follow-ups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.type.v1 import notification_pb2 as types
from heliograph.type.v1 import plan_pb2
from mesh.errors import InvalidArgument, PermissionDenied
from mesh.ids import to_text
from svc_delivery import core
from svc_delivery.core import Asker, Done, LookAgain, OfferAgain
from svc_delivery.ports import AckLevel, MarkWrite, RowState
from tests.support.inbox import ALICE, BOB, NOW_US, make_id

RECIPIENT = Asker("recipient", "alice", "acme")
OPERATOR = Asker("operator", "ann", "")
GATEWAY = Asker("gateway", "gateway", "")
SECOND_US = 1_000_000
LIVE = plan_pb2.Plan(
    steps=[plan_pb2.PlanStep(channel=types.CHANNEL_INBOX), plan_pb2.PlanStep(channel=types.CHANNEL_LIVE)]
)
INBOX_ONLY = plan_pb2.Plan(steps=[plan_pb2.PlanStep(channel=types.CHANNEL_INBOX)])


def fields_of(caught: pytest.ExceptionInfo[InvalidArgument]) -> list[str]:
    """The fields that a refusal names."""
    return [violation.field for violation in caught.value.violations]


# ---------------------------------------------------------------- whose inbox


@pytest.mark.parametrize(("recipient_id", "tenant_id"), [("", ""), ("alice", ""), ("", "acme"), ("alice", "acme")])
def test_a_recipient_is_itself_by_default(recipient_id: str, tenant_id: str) -> None:
    """Naming oneself and naming nobody is the same."""
    assert core.inbox_of(RECIPIENT, recipient_id=recipient_id, tenant_id=tenant_id) == ALICE


@pytest.mark.parametrize(("recipient_id", "tenant_id"), [("bob", ""), ("alice", "other"), ("", "other"), ("bob", "x")])
def test_a_recipient_sees_no_other_inbox(recipient_id: str, tenant_id: str) -> None:
    """Neither another recipient nor another tenant."""
    with pytest.raises(PermissionDenied) as caught:
        core.inbox_of(RECIPIENT, recipient_id=recipient_id, tenant_id=tenant_id)
    assert caught.value.reason == "CALLER_NOT_ALLOWED"


def test_an_operator_names_whose_inbox() -> None:
    """Tenant and recipient, escaped in the key; every missing one is named."""
    assert core.inbox_of(OPERATOR, recipient_id="a/b", tenant_id="acme") == "acme/a%2Fb"
    with pytest.raises(InvalidArgument) as caught:
        core.inbox_of(OPERATOR, recipient_id="", tenant_id="")
    assert fields_of(caught) == ["tenant_id", "recipient_id"]


@pytest.mark.parametrize(("key", "right"), [(ALICE, True), ("acme/a%2Fb", True), ("acme", False), ("", False)])
def test_keys_have_two_parts(key: str, right: bool) -> None:
    """A key is an escaped tenant and recipient."""
    assert core.is_recipient_key(key) is right


@pytest.mark.parametrize("key", ["/alice", "acme/", "acme/a/b", "acme/%zz"])
def test_malformed_keys_are_named_by_their_place(key: str) -> None:
    """A batch is refused whole, with the index of what is wrong."""
    with pytest.raises(InvalidArgument) as caught:
        core.check_keys([ALICE, key])
    assert fields_of(caught) == ["recipient_keys[1]"]


def test_batches_of_keys_are_bounded() -> None:
    """Neither none nor more than a thousand."""
    core.check_keys([ALICE] * 1000)
    for count in (0, 1001):
        with pytest.raises(InvalidArgument):
            core.check_keys([ALICE] * count)


# ---------------------------------------------------------------- states and marks


def row(*, ack: int = 0, read: bool = False, hidden: bool = False, expire_us: int = NOW_US + SECOND_US) -> RowState:
    """A row with these cells."""
    return RowState(make_id(1), 1, NOW_US, 0, ack, read, hidden, expire_us)


@given(st.sampled_from(AckLevel), st.booleans(), st.booleans())
def test_the_state_shown_is_the_furthest(ack: AckLevel, read: bool, hidden: bool) -> None:
    """HIDDEN before READ before SEEN before RECEIVED before NEW."""
    by_ack = [
        types.NOTIFICATION_STATE_NEW,
        types.NOTIFICATION_STATE_RECEIVED,
        types.NOTIFICATION_STATE_RECEIVED,
        types.NOTIFICATION_STATE_SEEN,
    ]
    expected = types.NOTIFICATION_STATE_HIDDEN if hidden else types.NOTIFICATION_STATE_READ if read else by_ack[ack]
    assert core.state_of(row(ack=ack, read=read, hidden=hidden)) == expected


def mark(kind: types.MarkKind.ValueType = types.MARK_KIND_READ, *, key: str = "", count: int = 1) -> types.Mark:
    """A mark of the first notifications."""
    refs = [types.NotificationRef(notification_id=to_text(make_id(number)), revision=1) for number in range(count)]
    return types.Mark(recipient_key=key, kind=kind, refs=refs)


@pytest.mark.parametrize(
    ("kind", "ack", "read", "hide"),
    [
        (types.MARK_KIND_RECEIVED, AckLevel.RECEIVED, None, False),
        (types.MARK_KIND_FOREGROUND, AckLevel.FOREGROUND, None, False),
        (types.MARK_KIND_SEEN, AckLevel.SEEN, None, False),
        (types.MARK_KIND_READ, AckLevel.SEEN, True, False),
        (types.MARK_KIND_UNREAD, AckLevel.NONE, False, False),
        (types.MARK_KIND_HIDDEN, AckLevel.NONE, None, True),
    ],
)
def test_each_kind_of_mark_has_its_effect(
    kind: types.MarkKind.ValueType, ack: AckLevel, read: bool | None, hide: bool
) -> None:
    """An ack includes those before it; only a gateway's marks are vouched for."""
    assert core.plan_marks([mark(kind)], RECIPIENT) == [MarkWrite(ALICE, [make_id(0)], ack, read, hide, False)]
    assert core.plan_marks([mark(kind, key=BOB)], GATEWAY) == [MarkWrite(BOB, [make_id(0)], ack, read, hide, True)]


def test_every_kind_of_the_contract_is_known() -> None:
    """A kind added to the contract must get an effect."""
    kinds = [kind for kind in types.MarkKind.values() if kind != types.MARK_KIND_UNSPECIFIED]
    assert len(core.plan_marks([mark(kind) for kind in kinds], RECIPIENT)) == len(kinds)


def test_a_recipient_marks_only_its_own() -> None:
    """One foreign key refuses the call, wherever it stands."""
    with pytest.raises(PermissionDenied):
        core.plan_marks([mark(key=ALICE), mark(key=BOB)], RECIPIENT)


def test_every_violation_of_a_mark_is_named() -> None:
    """Kind, refs, ids, revisions and the key of a gateway's mark."""
    bad = types.Mark(kind=types.MARK_KIND_UNSPECIFIED, refs=[types.NotificationRef(notification_id="X", revision=-1)])
    with pytest.raises(InvalidArgument) as caught:
        core.plan_marks([mark(key=ALICE), bad, types.Mark(recipient_key=ALICE, kind=types.MARK_KIND_READ)], GATEWAY)
    assert fields_of(caught) == [
        "marks[1].recipient_key",
        "marks[1].kind",
        "marks[1].refs[0].notification_id",
        "marks[1].refs[0].revision",
        "marks[2].refs",
    ]


@pytest.mark.parametrize(
    "marks",
    [
        pytest.param([], id="none"),
        pytest.param([mark()] * 501, id="too many marks"),
        pytest.param([mark(count=501)], id="too many refs of one"),
        pytest.param([mark(count=500)] * 11, id="too many refs in all"),
    ],
)
def test_marks_are_bounded(marks: list[types.Mark]) -> None:
    """500 marks, 500 refs each, 5,000 in all."""
    with pytest.raises(InvalidArgument):
        core.plan_marks(marks, RECIPIENT)


def test_sifting_keeps_the_good_marks() -> None:
    """What nobody waits for is not held up by a malformed neighbour."""
    good, bad = mark(key=ALICE), mark(key="")
    kept, planned, wrong = core.sift_marks([bad, good, bad], GATEWAY)
    assert kept == [good]
    assert planned == core.plan_marks([good], GATEWAY)
    assert [violation.field for violation in wrong] == ["marks[0].recipient_key", "marks[2].recipient_key"]


def test_received_refs_are_checked() -> None:
    """At most 500 well-formed ones."""
    refs = mark(count=2).refs
    assert core.received_of(refs) == {make_id(0): 1, make_id(1): 1}
    with pytest.raises(InvalidArgument) as caught:
        core.received_of([*mark(count=500).refs, types.NotificationRef(notification_id="no")])
    assert fields_of(caught) == ["received_refs", "received_refs[500].notification_id"]


def test_changes_are_grouped_by_their_last_state() -> None:
    """A row marked twice in one batch is told once, as it is now."""
    first, last = row(read=True), row(ack=3)
    assert core.by_state([first, last]) == {types.NOTIFICATION_STATE_SEEN: [core.ref_of(last)]}


# ---------------------------------------------------------------- follow-ups


def step(
    found: RowState | None, *, plan: plan_pb2.Plan = LIVE, tries: int = 0, present: bool | None = True
) -> core.NextStep:
    """The next step of a delivery that is due now."""
    return core.next_step(plan=plan, try_count=tries, row=found, present=present, now_us=NOW_US)


@pytest.mark.parametrize("present", [True, False, None])
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "TRIMMED"),
        (row(hidden=True), "HIDDEN"),
        (row(ack=AckLevel.RECEIVED), "ACKED"),
        (row(read=True), "ACKED"),
        (row(expire_us=NOW_US), "EXPIRED"),
    ],
)
def test_what_the_row_knows_ends_a_delivery(found: RowState | None, reason: str, present: bool | None) -> None:
    """Without asking where the recipient is."""
    assert step(found, present=present) == Done(reason)


def test_a_plan_without_live_rests_in_the_inbox() -> None:
    """The inbox is all it asked for."""
    assert step(row(), plan=INBOX_ONLY) == Done("RESTS")
    assert core.first_due(NOW_US, INBOX_ONLY) is None


def test_the_first_look_is_after_the_ack_window() -> None:
    """10 s, or what the plan says."""
    assert core.first_due(NOW_US, LIVE) == NOW_US + 10 * SECOND_US
    slow = plan_pb2.Plan(steps=[plan_pb2.PlanStep(channel=types.CHANNEL_LIVE)])
    slow.steps[0].ack_window.seconds = 30
    assert core.first_due(NOW_US, slow) == NOW_US + 30 * SECOND_US


def test_a_present_recipient_is_offered_it_three_times_more() -> None:
    """After 10 s, 1 min and 10 min; then it rests in the inbox, for live has no dead letters."""
    assert [step(row(), tries=tries) for tries in range(4)] == [
        OfferAgain(NOW_US + 60 * SECOND_US, 1),
        OfferAgain(NOW_US + 600 * SECOND_US, 2),
        OfferAgain(None, 3),
        Done("RESTS"),
    ]


def test_an_absent_recipient_finds_it_in_the_inbox() -> None:
    """Its next session replays."""
    assert step(row(), present=False) == Done("RESTS")


@given(st.integers(0, 2))
def test_silence_of_presence_is_no_try(tries: int) -> None:
    """No answer is not the same as nobody there, and brings nothing nearer to its end."""
    assert step(row(), tries=tries, present=None) == LookAgain(NOW_US + 10 * SECOND_US)

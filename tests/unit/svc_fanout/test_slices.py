"""What a slice is made of and what is made of it: `svc_fanout.slices`."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.type.v1 import plan_pb2
from mesh.errors import DataLoss
from svc_fanout import core, slices
from svc_fanout.slices import Mark, Seen
from tests.support.dispatching import LIVE, NOTHING, id_of, make_envelope

NOW_US = 1_700_000_100_000_000
_GO, _OFF = core.decision_of(LIVE), core.decision_of(NOTHING)


def planned(count: int, *, expire_us: int | None = None) -> core.Planned:
    """A decided audience: every tenth recipient does not want it."""
    names = [f"r{number:06}" for number in range(count)]
    event = core.Event(5, make_envelope(1, expire_us=expire_us), (), ("t",))
    off = names[::10]
    return core.Planned(event, [(_GO, [one for one in names if one not in set(off)]), (_OFF, off)])


def test_slices_are_numbered_and_name_everybody_once() -> None:
    """Each has the envelope, its plans and at most 2,000 recipients; numbers go on where they are told."""
    records = slices.cut(planned(4_500), 7)
    assert [record.slice_index for record in records] == [7, 8, 9]
    named = [id_ for record in records for group in record.groups for id_ in group.recipient_ids]
    assert sorted(named) == [f"r{number:06}" for number in range(4_500)]
    assert all(record.envelope == make_envelope(1) for record in records)
    assert all(sum(len(group.recipient_ids) for group in record.groups) <= 2_000 for record in records)


def test_a_slice_is_sent_as_it_was_planned() -> None:
    """The batch has its plans, its recipients and the position of its record."""
    (record,) = slices.cut(planned(20), 0)
    batch = slices.batch_of(42, slices.decode(record.SerializeToString()), NOW_US)
    assert batch.positions == [42]
    (dispatch,) = batch.message.dispatches
    assert dispatch.envelope == record.envelope
    reasons = {
        id_: batch.message.plans[group.plan_index].suppress_reason
        for group in dispatch.groups
        for id_ in group.recipient_ids
    }
    assert [id_ for id_, reason in reasons.items() if reason] == ["r000000", "r000010"]


def test_a_slice_whose_event_is_over_reaches_nobody() -> None:
    """Everybody who would have got it has expired; an earlier reason stays."""
    (record,) = slices.cut(planned(20, expire_us=NOW_US), 0)
    batch = slices.batch_of(1, record, NOW_US + 2 * core.CLOCK_ALLOWANCE_US)
    assert {plan.suppress_reason for plan in batch.message.plans} == {
        plan_pb2.SUPPRESS_REASON_EXPIRED,
        plan_pb2.SUPPRESS_REASON_OPTED_OUT,
    }
    assert all(not plan.steps for plan in batch.message.plans)


def test_a_slice_without_recipients_or_plans_is_undecodable() -> None:
    """So is one of an unknown kind; nothing is guessed."""
    (record,) = slices.cut(planned(20), 0)
    for spoil in ("groups", "plans", "envelope"):
        broken = type(record).FromString(record.SerializeToString())
        broken.ClearField(spoil)
        with pytest.raises(DataLoss):
            slices.decode(broken.SerializeToString())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_slice_or_undecodable(value: bytes) -> None:
    """Broken bytes raise nothing else."""
    with contextlib.suppress(DataLoss):
        assert slices.decode(value).groups


def test_a_note_says_where_planning_goes_on() -> None:
    """It belongs to one event; what cannot be read is as good as none."""
    event = planned(1).event
    mark = Mark(id_of(1), 12, "r7")
    notes = {5: slices.note_of(mark), 6: slices.note_of(mark)}
    assert slices.mark_of(notes, event) == mark
    assert slices.mark_of({5: slices.note_of(Mark(id_of(2), 12, "r7"))}, event) is None
    assert slices.mark_of({5: b"\xc1"}, event) is None
    assert slices.mark_of({}, event) is None


def test_a_slice_is_seen_once() -> None:
    """The same bytes are known again; the same number with other recipients is another slice."""
    seen = Seen(most=2)
    assert [seen.add(b"a"), seen.add(b"b"), seen.add(b"a"), seen.add(b"c"), seen.add(b"a")] == [
        True,
        True,
        False,
        True,
        True,
    ]

"""Examples and properties of `svc_fanout.batching`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.prefs.v1 import prefs_service_pb2
from heliograph.type.v1 import notification_pb2, plan_pb2
from svc_fanout import batching, core
from svc_fanout.batching import Batch, narrowed, pieces, plan_of
from tests.support.deciding import NOW_US, S_US, cut, event, recipients_of
from tests.support.dispatching import (
    LIVE,
    NOTHING,
    QUIET,
    InProcessPrefs,
    id_of,
    make_envelope,
    make_record,
)

# ---------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("resolution", "channels", "reason"),
    [
        (LIVE, [notification_pb2.CHANNEL_INBOX, notification_pb2.CHANNEL_LIVE], 0),
        (QUIET, [notification_pb2.CHANNEL_INBOX], 0),
        (NOTHING, [], plan_pb2.SUPPRESS_REASON_OPTED_OUT),
        (prefs_service_pb2.Resolution(), [], plan_pb2.SUPPRESS_REASON_OPTED_OUT),
        (
            prefs_service_pb2.Resolution(channels=LIVE.channels, suppress_reason=plan_pb2.SUPPRESS_REASON_EXPIRED),
            [],
            plan_pb2.SUPPRESS_REASON_EXPIRED,
        ),
    ],
)
def test_a_plan_has_steps_or_a_reason(
    resolution: prefs_service_pb2.Resolution, channels: Sequence[int], reason: int
) -> None:
    """Channels keep their order; a reason comes before channels, and no channel at all is a reason too."""
    plan = plan_of(core.decision_of(resolution))
    assert [step.channel for step in plan.steps] == channels
    assert plan.suppress_reason == reason


def test_equal_plans_stand_once_in_a_batch() -> None:
    """Groups name plans by index, whichever event they belong to; suppressed groups travel too."""
    prefs = InProcessPrefs()
    prefs.others = {"r1": NOTHING, "r3": QUIET}
    events = [event(number, 5) for number in range(3)]
    (batch,) = cut(events, prefs)
    wishes = [core.decision_of(resolution) for resolution in (LIVE, NOTHING, QUIET)]
    assert [plan_of(wish) for wish in wishes] == list(batch.message.plans)
    for dispatch in batch.message.dispatches:
        found = {group.plan_index: list(group.recipient_ids) for group in dispatch.groups}
        assert found == {0: ["r0", "r2", "r4"], 1: ["r1"], 2: ["r3"]}


# ---------------------------------------------------------------- cutting


def test_a_small_page_is_one_batch_in_order() -> None:
    """Events keep the lane's order, and envelopes pass untouched."""
    events = [event(number, 2) for number in range(20)]
    (batch,) = cut(events, InProcessPrefs())
    assert batch.positions == list(range(20))
    assert [dispatch.envelope for dispatch in batch.message.dispatches] == [one.envelope for one in events]


def test_a_batch_has_at_most_500_events() -> None:
    """The 501st event opens the next batch."""
    batches = cut([event(number, 1, content=b"") for number in range(1_001)], InProcessPrefs())
    assert [len(batch.message.dispatches) for batch in batches] == [500, 500, 1]
    assert [position for batch in batches for position in batch.positions] == list(range(1_001))


def test_a_batch_has_at_most_2000_recipients() -> None:
    """An event with more goes over several batches, each naming its envelope and its position."""
    batches = cut([event(1, 1_500), event(2, 3_000)], InProcessPrefs())
    assert [recipients_of(batch) for batch in batches] == [2_000, 2_000, 500]
    assert [batch.positions for batch in batches] == [[1, 2], [2], [2]]
    names = [
        recipient_id
        for batch in batches
        for position, dispatch in zip(batch.positions, batch.message.dispatches, strict=True)
        for group in dispatch.groups
        for recipient_id in group.recipient_ids
        if position == 2
    ]
    assert names == [f"r{index}" for index in range(3_000)]


def test_a_batch_has_at_most_256_kib() -> None:
    """Large contents and long recipient ids both count."""
    contents = cut([event(number, 1, content=b"x" * 16_384) for number in range(40)], InProcessPrefs())
    long_names = [f"{index:0128}" for index in range(5_000)]
    names = cut([event(1, long_names)], InProcessPrefs())
    for batches in (contents, names):
        assert len(batches) > 1
        assert all(batch.message.ByteSize() <= 256 * 1024 for batch in batches)
        assert all(batch.message.ByteSize() > 200 * 1024 for batch in batches[:-1])


def test_an_event_larger_than_a_batch_goes_alone() -> None:
    """The limit of bytes never keeps an event back for good."""
    batches = cut([event(1, 1), event(2, 2, content=b"x" * 400_000), event(3, 1)], InProcessPrefs())
    assert [batch.positions for batch in batches] == [[1], [2], [2], [3]]


def test_narrowing_keeps_the_named_dispatches() -> None:
    """What is sent again has its plans, envelopes and positions."""
    (batch,) = cut([event(number, 2) for number in range(5)], InProcessPrefs())
    again = narrowed(batch, [1, 4])
    assert again.positions == [1, 4]
    assert [dispatch.envelope.event_id for dispatch in again.message.dispatches] == [id_of(1), id_of(4)]
    assert again.message.plans == batch.message.plans
    assert not narrowed(batch, []).positions


_EVENTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 60), min_size=1, max_size=60, unique=True),
        st.integers(0, 3_000),
        st.booleans(),
        st.sampled_from(["general", "mention"]),
        st.sampled_from(["acme", "beta"]),
    ),
    max_size=12,
)


@settings(max_examples=150)
@given(
    drawn=_EVENTS,
    wishes=st.dictionaries(st.integers(0, 60), st.sampled_from([LIVE, QUIET, NOTHING])),
    limits=st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 6_000), st.integers(1, 30)),
)
def test_everybody_is_in_exactly_one_group(
    drawn: list[tuple[list[int], int, bool, str, str]],
    wishes: dict[int, prefs_service_pb2.Resolution],
    limits: tuple[int, int, int, int],
) -> None:
    """Whatever the limits: each recipient of each event once, under the plan of his wish, in batches within limits."""
    events = []
    for number, (numbers, size, over, category, tenant_id) in enumerate(drawn):
        envelope = make_envelope(
            number,
            content=b"x" * size,
            category=category,
            tenant_id=tenant_id,
            expire_us=NOW_US - 10 * S_US if over else None,
        )
        events.append(core.decode(number, make_record(envelope, [f"r{one}" for one in numbers]).value))
    prefs = InProcessPrefs()
    prefs.others = {f"r{number}": wish for number, wish in wishes.items()}
    most_events, most_recipients, most_bytes, page = limits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "LARGEST_BATCH_EVENTS", most_events)
        patch.setattr(batching, "LARGEST_BATCH_RECIPIENTS", most_recipients)
        patch.setattr(batching, "LARGEST_BATCH_BYTES", most_bytes)
        patch.setattr(core, "LARGEST_PAGE", page)
        patch.setattr(core, "LARGEST_ITEMS", 2)
        batches = cut(events, prefs)
    got: Counter[tuple[int, str, bytes]] = Counter()
    for batch in batches:
        assert 1 <= len(batch.positions) <= most_events
        assert 1 <= recipients_of(batch) <= most_recipients
        assert len(batch.positions) == len(set(batch.positions)) == len(batch.message.dispatches)
        if recipients_of(batch) > 1:
            # The estimate is above what is on the wire, but for the plans.
            assert batch.message.ByteSize() <= most_bytes + sum(plan.ByteSize() + 2 for plan in batch.message.plans)
        for position, dispatch in zip(batch.positions, batch.message.dispatches, strict=True):
            assert dispatch.envelope == events[position].envelope
            for group in dispatch.groups:
                key = batch.message.plans[group.plan_index].SerializeToString()
                got.update((position, recipient_id, key) for recipient_id in group.recipient_ids)
    wanted: Counter[tuple[int, str, bytes]] = Counter()
    for one in events:
        for recipient_id in one.recipient_ids:
            wish = prefs.others.get(recipient_id, prefs.default)
            plan = plan_of(core.decision_of(wish))
            if core.is_expired(one.envelope, NOW_US):
                plan = plan_pb2.Plan(suppress_reason=plan_pb2.SUPPRESS_REASON_EXPIRED)
            wanted[one.position, recipient_id, plan.SerializeToString()] += 1
    assert got == wanted
    assert [position for batch in batches for position in batch.positions] == sorted(
        position for batch in batches for position in batch.positions
    )


@given(
    sizes=st.lists(st.integers(1, 30), max_size=8),
    most=st.integers(1, 40),
)
def test_pieces_say_the_same_as_their_batch(sizes: list[int], most: int) -> None:
    """Whatever the limit: everybody once, under the same plan and envelope, in the same order, in pieces within it."""
    prefs = InProcessPrefs()
    prefs.others = {"r1": NOTHING, "r3": QUIET}
    for whole in cut([event(number, size) for number, size in enumerate(sizes)], prefs):
        found = list(pieces(whole, most))
        assert all(1 <= recipients_of(one) <= most for one in found)
        assert _told(found) == _told([whole])
        for one in found:
            assert one.message.plans == whole.message.plans
            assert len(one.positions) == len(set(one.positions)) == len(one.message.dispatches)


def test_a_small_batch_is_its_own_piece() -> None:
    """Nothing is copied where nothing is cut."""
    (whole,) = cut([event(number, 2) for number in range(5)], InProcessPrefs())
    assert list(pieces(whole, 10)) == [whole]
    assert [recipients_of(one) for one in pieces(whole, 4)] == [4, 4, 2]


def _told(found: Sequence[Batch]) -> list[tuple[int, str, int, str]]:
    return [
        (position, dispatch.envelope.event_id, group.plan_index, recipient_id)
        for one in found
        for position, dispatch in zip(one.positions, one.message.dispatches, strict=True)
        for group in dispatch.groups
        for recipient_id in group.recipient_ids
    ]

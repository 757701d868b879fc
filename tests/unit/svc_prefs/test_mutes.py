"""The rules of mutes, as updates and decisions show them."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import plan_pb2
from mesh.errors import InvalidArgument
from mesh.times import micros_of
from svc_prefs import core, mutes
from svc_prefs.ports import Stored
from tests.support.wishes import (
    HOUR_US,
    INBOX,
    LIVE,
    NOW_US,
    changed,
    choice,
    decision,
    mute,
    muted_of,
    resolve,
    shown,
    switched_on,
    update,
)


def test_a_mute_suppresses_with_a_reason_a_version_and_an_end() -> None:
    """Whoever remembers the decision knows how long it is good."""
    stored = changed(update(choice("billing")), None)
    stored = changed(update(muted=[mute("billing", hours=2)]), stored)
    found = decision("billing", stored)
    assert found.suppress_reason == plan_pb2.SUPPRESS_REASON_MUTED
    assert (list(found.channels), found.version) == ([], 2)
    assert micros_of(found.end_time) == NOW_US + 2 * HOUR_US
    assert list(decision("quiet", stored).channels) == [INBOX]


def test_a_mute_is_over_at_its_end() -> None:
    """Until then nothing is delivered, from then on everything, and it is not shown any more."""
    stored = changed(update(muted=[mute("billing", hours=1)]))
    end_us = NOW_US + HOUR_US
    assert decision("billing", stored, now_us=end_us - 1).suppress_reason == plan_pb2.SUPPRESS_REASON_MUTED
    assert muted_of(stored, end_us - 1) == [("billing", "")]
    assert list(decision("billing", stored, now_us=end_us).channels) == [INBOX, LIVE]
    assert muted_of(stored, end_us) == []


def test_a_mute_without_an_end_holds_until_it_is_taken_back() -> None:
    """Its decision has no end either."""
    stored = changed(update(muted=[mute("billing"), mute(topic_id="builds")]))
    assert not decision("billing", stored).HasField("end_time")
    assert decision("billing", stored, now_us=NOW_US + 10**15).suppress_reason == plan_pb2.SUPPRESS_REASON_MUTED
    assert not shown(stored).mutes[0].HasField("expire_time")


def test_who_opted_out_is_not_called_muted() -> None:
    """The reason that stays is the one that is told, without an end."""
    stored = changed(update(choice("billing", False), muted=[mute("billing", hours=1)]))
    found = decision("billing", stored)
    assert found.suppress_reason == plan_pb2.SUPPRESS_REASON_OPTED_OUT
    assert not found.HasField("end_time")


def test_mandatory_categories_ignore_mutes_of_topics() -> None:
    """Whatever way leads to the recipient; a mute of such a category is refused by name."""
    stored = changed(update(muted=[mute(topic_id="builds")]))
    assert decision("billing", stored, "builds").suppress_reason == plan_pb2.SUPPRESS_REASON_MUTED
    assert list(decision("security", stored, "builds").channels) == [INBOX, LIVE]
    for one in (mute("security"), mute("security", "builds")):
        with pytest.raises(InvalidArgument, match="'security' is mandatory"):
            changed(update(muted=[one]))


def test_an_update_without_a_mask_adds_the_mutes_that_it_names() -> None:
    """Others stay, one for the same takes the place of the earlier one, and choices are left alone."""
    first = changed(update(choice("billing", False), muted=[mute("billing", hours=1), mute(topic_id="builds")]))
    second = changed(update(muted=[mute("billing", hours=3), mute("billing", "builds")]), first)
    assert muted_of(second) == [("", "builds"), ("billing", ""), ("billing", "builds")]
    assert micros_of(shown(second).mutes[1].expire_time) == NOW_US + 3 * HOUR_US
    assert switched_on(second)["billing"] is False


def test_naming_a_mute_with_an_end_that_has_passed_takes_it_back() -> None:
    """One call without reading first, and no other mute is touched."""
    first = changed(update(muted=[mute("billing"), mute(topic_id="builds")]))
    assert muted_of(changed(update(muted=[mute("billing", hours=0)]), first)) == [("", "builds")]


@pytest.mark.parametrize("path", ["*", "mutes"])
def test_a_mask_of_mutes_replaces_all_of_them(path: str) -> None:
    """What is not given is not muted any more."""
    first = changed(update(muted=[mute("billing"), mute(topic_id="builds")]))
    assert muted_of(changed(update(muted=[mute("quiet")], paths=(path,)), first)) == [("quiet", "")]
    assert muted_of(changed(update(paths=(path,)), first)) == []


def test_a_mask_without_mutes_leaves_them_alone() -> None:
    """Given or not; a mask of mutes leaves choices alone."""
    first = changed(update(muted=[mute("billing")]))
    second = changed(update(choice("quiet", False), muted=[mute("quiet")], paths=("categories.quiet",)), first)
    assert muted_of(second) == [("billing", "")]
    third = changed(update(choice("quiet"), paths=("mutes",)), second)
    assert (muted_of(third), switched_on(third)["quiet"]) == ([], False)


def test_mutes_that_are_over_are_dropped_by_the_next_write() -> None:
    """Whatever it changes: they do not count against the limit and are not kept for ever."""
    first = changed(update(muted=[mute("billing", hours=1), mute("quiet")]))
    second = changed(update(choice("quiet"), paths=("categories.quiet",)), first, NOW_US + HOUR_US)
    assert set(core.wishes_of(second).mutes) == {("quiet", "")}


def test_there_are_at_most_so_many_mutes() -> None:
    """Counted after the change: over the limit it is refused, and ended ones make room."""
    most = mutes.LARGEST_MUTES
    first = changed(update(muted=[mute(topic_id=f"t{number}") for number in range(most)]))
    with pytest.raises(InvalidArgument) as caught:
        changed(update(muted=[mute("billing")]), first)
    assert [violation.field for violation in caught.value.violations] == ["preferences.mutes"]
    assert len(muted_of(changed(update(muted=[mute(topic_id="t0", hours=-1), mute("billing")]), first))) == most
    assert len(muted_of(changed(update(muted=[mute("billing")], paths=("mutes",)), first))) == 1


KEYS = st.tuples(st.sampled_from(["", "billing", "quiet"]), st.sampled_from(["", "a", "b"])).filter(any)
# When a mute ends, in hours of the model's time; None: never.
GIVEN = st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 20)), max_size=4)
UPDATES = st.lists(st.tuples(st.integers(0, 20), GIVEN, st.sampled_from(["", "mutes", "*", "categories"])), max_size=8)


@given(UPDATES, st.integers(0, 20))
def test_mutes_follow_a_simple_model(
    updates: list[tuple[int, dict[tuple[str, str], int | None], str]], last: int
) -> None:
    """After any updates at any times, what is shown and decided is what a table of mutes with their ends says."""
    stored: Stored | None = None
    model: dict[tuple[str, str], int | None] = {}
    hour = 0
    for later, named, path in updates:
        hour = max(hour, later)
        muted = [mute(category, topic_id, end) for (category, topic_id), end in named.items()]
        stored = changed(update(muted=muted, paths=(path,) if path else ()), stored, NOW_US + hour * HOUR_US)
        if path != "categories":
            model = {**({} if path else model), **named}
    hour = max(hour, last)
    now_us = NOW_US + hour * HOUR_US
    model = {key: end for key, end in model.items() if end is None or end > hour}
    assert muted_of(stored, now_us) == sorted(model)
    for category in ("billing", "quiet", "security"):
        for topic_id in ("", "a", "b"):
            stops = {(category, "")} | ({("", topic_id), (category, topic_id)} if topic_id else set())
            ends = [model[key] for key in stops & model.keys()] if category != "security" else []
            found = decision(category, stored, topic_id, now_us)
            assert (found.suppress_reason == plan_pb2.SUPPRESS_REASON_MUTED) == bool(ends)
            known = [end for end in ends if end is not None]
            assert found.HasField("end_time") == (bool(ends) and len(known) == len(ends))
            if found.HasField("end_time"):
                assert micros_of(found.end_time) == NOW_US + max(known) * HOUR_US


def test_recipients_muted_until_different_times_are_different_groups() -> None:
    """One group has one end and one version; who is not muted on this way is in none."""
    first = changed(update(muted=[mute("billing", hours=1)]))
    second = changed(update(muted=[mute("billing", hours=2)]))
    again = changed(update(muted=[mute("billing", hours=2)]), second)
    other = changed(update(muted=[mute("billing", "builds")]))
    answer = resolve("billing", "a", "b", "c", "d", "e", a=first, b=second, c=again, d=first, e=other)
    assert sorted(tuple(group.recipient_ids) for group in answer.groups) == [("a", "d"), ("b",), ("c",)]
    on_topic = resolve("billing", "e", topic_id="builds", e=other)
    assert [list(group.recipient_ids) for group in on_topic.groups] == [["e"]]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (mute(), "preferences.mutes[1]"),
        (mute("nope"), "preferences.mutes[1].category"),
        (mute(topic_id="two words"), "preferences.mutes[1].topic_id"),
        (mute(topic_id="t" * 129), "preferences.mutes[1].topic_id"),
        (mute(topic_id="news\n"), "preferences.mutes[1].topic_id"),
        (mute("quiet"), "preferences.mutes[1]"),
        (pb.Mute(category="billing", expire_time=Timestamp(seconds=-1)), "preferences.mutes[1].expire_time"),
        (pb.Mute(category="billing", expire_time=Timestamp(seconds=1 << 60)), "preferences.mutes[1].expire_time"),
        (pb.Mute(category="billing", expire_time=Timestamp(nanos=-1)), "preferences.mutes[1].expire_time"),
        (pb.Mute(category="billing", expire_time=Timestamp(nanos=10**9)), "preferences.mutes[1].expire_time"),
    ],
)
def test_a_malformed_mute_is_refused(wrong: pb.Mute, field: str) -> None:
    """The field is named, and the good one beside it is not stored."""
    with pytest.raises(InvalidArgument) as caught:
        changed(update(muted=[mute("quiet"), wrong]))
    assert [violation.field for violation in caught.value.violations] == [field]
    assert caught.value.reason == "FIELD_INVALID"


def test_violations_of_choices_and_mutes_are_named_together() -> None:
    """Whoever corrects a request sees all of it at once."""
    with pytest.raises(InvalidArgument) as caught:
        changed(update(choice("nope"), muted=[mute("nope"), mute(topic_id="?")]))
    assert [violation.field for violation in caught.value.violations] == [
        "preferences.categories[0].category",
        "preferences.mutes[0].category",
        "preferences.mutes[1].topic_id",
    ]


def test_the_longest_topics_can_be_muted() -> None:
    """Every character that is allowed, and as many."""
    name = "AZaz09._-@:+=/".ljust(mutes.TOPIC_CHARACTERS, "x")
    assert muted_of(changed(update(muted=[mute(topic_id=name)]))) == [("", name)]

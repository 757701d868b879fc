"""Examples and properties of `svc_fanout.audience`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import Internal
from svc_fanout.audience import NAMED, Members, Merge, joined, named, pieces


def walk(
    merge: Merge, topics: Mapping[str, Sequence[str]], page_size: int, most: int, after: str = ""
) -> list[Members]:
    """Reads an audience to its end, as many subscribers a page and recipients a part as it is told."""
    pages = {topic_id: [one for one in sorted(set(ids)) if one > after] for topic_id, ids in topics.items()}
    parts: list[Members] = []
    while True:
        for topic_id in merge.wanted():
            page, pages[topic_id] = pages[topic_id][:page_size], pages[topic_id][page_size:]
            merge.feed(topic_id, page, ended=len(page) < page_size)
        part = merge.take(most)
        if part is None:
            return parts
        parts.append(part)


_IDS = st.lists(st.text("abc", min_size=1, max_size=3), max_size=25)


@settings(max_examples=300)
@given(
    recipient_ids=_IDS,
    topics=st.dictionaries(st.sampled_from(["t", "u", "v"]), _IDS),
    excluded=_IDS,
    page_size=st.integers(1, 9),
    most=st.integers(1, 9),
    after=st.sampled_from(["", "", "b", "cc"]),
)
def test_an_audience_is_what_its_definition_says(
    recipient_ids: list[str],
    topics: dict[str, list[str]],
    excluded: list[str],
    page_size: int,
    most: int,
    after: str,
) -> None:
    """Recipients ∪ subscribers − excluded, each once with every way, in order, whatever the sizes of pages."""
    parts = walk(Merge(recipient_ids, list(topics), excluded, after), topics, page_size, most, after)
    expected: dict[str, int] = {}
    for bit, ids in zip([NAMED, 2, 4, 8], [recipient_ids, *topics.values()], strict=False):
        for id_ in ids:
            if id_ > after:
                expected[id_] = expected.get(id_, 0) | bit
    left_out = [id_ for part in parts for id_ in part.excluded]
    got = [(id_, bits) for part in parts for bits, ids in part.groups.items() for id_ in ids]
    assert sorted(got) == sorted((id_, bits) for id_, bits in expected.items() if id_ not in excluded)
    assert sorted(left_out) == sorted(id_ for id_ in expected if id_ in excluded)
    assert all(1 <= part.count <= most for part in parts)
    # Parts follow each other, so that the last id says where to go on.
    seen = after
    for part in parts:
        ids = sorted([id_ for group in part.groups.values() for id_ in group] + list(part.excluded))
        assert seen < ids[0]
        assert ids[-1] == part.last
        seen = part.last


def test_a_part_waits_for_every_topic() -> None:
    """Nobody is given out while a page that is not read may name him too."""
    merge = Merge(["a", "m"], ["t", "u"], [])
    assert merge.wanted() == ["t", "u"]
    merge.feed("t", ["b", "d"], ended=False)
    merge.feed("u", ["c"], ended=False)
    assert merge.take(10) == Members({NAMED: ["a"], 2: ["b"], 4: ["c"]}, [], "c")
    assert merge.wanted() == ["u"]
    assert merge.after("u") == "c"
    merge.feed("u", ["d", "m"], ended=True)
    assert merge.take(10) == Members({2 | 4: ["d"]}, [], "d")
    assert merge.wanted() == ["t"]
    merge.feed("t", [], ended=True)
    assert merge.take(10) == Members({NAMED | 4: ["m"]}, [], "m")
    assert merge.take(10) is None


def test_an_empty_topic_is_an_empty_audience() -> None:
    """A topic that nobody subscribed to is no error."""
    assert walk(Merge([], ["t"], ["a"]), {"t": []}, 10, 10) == []


@pytest.mark.parametrize("page", [["b", "a"], ["a", "a"], ["b", "c"]])
def test_subscribers_out_of_order_are_not_believed(page: list[str]) -> None:
    """Whoever comes twice or too late would be decided twice, or not at all."""
    merge = Merge([], ["t"], [])
    merge.feed("t", ["b"], ended=False)
    assert merge.take(10) is not None
    with pytest.raises(Internal, match="out of order"):
        merge.feed("t", page, ended=True)


def test_named_recipients_keep_the_order_of_the_event() -> None:
    """Without topics nothing is sorted; the excluded are set apart."""
    assert named(("b", "a"), ()) == Members({NAMED: ("b", "a")})
    assert named(("b", "a", "c"), ["a", "x"]) == Members({NAMED: ["b", "c"]}, ["a"])


def test_parts_are_joined_by_their_ways() -> None:
    """Nothing gets lost between parts."""
    parts = [Members({NAMED: ["a"], 2: ["b"]}, [], "b"), Members({2: ["c"]}, ["d"], "d")]
    assert joined(parts) == Members({NAMED: ["a"], 2: ["b", "c"]}, ["d"], "d")
    assert joined(parts[:1]) is parts[0]
    assert joined([]).count == 0


@given(
    groups=st.dictionaries(st.integers(1, 4), st.lists(st.text("abc", max_size=2), max_size=12)),
    excluded=st.lists(st.text("de", max_size=2), max_size=5),
    most=st.integers(1, 9),
)
def test_pieces_are_what_they_were_cut_from(groups: dict[int, list[str]], excluded: list[str], most: int) -> None:
    """Nobody is lost or named twice, the order of each group stays, and no group of a piece is too large."""
    cut = list(pieces(Members(groups, excluded, "z"), most))
    found: dict[int, list[str]] = {ways: [] for ways in groups}
    for piece in cut:
        for ways, recipient_ids in piece.groups.items():
            assert len(recipient_ids) <= most
            found[ways] += recipient_ids
    assert found == groups
    assert [one for piece in cut for one in piece.excluded] == excluded

"""What is found right and wrong about a keyspace; looking at a real one needs a node."""

from __future__ import annotations

import pytest

from mesh.cassandra_admin import copies_of, judge_datacenter, judge_replication, judge_sync

THREE = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "east": "3"}


@pytest.mark.parametrize(
    ("nodes", "wanted", "state"),
    [({"east": 3}, 3, "ok"), ({"east": 2}, 3, "ok"), ({"east": 1}, 3, "wrong"), ({"east": 1}, 1, "ok")],
)
def test_a_data_centre_must_have_nodes_for_a_quorum(nodes: dict[str, int], wanted: int, state: str) -> None:
    """Else every call would fail; the way out in development is named."""
    found = judge_datacenter("east", nodes, wanted=wanted)
    assert found.state == state
    assert ("replicas=1" in found.detail) == (state == "wrong")


@pytest.mark.parametrize("datacenter", ["west", "", "east'}; drop keyspace x"])
def test_a_data_centre_without_nodes_is_named_with_those_there_are(datacenter: str) -> None:
    """A name that is no name goes no further either."""
    found = judge_datacenter(datacenter, {"east": 3, "north": 1, "east'}; drop keyspace y": 1}, wanted=3)
    assert found.state == "wrong"
    assert "east" in found.detail


def test_copies_are_counted_where_rows_are_read() -> None:
    """Both strategies; transient copies hold no row when it counts, and another data centre's are no help."""
    simple = {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "2"}
    assert copies_of(simple, "east") == 2
    assert copies_of(THREE, "east") == 3
    assert copies_of({**THREE, "east": "3/1"}, "east") == 2
    assert copies_of(THREE, "west") == 0


def test_too_few_copies_are_refused_with_what_to_say() -> None:
    """More than asked for are fine."""
    few = judge_replication("inbox", {**THREE, "east": "1"}, "east", {"east": 3}, wanted=3)
    assert few.state == "wrong"
    assert "keeps 1 copies in east and must keep 3" in few.detail
    assert "'east': 3" in few.detail
    assert judge_replication("inbox", THREE, "east", {"east": 3}, wanted=1).state == "ok"


def test_a_data_centre_that_is_gone_is_found_in_the_keyspace() -> None:
    """Writes to it would be kept as hints for nobody."""
    gone = judge_replication("inbox", {**THREE, "west": "3"}, "east", {"east": 3}, wanted=3)
    assert gone.state == "wrong"
    assert "west" in gone.detail


@pytest.mark.parametrize(
    ("value", "alone", "state"),
    [("periodic", True, "wrong"), ("periodic", False, "ok"), ("batch", True, "ok"), ("group", True, "ok")],
)
def test_the_only_copy_must_be_synced_before_the_answer(value: str, alone: bool, state: str) -> None:
    """The node that does not is named, also where others make up for it."""
    found = judge_sync({"10.0.0.1:9042": "batch", "10.0.0.2:9042": value}, alone=alone)
    assert found.state == state
    assert ("10.0.0.2:9042" in found.detail) == (value == "periodic")

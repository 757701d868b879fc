"""What the topics of lanes must be set to."""

from __future__ import annotations

import pytest

from mesh.kafka import Cluster, parse_cluster
from mesh.kafka_admin import Topic
from mesh.lanes import lane_stores
from mesh.lanes.kafka_topics import LARGEST_BATCH_BYTES, MARKS, judge, made_with, settings_of


def cluster(replicas: int = 3) -> Cluster:
    """Four partitions."""
    return parse_cluster("lanes_url", f"kafka://one/hg?partitions=4&replicas={replicas}")


def topic(partitions: int = 4, replicas: int = 3) -> Topic:
    """A topic of this shape."""
    return Topic("0" * 32, dict.fromkeys(range(partitions), 1), replicas)


@pytest.mark.parametrize("lane", ["normal", MARKS])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_what_is_made_passes_the_check(lane: str, replicas: int) -> None:
    """A topic as `create` makes it is right."""
    partitions = 1 if lane == MARKS else 4
    found = judge(cluster(replicas), lane, topic(partitions, replicas), made_with(cluster(replicas), lane))
    assert (found.what, found.state, found.detail) == (f"topic hg.{lane}", "ok", "")


def test_a_missing_topic_can_be_made() -> None:
    """It is no fault that needs a person."""
    assert judge(cluster(), "normal", None, {}).state == "missing"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.insync.replicas", "1"),
        ("unclean.leader.election.enable", "true"),
        ("max.message.bytes", str(LARGEST_BATCH_BYTES - 1)),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "86400000"),
        ("retention.bytes", "1000000"),
        ("retention.ms", ""),
    ],
)
def test_a_setting_that_breaks_a_promise_is_named(name: str, value: str) -> None:
    """With what it is and what it must be."""
    found = judge(cluster(), "normal", topic(), {**settings_of(cluster(), "normal"), name: value})
    assert found.state == "wrong"
    assert name in found.detail
    assert (value or "not set") in found.detail


@pytest.mark.parametrize(
    ("name", "value"), [("min.insync.replicas", "3"), ("max.message.bytes", "99999999"), ("retention.ms", "-1")]
)
def test_more_than_enough_is_right(name: str, value: str) -> None:
    """Whoever keeps more, or longer, breaks nothing."""
    assert judge(cluster(), "normal", topic(), {**settings_of(cluster(), "normal"), name: value}).state == "ok"


@pytest.mark.parametrize(
    ("lane", "found", "said"),
    [
        ("normal", topic(partitions=3), "3 partitions"),
        ("normal", topic(replicas=2), "2 replicas"),
        (MARKS, topic(partitions=2), "2 partitions"),
    ],
)
def test_a_topic_of_another_shape_is_wrong(lane: str, found: Topic, said: str) -> None:
    """Too few partitions or copies, and marks that are spread."""
    judged = judge(cluster(), lane, found, settings_of(cluster(), lane))
    assert judged.state == "wrong"
    assert said in judged.detail


def test_more_partitions_than_asked_are_right() -> None:
    """Topics grow."""
    assert judge(cluster(), "normal", topic(partitions=12), settings_of(cluster(), "normal")).state == "ok"


def test_only_lanes_on_an_engine_are_looked_after() -> None:
    """Files make themselves."""
    assert list(lane_stores("sqlite:///lanes", ["high"], reads=True)) == []
    (admin,) = lane_stores("kafka://one/hg", ["high"], reads=True)
    assert (admin.what, admin.url) == ("event lanes", "kafka://one/hg")

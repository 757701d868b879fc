"""When the last subscriber of a topic had an event."""

from __future__ import annotations

from bench.push_topic import Event, Topic, events_of, show


def _topic(*events: Event) -> Topic:
    return Topic(direct=True, subscribers=2, nodes=2, events=list(events))


def test_receipts_are_told_apart_by_when_their_event_was_due() -> None:
    """From every process of sessions; the slowest event counts."""
    first, second = events_of([[10, 1_000, 20, 3_000], [20, 5_000, 10, 2_000]], [70.0, 50.0])
    assert (first.reached, first.last_s, first.micros) == (2, 0.002, 70.0)
    assert (second.reached, second.last_s, second.micros) == (2, 0.005, 50.0)
    assert _topic(first, second).slowest_s == 0.005


def test_an_event_that_did_not_reach_everybody_is_never_over() -> None:
    """Also one that reached nobody, of which no receipt tells; the table has a line for it."""
    topic = _topic(*events_of([[10, 1_000, 10, 1_500]], [70.0, 50.0]))
    assert [one.reached for one in topic.events] == [2, 0]
    assert topic.slowest_s == float("inf")
    assert "0 of 2" in show(topic).splitlines()[-1]

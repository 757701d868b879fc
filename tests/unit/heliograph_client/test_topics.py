"""Changes of topics on their way: one at a time, in order, none lost."""

from __future__ import annotations

from heliograph_client.topics import PendingTopics


def test_one_is_on_the_way_at_a_time() -> None:
    """The next follows when it is confirmed, by its own number or a later one."""
    topics = PendingTopics()
    first, second = topics.say(["a"], begin=True), topics.say(["a"], begin=False)
    assert topics.take(5) == first
    assert not topics.waiting
    assert topics.confirm(4) is None
    assert topics.confirm(6) == first
    assert topics.confirm(6) is None
    assert topics.take(7) == second
    assert len(topics) == 1


def test_what_is_refused_for_now_goes_before_what_came_later() -> None:
    """Otherwise the later one would be undone by the earlier."""
    topics = PendingTopics()
    first, _ = topics.say(["a"], begin=True), topics.say(["a"], begin=False)
    topics.take(5)
    assert topics.refuse(4) is None
    refused = topics.refuse(5)
    assert refused == first
    topics.say_again(first)
    assert topics.take(6) == first


def test_a_broken_connection_sends_it_again() -> None:
    """In its place."""
    topics = PendingTopics()
    first, second = topics.say(["a"], begin=True), topics.say(["b"], begin=True)
    topics.take(2)
    topics.lost()
    assert [topics.take(2), topics.confirm(2), topics.take(3)] == [first, first, second]
    topics.confirm(3)
    topics.lost()
    assert len(topics) == 0


def test_what_nobody_waits_for_is_not_sent() -> None:
    """Unless it is on its way."""
    topics = PendingTopics()
    first, second = topics.say(["a"], begin=True), topics.say(["b"], begin=True)
    topics.take(2)
    topics.forget(first.number)
    topics.forget(second.number)
    assert topics.confirm(2) == first
    assert not topics.waiting

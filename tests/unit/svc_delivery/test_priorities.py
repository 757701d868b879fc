"""What is urgent overtakes what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.type.v1.notification_pb2 import PRIORITY_BULK, PRIORITY_HIGH, PRIORITY_NORMAL, PRIORITY_UNSPECIFIED
from svc_delivery.priorities import ByPriority


@given(st.lists(st.sampled_from([PRIORITY_HIGH, PRIORITY_NORMAL, PRIORITY_BULK])))
def test_high_goes_first_and_each_priority_in_order(priorities: list[int]) -> None:
    """Taking everything out is sorting by urgency without changing the order of equals."""
    queue: ByPriority[tuple[int, int]] = ByPriority()
    for number, priority in enumerate(priorities):
        queue.append(priority, (priority, number))
    assert len(queue) == len(priorities)
    expected = sorted(enumerate(priorities), key=lambda item: (item[1], item[0]))
    assert list(queue) == [(priority, number) for number, priority in expected]
    taken = []
    while queue:
        first = queue.first()
        taken.append(queue.pop())
        assert taken[-1] == first
    assert taken == [(priority, number) for number, priority in expected]


def test_what_comes_later_and_is_urgent_overtakes() -> None:
    """The queue is asked anew each time."""
    queue: ByPriority[str] = ByPriority()
    queue.append(PRIORITY_BULK, "bulk 1")
    queue.append(PRIORITY_BULK, "bulk 2")
    assert queue.pop() == "bulk 1"
    queue.append(PRIORITY_HIGH, "high")
    assert [queue.pop(), queue.pop()] == ["high", "bulk 2"]


def test_an_unknown_priority_is_the_usual_case() -> None:
    """Between high and bulk."""
    queue: ByPriority[str] = ByPriority()
    for priority, item in (
        (PRIORITY_BULK, "bulk"),
        (PRIORITY_UNSPECIFIED, "none"),
        (99, "new"),
        (PRIORITY_HIGH, "high"),
    ):
        queue.append(priority, item)
    assert list(queue) == ["high", "none", "new", "bulk"]


def test_an_empty_queue_has_nothing_next() -> None:
    """Neither to look at nor to take; clearing makes it empty."""
    queue: ByPriority[str] = ByPriority()
    queue.append(PRIORITY_HIGH, "high")
    queue.clear()
    with pytest.raises(IndexError):
        queue.first()
    with pytest.raises(IndexError):
        queue.pop()

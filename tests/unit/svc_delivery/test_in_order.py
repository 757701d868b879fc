"""Offers leave in the order of their batches, whichever becomes durable first."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.type.v1 import envelope_pb2
from svc_delivery.in_order import InOrder
from svc_delivery.intake import Offer


def _offers(number: int) -> Sequence[Offer]:
    return [Offer(envelope_pb2.Envelope(), bytes([number]), ("acme/alice",))]


def _order(most: int = 8) -> tuple[InOrder, list[int]]:
    gone: list[int] = []
    return InOrder(lambda offers: gone.extend(one.notification_id[0] for one in offers), most=most), gone


def test_a_later_batch_waits_for_the_one_before() -> None:
    """The second is durable first; both go when the first is."""
    order, gone = _order()
    first, second, third = order.begin(), order.begin(), order.begin()
    order.finish(second, _offers(2))
    assert gone == []
    order.finish(first, _offers(1))
    assert gone == [1, 2]
    order.finish(third, _offers(3))
    assert gone == [1, 2, 3]


def test_a_batch_that_came_to_nothing_holds_nobody() -> None:
    """It was refused as a whole; fanout sends it again, behind the others."""
    order, gone = _order()
    first, second = order.begin(), order.begin()
    order.finish(second, _offers(2))
    order.finish(first)
    assert gone == [2]


def test_a_batch_that_does_not_end_holds_only_so_many() -> None:
    """Nobody waits for a stranger: what is late gives up its place."""
    order, gone = _order(most=2)
    late = order.begin()
    others = [order.begin() for _ in range(3)]
    for number, slot in enumerate(others, start=2):
        order.finish(slot, _offers(number))
    assert gone == [2, 3, 4]
    order.finish(late, _offers(1))
    assert gone == [2, 3, 4, 1]


def test_what_is_held_goes_when_the_stream_is_over() -> None:
    """It is durable, whatever became of the batch before it."""
    order, gone = _order()
    order.begin()
    order.finish(order.begin(), _offers(2))
    order.let_go()
    assert gone == [2]

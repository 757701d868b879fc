"""How decided events are cut into batches for delivery, and batches into smaller ones.

Pure. Path step 5. Order is kept: what comes first goes first. Must not decide anything about a recipient.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.type.v1 import plan_pb2
from svc_fanout.core import Decision, Event, Planned

# One batch to delivery; the first limit that is reached closes it. More bytes has only one event alone.
LARGEST_BATCH_EVENTS = 500
LARGEST_BATCH_RECIPIENTS = 2_000
LARGEST_BATCH_BYTES = 256 * 1024

# What names an event, a group and a recipient id on the wire, at most.
_EVENT_BYTES = 8
_GROUP_BYTES = 12
_RECIPIENT_BYTES = 3


class Batch(msgspec.Struct, frozen=True):
    """A batch for delivery, and the position that each of its dispatches comes from."""

    message: delivery_service_pb2.DispatchBatch
    positions: Sequence[int]


def batches(planned: Sequence[Planned]) -> Iterator[Batch]:
    """Cuts events, in their order, into batches for delivery.

    An event with many recipients goes over several batches, each naming its recipients; its position is in all of them.
    """
    cutter = _Cutter()
    for one in planned:
        for decision, recipient_ids in one.groups:
            yield from cutter.add(one.event, decision, recipient_ids)
    yield from cutter.close()


class _Cutter:
    """Fills batches; a dispatch is continued while the event stays the same."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._message = delivery_service_pb2.DispatchBatch()
        self._positions: list[int] = []
        self._plan_index: dict[Decision, int] = {}
        self._recipients = 0
        self._bytes = 0

    def add(self, event: Event, decision: Decision, recipient_ids: Sequence[str]) -> Iterator[Batch]:
        """Adds recipients with one decision; yields the batches that are full."""
        start = 0
        while start < len(recipient_ids):
            cost = _GROUP_BYTES + self._cost_of_event(event)
            count, size = self._fitting(recipient_ids, start, LARGEST_BATCH_BYTES - self._bytes - cost)
            full = len(self._positions) >= LARGEST_BATCH_EVENTS and self._is_new(event)
            if not count or full:
                yield from self.close()
                continue
            if self._is_new(event):
                self._message.dispatches.add(envelope=event.envelope)
                self._positions.append(event.position)
            taken = recipient_ids[start : start + count]
            self._message.dispatches[-1].groups.add(recipient_ids=taken, plan_index=self._plan(decision))
            self._recipients += count
            self._bytes += cost + size
            start += count

    def close(self) -> Iterator[Batch]:
        """Yields what is in the open batch."""
        if self._positions:
            yield Batch(self._message, self._positions)
            self._start()

    def _is_new(self, event: Event) -> bool:
        return not self._positions or self._positions[-1] != event.position

    def _cost_of_event(self, event: Event) -> int:
        return event.envelope.ByteSize() + _EVENT_BYTES if self._is_new(event) else 0

    def _fitting(self, recipient_ids: Sequence[str], start: int, room: int) -> tuple[int, int]:
        """Returns how many recipients the open batch still takes, at least one if it is empty, and their bytes."""
        most = LARGEST_BATCH_RECIPIENTS - self._recipients
        sizes = list(accumulate(len(id_) + _RECIPIENT_BYTES for id_ in recipient_ids[start : start + most]))
        count = len(sizes) if sizes and sizes[-1] <= room else bisect_right(sizes, room)
        if not count and not self._positions:
            count = 1
        return count, sizes[count - 1] if count else 0

    def _plan(self, decision: Decision) -> int:
        index = self._plan_index.get(decision)
        if index is None:
            index = self._plan_index[decision] = len(self._message.plans)
            self._message.plans.append(plan_of(decision))
        return index


def plan_of(decision: Decision) -> plan_pb2.Plan:
    """Returns the plan that a decision leads to: its channels in order, or its reason."""
    if not decision.allows:
        reason = decision.suppress_reason or plan_pb2.SUPPRESS_REASON_OPTED_OUT
        return plan_pb2.Plan(suppress_reason=reason, wish_version=decision.version)
    steps = [plan_pb2.PlanStep(channel=channel) for channel in decision.channels]
    return plan_pb2.Plan(steps=steps, wish_version=decision.version)


def narrowed(batch: Batch, indexes: Sequence[int]) -> Batch:
    """Returns a batch with only these dispatches: what delivery asked to have again."""
    message = delivery_service_pb2.DispatchBatch(
        plans=batch.message.plans, dispatches=[batch.message.dispatches[index] for index in indexes]
    )
    return Batch(message, [batch.positions[index] for index in indexes])


def pieces(batch: Batch, most: int) -> Iterator[Batch]:
    """Cuts a batch, in its order, into batches for at most so many recipients; a small one stays as it is."""
    if sum(len(group.recipient_ids) for dispatch in batch.message.dispatches for group in dispatch.groups) <= most:
        yield batch
        return
    message = delivery_service_pb2.DispatchBatch(plans=batch.message.plans)
    positions: list[int] = []
    room = most
    for dispatch, position in zip(batch.message.dispatches, batch.positions, strict=True):
        # Whether the open piece has this dispatch already.
        begun = False
        for group in dispatch.groups:
            start = 0
            while start < len(group.recipient_ids):
                if not room:
                    yield Batch(message, positions)
                    message = delivery_service_pb2.DispatchBatch(plans=batch.message.plans)
                    positions, room, begun = [], most, False
                if not begun:
                    message.dispatches.add(envelope=dispatch.envelope)
                    positions.append(position)
                    begun = True
                taken = group.recipient_ids[start : start + room]
                message.dispatches[-1].groups.add(recipient_ids=taken, plan_index=group.plan_index)
                start += len(taken)
                room -= len(taken)
    if positions:
        yield Batch(message, positions)

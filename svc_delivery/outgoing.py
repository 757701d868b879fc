"""What is on its way to one gateway node: deliveries that wait, numbered batches, and the node's window.

Path step 6. High goes before normal, and normal before bulk. Batches are numbered once, for good: what a node has not
taken when its stream breaks goes again under its number, inside the next stream's window. No I/O. Must not know what a
node says to a delivery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.type.v1 import envelope_pb2
from svc_delivery.priorities import ByPriority

LARGEST_BATCH = 500
# Recipients of one batch, and of one delivery in it: what is urgent waits for a window of these at most.
LARGEST_BATCH_RECIPIENTS = 1_000
LARGEST_DELIVERY_RECIPIENTS = 500
# Contents are 16 KiB at most; the bound on recipients alone would let a node that stands still fill memory.
QUEUE_BYTES = 64 * 1024 * 1024

# What names a delivery on the wire.
_DELIVERY_BYTES = 6


class _Waiting(msgspec.Struct, frozen=True):
    delivery: pb.Delivery
    size: int


class _Numbered(msgspec.Struct, frozen=True):
    batch: pb.DeliverBatch
    size: int


class Outgoing:
    """The queue of one link. Sizes are bytes on the wire."""

    def __init__(self, *, limit: int, byte_limit: int = QUEUE_BYTES) -> None:
        """Makes an empty queue.

        Args:
            limit: recipients that may wait.
            byte_limit: bytes of deliveries that may wait.
        """
        self._limit = limit
        self._byte_limit = byte_limit
        self._queue: ByPriority[_Waiting] = ByPriority()
        self._queued_keys = 0
        self._queued_bytes = 0
        self._sequence = 0
        # Numbered, and not on the open stream: a break brought them back, or the stream's own queue was full.
        self._ready: deque[_Numbered] = deque()
        # sequence -> batch: on the open stream, not yet looked at by the node
        self._unanswered: dict[int, _Numbered] = {}
        self._unanswered_bytes = 0
        self._window_count = 0
        self._window_bytes = 0

    @property
    def unfinished(self) -> int:
        """Batches that the node has not looked at, and deliveries that wait."""
        return len(self._unanswered) + len(self._ready) + len(self._queue)

    @property
    def repeated(self) -> int:
        """Batches that are to go under the number they have."""
        return len(self._ready)

    def add(self, envelope: envelope_pb2.Envelope, recipient_keys: Sequence[str]) -> bool:
        """Queues a delivery; False when the queue is full."""
        if self._queued_keys + len(recipient_keys) > self._limit or self._queued_bytes >= self._byte_limit:
            return False
        for start in range(0, len(recipient_keys), LARGEST_DELIVERY_RECIPIENTS):
            keys = recipient_keys[start : start + LARGEST_DELIVERY_RECIPIENTS]
            delivery = pb.Delivery(envelope=envelope, recipient_keys=keys)
            size = delivery.ByteSize() + _DELIVERY_BYTES
            self._queue.append(envelope.priority, _Waiting(delivery, size))
            self._queued_bytes += size
        self._queued_keys += len(recipient_keys)
        return True

    def open(self, ready: pb.LinkReady, *, most: int) -> None:
        """Begins a stream with the window that the node announced, of `most` batches at most.

        A node that knows larger numbers of this process has them from an earlier link: numbers go on behind them.
        """
        self.interrupt()
        self._window_count = max(1, min(ready.window_count, most))
        self._window_bytes = ready.window_bytes
        self.taken(ready.taken_sequence)
        self._sequence = max(self._sequence, ready.taken_sequence)

    def interrupt(self) -> None:
        """The stream is over: what was not taken is to go again, in its order."""
        self._ready.extendleft(reversed(self._unanswered.values()))
        self._unanswered.clear()
        self._unanswered_bytes = 0

    def next(self) -> pb.DeliverBatch | None:
        """Returns the batch that goes next, if the window has room; one that is too large for the window goes alone."""
        if len(self._unanswered) >= self._window_count:
            return None
        if not self._ready and not self._queue:
            return None
        room = self._window_bytes - self._unanswered_bytes
        first = self._ready[0].size if self._ready else self._queue.first().size
        if self._unanswered and first > room:
            return None
        if not self._ready:
            self._ready.append(self._number(room))
        return self._ready[0].batch

    def sent(self) -> None:
        """The batch that `next` returned is on the stream."""
        numbered = self._ready.popleft()
        self._unanswered[numbered.batch.sequence] = numbered
        self._unanswered_bytes += numbered.size

    def taken(self, sequence: int) -> list[pb.DeliverBatch]:
        """The node has looked at every batch up to this one; returns those that it had not answered before."""
        done = [number for number in self._unanswered if number <= sequence]
        found = [self._unanswered.pop(number) for number in done]
        self._unanswered_bytes -= sum(numbered.size for numbered in found)
        while self._ready and self._ready[0].batch.sequence <= sequence:
            found.append(self._ready.popleft())
        return [numbered.batch for numbered in found]

    def delivery_of(self, sequence: int, index: int) -> pb.Delivery | None:
        """Returns a delivery of an unanswered batch; None for one that is not there."""
        known = self._unanswered.get(sequence)
        if known is None or not 0 <= index < len(known.batch.deliveries):
            return None
        return known.batch.deliveries[index]

    def clear_queue(self) -> int:
        """Drops what has no number yet; returns how many recipients that were."""
        count = self._queued_keys
        self._queue.clear()
        self._queued_keys = self._queued_bytes = 0
        return count

    def hand_over(self) -> list[pb.Delivery]:
        """Gives away everything that the node has not looked at, in order; nothing is left."""
        self.interrupt()
        deliveries = [delivery for numbered in self._ready for delivery in numbered.batch.deliveries]
        deliveries += [waiting.delivery for waiting in self._queue]
        self._ready.clear()
        self.clear_queue()
        return deliveries

    def _number(self, room: int) -> _Numbered:
        self._sequence += 1
        deliveries: list[pb.Delivery] = []
        size = recipients = 0
        while self._queue and len(deliveries) < LARGEST_BATCH:
            waiting = self._queue.first()
            recipients += len(waiting.delivery.recipient_keys)
            if deliveries and (size + waiting.size > room or recipients > LARGEST_BATCH_RECIPIENTS):
                break
            self._queue.pop()
            self._queued_keys -= len(waiting.delivery.recipient_keys)
            self._queued_bytes -= waiting.size
            deliveries.append(waiting.delivery)
            size += waiting.size
        return _Numbered(pb.DeliverBatch(sequence=self._sequence, deliveries=deliveries), size)

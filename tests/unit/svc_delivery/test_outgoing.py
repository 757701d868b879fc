"""What is on its way to one node: numbers, the window, breaks and bounds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.type.v1 import envelope_pb2, notification_pb2
from svc_delivery.outgoing import LARGEST_BATCH_RECIPIENTS, Outgoing
from tests.support.dispatching import id_of, make_envelope

MOST = 48


def ready(*, count: int = 4, size: int = 1 << 20, taken: int = 0) -> pb.LinkReady:
    """What a node announces."""
    return pb.LinkReady(protocol_version=1, window_count=count, window_bytes=size, taken_sequence=taken)


def flow(outgoing: Outgoing) -> list[pb.DeliverBatch]:
    """Everything that the window lets go now."""
    batches = []
    while (batch := outgoing.next()) is not None:
        batches.append(batch)
        outgoing.sent()
    return batches


def ids(batches: list[pb.DeliverBatch]) -> list[list[str]]:
    """The events of batches."""
    return [[delivery.envelope.event_id for delivery in batch.deliveries] for batch in batches]


def all_ids(batches: list[pb.DeliverBatch]) -> list[str]:
    """The events of batches, one after the other."""
    return [event_id for batch in ids(batches) for event_id in batch]


def filled(count: int, *, size: int = 0) -> Outgoing:
    """So many deliveries that wait."""
    outgoing = Outgoing(limit=100_000)
    for number in range(count):
        assert outgoing.add(make_envelope(number, content=b"x" * size), [f"acme/r{number}"])
    return outgoing


def test_nothing_goes_before_a_node_has_announced_its_window() -> None:
    """Without a stream deliveries only wait."""
    outgoing = filled(1)
    assert outgoing.next() is None
    outgoing.open(ready(), most=MOST)
    (batch,) = flow(outgoing)
    assert (batch.sequence, ids([batch])) == (1, [[id_of(0)]])


def test_what_waits_becomes_one_batch_of_at_most_500() -> None:
    """Numbers rise without gaps, deliveries keep their order."""
    outgoing = filled(1_100)
    outgoing.open(ready(), most=MOST)
    batches = flow(outgoing)
    assert [batch.sequence for batch in batches] == [1, 2, 3]
    assert [len(batch.deliveries) for batch in batches] == [500, 500, 100]
    assert all_ids(batches) == [id_of(number) for number in range(1_100)]


def test_the_window_of_batches_opens_with_answers() -> None:
    """What arrives while it is closed becomes the next batch."""
    outgoing = Outgoing(limit=100)
    outgoing.open(ready(count=2), most=MOST)
    sent: list[pb.DeliverBatch] = []
    for number in range(5):
        outgoing.add(make_envelope(number), ["acme/a"])
        sent += flow(outgoing)
    assert ids(sent) == [[id_of(0)], [id_of(1)]]
    assert [batch.sequence for batch in outgoing.taken(1)] == [1]
    assert ids(flow(outgoing)) == [[id_of(2), id_of(3), id_of(4)]]
    assert outgoing.taken(1) == []
    assert [batch.sequence for batch in outgoing.taken(3)] == [2, 3]
    assert outgoing.unfinished == 0


def test_the_window_of_bytes_is_kept() -> None:
    """Batches are cut to fit what is left of it."""
    outgoing = filled(10, size=1_000)
    outgoing.open(ready(size=4_800), most=MOST)
    batches = flow(outgoing)
    assert sum(batch.ByteSize() for batch in batches) <= 4_800
    assert len(all_ids(batches)) == 4
    outgoing.taken(1)
    assert len(all_ids(flow(outgoing))) == 4


def test_a_delivery_larger_than_the_window_goes_alone() -> None:
    """It waits until nothing is unanswered, and then it goes whatever the window says."""
    outgoing = filled(1)
    outgoing.open(ready(size=2_000), most=MOST)
    assert len(flow(outgoing)) == 1
    outgoing.add(make_envelope(5, content=b"x" * 9_000), ["acme/a"])
    outgoing.add(make_envelope(6), ["acme/a"])
    assert flow(outgoing) == []
    outgoing.taken(1)
    assert ids(flow(outgoing)) == [[id_of(5)]]
    outgoing.taken(2)
    assert ids(flow(outgoing)) == [[id_of(6)]]


def test_a_break_brings_back_what_was_not_taken() -> None:
    """It goes again under its number and in its order; what the node has by now does not."""
    outgoing = filled(1_700)
    outgoing.open(ready(), most=MOST)
    first = flow(outgoing)
    outgoing.taken(1)
    outgoing.interrupt()
    assert outgoing.next() is not None
    outgoing.open(ready(taken=2), most=MOST)
    assert flow(outgoing) == first[2:]
    assert outgoing.taken(4) == first[2:]
    assert outgoing.unfinished == 0


def test_repeated_batches_keep_to_the_next_streams_window() -> None:
    """A node that announces less the second time gets less at once."""
    outgoing = filled(2_000)
    outgoing.open(ready(count=4), most=MOST)
    first = flow(outgoing)
    outgoing.open(ready(count=1), most=MOST)
    assert outgoing.repeated == 4
    for expected in first:
        assert flow(outgoing) == [expected]
        outgoing.taken(expected.sequence)


def test_a_batch_that_did_not_get_onto_the_stream_goes_next() -> None:
    """Its number is not used up: asking again gives the same batch."""
    outgoing = filled(1)
    outgoing.open(ready(), most=MOST)
    batch = outgoing.next()
    outgoing.add(make_envelope(9), ["acme/a"])
    assert outgoing.next() == batch
    outgoing.sent()
    assert ids(flow(outgoing)) == [[id_of(9)]]


def test_numbers_go_on_behind_those_that_the_node_knows() -> None:
    """A new link to a process that lives on must not use numbers that the node would pass over."""
    outgoing = filled(1)
    outgoing.open(ready(taken=41), most=MOST)
    assert [batch.sequence for batch in flow(outgoing)] == [42]


def test_the_queue_is_bounded_by_recipients_and_bytes() -> None:
    """Full means no; what was taken stays."""
    outgoing = Outgoing(limit=3, byte_limit=1_000)
    assert outgoing.add(make_envelope(1), ["acme/a", "acme/b"])
    assert not outgoing.add(make_envelope(2), ["acme/a", "acme/b"])
    assert outgoing.add(make_envelope(3), ["acme/a"])
    assert outgoing.clear_queue() == 3
    assert outgoing.add(make_envelope(4, content=b"x" * 2_000), ["acme/a"])
    assert not outgoing.add(make_envelope(5), ["acme/a"])
    outgoing.open(ready(), most=MOST)
    assert ids(flow(outgoing)) == [[id_of(4)]]
    assert outgoing.add(make_envelope(5), ["acme/a"])


def test_a_refused_delivery_is_known_until_it_is_answered() -> None:
    """A refusal that names no recipients means all of its; nonsense means nobody."""
    outgoing = Outgoing(limit=10)
    outgoing.add(make_envelope(1), ["acme/a", "acme/b"])
    outgoing.open(ready(), most=MOST)
    flow(outgoing)
    known = [outgoing.delivery_of(*where) for where in ((1, 0), (1, 1), (1, -1), (2, 0))]
    assert [None if one is None else list(one.recipient_keys) for one in known] == [
        ["acme/a", "acme/b"],
        None,
        None,
        None,
    ]
    outgoing.taken(1)
    assert outgoing.delivery_of(1, 0) is None


def test_a_queue_that_is_handed_over_is_empty() -> None:
    """Unanswered, repeated and waiting deliveries, in order."""
    outgoing = filled(1_200)
    outgoing.open(ready(count=1), most=MOST)
    flow(outgoing)
    assert [delivery.envelope.event_id for delivery in outgoing.hand_over()] == [id_of(one) for one in range(1_200)]
    assert outgoing.unfinished == 0
    assert outgoing.hand_over() == []
    assert outgoing.add(make_envelope(1), ["acme/a"])


class Node(RuleBasedStateMachine):
    """A node at the end of streams that break at any time: it takes numbers once, in order, and misses none."""

    def __init__(self) -> None:
        super().__init__()
        self.outgoing = Outgoing(limit=10_000)
        self.added = 0
        self.taken = 0
        self.window = (1, 1)
        self.is_open = False
        self.on_wire: list[pb.DeliverBatch] = []
        self.got: list[str] = []

    @rule(count=st.sampled_from([1, 2, 30, 600]), size=st.sampled_from([0, 10, 3_000]))
    def add(self, count: int, size: int) -> None:
        for _ in range(count):
            assert self.outgoing.add(make_envelope(self.added, content=b"x" * size), ["acme/a"])
            self.added += 1
        self._flow()

    @rule(count=st.integers(0, 5), size=st.sampled_from([0, 2_000, 100_000]))
    def open(self, count: int, size: int) -> None:
        self.on_wire.clear()
        self.window, self.is_open = (max(1, count), size), True
        self.outgoing.open(ready(count=count, size=size, taken=self.taken), most=MOST)
        self._flow()

    @rule(lost=st.booleans())
    def take(self, lost: bool) -> None:
        if not self.on_wire:
            return
        batch = self.on_wire.pop(0)
        if batch.sequence > self.taken:
            assert batch.sequence == self.taken + 1
            self.taken = batch.sequence
            self.got += [delivery.envelope.event_id for delivery in batch.deliveries]
        if lost:
            self.is_open = False
            self.outgoing.interrupt()
        else:
            self.outgoing.taken(self.taken)
            self._flow()

    def _flow(self) -> None:
        if self.is_open:
            self.on_wire += flow(self.outgoing)

    @invariant()
    def everything_came_once_and_in_order(self) -> None:
        assert self.got == [id_of(number) for number in range(len(self.got))]

    @invariant()
    def the_window_is_kept(self) -> None:
        if self.is_open:
            assert len(self.on_wire) <= self.window[0]
            assert len(self.on_wire) <= 1 or sum(batch.ByteSize() for batch in self.on_wire) <= self.window[1]

    def teardown(self) -> None:
        self.open(4, 1 << 20)
        while self.on_wire:
            self.take(lost=False)
        assert self.got == [id_of(number) for number in range(self.added)]
        assert self.outgoing.unfinished == 0


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=25, stateful_step_count=25)


def test_a_large_delivery_is_cut_and_what_is_urgent_overtakes_it() -> None:
    """High waits for the batches on the stream, not for the bulk event behind them."""
    queue = Outgoing(limit=50_000)
    queue.open(pb.LinkReady(window_count=1, window_bytes=1 << 20), most=4)
    bulk = envelope_pb2.Envelope(notification_id="bulk", priority=notification_pb2.PRIORITY_BULK)
    assert queue.add(bulk, [f"acme/r{number}" for number in range(2_600)])
    first = queue.next()
    assert first is not None
    assert sum(len(delivery.recipient_keys) for delivery in first.deliveries) == LARGEST_BATCH_RECIPIENTS
    queue.sent()
    assert queue.add(envelope_pb2.Envelope(notification_id="high", priority=notification_pb2.PRIORITY_HIGH), ["acme/a"])
    queue.taken(first.sequence)
    second = queue.next()
    assert second is not None
    assert second.deliveries[0].envelope.notification_id == "high"

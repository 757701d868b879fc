"""Follow-ups on a real store: what is read, what is offered again, and what survives."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2, lane_record_pb2
from heliograph.delivery.v1 import delivery_service_pb2 as pb
from heliograph.type.v1 import plan_pb2
from mesh.clock import ManualClock, Stamper
from mesh.errors import Unavailable
from mesh.ids import from_text
from mesh.telemetry import Telemetry
from svc_delivery import intake, ports, records
from svc_delivery.caution import Caution
from svc_delivery.channels import PlanWalker
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.ports import AckLevel, FollowUpWrite, MarkWrite, RowKey
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.rows import Rows
from svc_delivery.settled import Settled
from svc_delivery.store import InboxStore, open_store
from svc_delivery.wishes import Wishes
from svc_delivery.worker import RECORDS, FollowUpWorker, sweep
from svc_delivery.writes import FreshWriter
from tests.support.delivering import InProcessNodes, InProcessPresence, UnsteadyInbox, store_down
from tests.support.dispatching import LIVE, InProcessPrefs, id_of, make_envelope
from tests.support.far_ends import running
from tests.support.inbox import DAY_US
from tests.support.wait import until

UNDECODABLE = dead_letter_service_pb2.DEAD_LETTER_REASON_UNDECODABLE
PLAN = plan_pb2.Plan(steps=[plan_pb2.PlanStep(channel=channel) for channel in LIVE.channels])


class ProcessDied(BaseException):
    """What ends a process in the middle of its work."""


class MortalFollowUps:
    """Follow-ups in front of real ones, whose process may die before a record is finished."""

    def __init__(self, real: ports.FollowUps) -> None:
        self.real = real
        self.dies = False
        self.due, self.next_due = real.due, real.next_due
        self.containing, self.backlog = real.containing, real.backlog

    async def finish(
        self,
        record_ids: Sequence[int],
        again: Sequence[FollowUpWrite] = (),
        letters: Sequence[DeadLetterRecord] = (),
    ) -> None:
        """See the port."""
        if self.dies:
            raise ProcessDied
        await self.real.finish(record_ids, again, letters)


class FollowUps:
    """A worker on a store, with in-process presence and nodes."""

    def __init__(self, store: InboxStore, *, limit: int = 10_000) -> None:
        self.store = store
        self.clock = ManualClock()
        self.inbox = UnsteadyInbox(store.inbox)
        self.presence = InProcessPresence()
        self.nodes = InProcessNodes()
        self.settled = Settled(keep=15.0)
        self.telemetry = Telemetry("delivery")
        metrics = Metrics(self.telemetry)
        self.offers = Offers(
            presence=self.presence, nodes=self.nodes, settled=self.settled, metrics=metrics, limit=limit
        )
        self.steps: list[tuple[str, object]] = []
        self.follow_ups = MortalFollowUps(store.follow_ups)
        wishes = Wishes(InProcessPrefs())
        self.worker = FollowUpWorker(
            follow_ups=self.follow_ups,
            inbox=self.inbox,
            rows=Rows(
                writer=FreshWriter(inbox=self.inbox, stamper=Stamper(self.clock), limit=5.0, late=lambda: None),
                follow_ups=self.follow_ups,
                wishes=wishes,
                metrics=metrics,
                now_us=lambda: self.now_us,
            ),
            channels=PlanWalker(
                inbox=self.inbox,
                cells=store.steps,
                wishes=wishes,
                senders={},
                metrics=metrics,
                now_us=lambda: self.now_us,
            ),
            caution=Caution(store.suspects, page=RECORDS),
            presence=self.presence,
            offers=self.offers,
            settled=self.settled,
            clock=self.clock,
            metrics=metrics,
            trace=lambda step, **fields: self.steps.append((str(fields["next"]), fields["event_id"])),
            poll=0.002,
            first_retry=0.002,
        )

    @property
    def now_us(self) -> int:
        """The wall clock."""
        return round(self.clock.wall() * 1_000_000)

    def count(self, outcome: str) -> float:
        """Follow-ups that came to this."""
        name = "heliograph_delivery_follow_ups_total"
        return self.telemetry.registry.get_sample_value(name, {"outcome": outcome}) or 0.0

    async def inboxed(self, number: int, *names: str, expire_s: float | None = None) -> None:
        """Event `number` as delivery writes it: rows and one follow-up."""
        expire_us = None if expire_s is None else self.now_us + round(expire_s * 1_000_000)
        group = plan_pb2.RecipientGroup(recipient_ids=names)
        dispatch = pb.Dispatch(envelope=make_envelope(number, expire_us=expire_us), groups=[group])
        taken = intake.take(pb.DispatchBatch(plans=[PLAN], dispatches=[dispatch]), self.now_us)
        await self.store.inbox.write(taken.rows, stamp=self.now_us + number, follow_up=taken.follow_up)

    async def acked(self, number: int, name: str, level: AckLevel = AckLevel.RECEIVED) -> None:
        """Stores an ack, as another process would."""
        mark = MarkWrite(f"acme/{name}", [from_text(id_of(number))], ack=level)
        await self.store.inbox.mark([mark], stamp=self.now_us + 1_000)

    async def left(self) -> list[tuple[float, list[tuple[str, int]]]]:
        """What is stored for later: seconds from now, and each delivery with its tries."""
        records = await self.store.follow_ups.due(self.now_us + 10 * DAY_US, 1_000)
        return [
            (
                (record.due_us - self.now_us) / 1_000_000,
                [
                    (item.recipient_key, item.try_count)
                    for item in lane_record_pb2.LaneRecord.FromString(record.record).follow_ups.items
                ],
            )
            for record in records
        ]

    async def offered(self) -> list[tuple[str, Sequence[str]]]:
        """Lets the queue hand on what it has, and tells what reached a node so far."""
        async with running(self.offers.run):
            await until(lambda: self.offers.waiting == 0)
        return [(envelope.event_id, keys) for _, envelope, keys in self.nodes.offered]


@contextlib.asynccontextmanager
async def on_store(tmp_path: Path) -> AsyncIterator[FollowUps]:
    """A worker on the store of this folder."""
    store = open_store("sqlite:///inbox.db", tmp_path)
    await store.open()
    try:
        yield FollowUps(store)
    finally:
        await store.close()


@pytest.fixture
async def follow_ups(tmp_path: Path) -> AsyncIterator[FollowUps]:
    """A worker that is not running."""
    async with on_store(tmp_path) as made:
        yield made


async def test_nothing_is_looked_at_before_its_time(follow_ups: FollowUps) -> None:
    """The ack window is ten seconds."""
    await follow_ups.inboxed(1, "alice")
    follow_ups.clock.advance(9.9)
    assert not await follow_ups.worker.step()
    assert len(await follow_ups.left()) == 1


async def test_settled_deliveries_cost_no_read(follow_ups: FollowUps) -> None:
    """Memory knows their ack: neither the row nor presence is asked, and the record is gone."""
    await follow_ups.inboxed(1, "alice", "bob")
    for name in ("alice", "bob"):
        follow_ups.settled.add((f"acme/{name}", from_text(id_of(1))))
    follow_ups.clock.advance(10.0)
    assert await follow_ups.worker.step()
    assert follow_ups.inbox.calls.total() == 0
    assert follow_ups.presence.looked_up == []
    assert await follow_ups.left() == []
    assert follow_ups.count("settled") == 2


async def test_unacked_and_present_is_offered_again_three_times(follow_ups: FollowUps) -> None:
    """After 10 s, 1 min and 10 min, with the content of the row; then it rests in the inbox."""
    follow_ups.presence.where = {"acme/alice": ("n1",)}
    await follow_ups.inboxed(1, "alice")
    for tries, (wait, following) in enumerate([(10.0, 60.0), (60.0, 600.0), (600.0, None)], start=1):
        follow_ups.clock.advance(wait)
        assert await follow_ups.worker.step()
        assert await follow_ups.offered() == [(id_of(1), ["acme/alice"])] * tries
        left = [] if following is None else [(following, [("acme/alice", tries)])]
        assert await follow_ups.left() == left
    envelope = follow_ups.nodes.offered[-1][1]
    expected = make_envelope(1)
    for field in ("kind", "notification_id", "event_id", "revision", "tenant_id", "priority", "notification"):
        assert getattr(envelope, field) == getattr(expected, field)
    follow_ups.clock.advance(100_000.0)
    assert not await follow_ups.worker.step()
    assert follow_ups.steps == [("OfferAgain", id_of(1))] * 3


async def test_the_row_knows_what_memory_does_not(follow_ups: FollowUps) -> None:
    """Acked through another process, hidden, expired or gone: done, and presence is not asked."""
    await follow_ups.inboxed(1, "alice", "bob")
    await follow_ups.inboxed(2, "carol", expire_s=5.0)
    await follow_ups.acked(1, "alice")
    hide = MarkWrite("acme/bob", [from_text(id_of(1))], hide=True)
    await follow_ups.store.inbox.mark([hide], stamp=follow_ups.now_us + 1_000)
    trimmed = intake.take(
        pb.DispatchBatch(
            plans=[PLAN],
            dispatches=[pb.Dispatch(envelope=make_envelope(3), groups=[plan_pb2.RecipientGroup(recipient_ids=["d"])])],
        ),
        follow_ups.now_us,
    )
    await follow_ups.store.inbox.write([], stamp=follow_ups.now_us, follow_up=trimmed.follow_up)
    follow_ups.clock.advance(10.0)
    assert await follow_ups.worker.step()
    assert await follow_ups.left() == []
    assert follow_ups.presence.looked_up == []
    assert follow_ups.count("done") == 4
    assert await follow_ups.offered() == []


async def test_absent_recipients_are_done(follow_ups: FollowUps) -> None:
    """The row rests in the inbox, where a replay finds it; those present are offered it."""
    follow_ups.presence.where = {"acme/bob": ("n1",)}
    await follow_ups.inboxed(1, "alice", "bob")
    follow_ups.clock.advance(10.0)
    await follow_ups.worker.step()
    assert await follow_ups.left() == [(60.0, [("acme/bob", 1)])]
    assert await follow_ups.offered() == [(id_of(1), ["acme/bob"])]
    assert (follow_ups.count("done"), follow_ups.count("again")) == (1, 1)


async def test_a_presence_that_does_not_answer_is_no_try(follow_ups: FollowUps) -> None:
    """It is looked at again ten seconds later, as often as it takes, with the same number of tries."""
    follow_ups.presence.failure = Unavailable("no presence", reason="PEER_UNAVAILABLE")
    await follow_ups.inboxed(1, "alice")
    for _ in range(5):
        follow_ups.clock.advance(10.0)
        assert await follow_ups.worker.step()
        assert await follow_ups.left() == [(10.0, [("acme/alice", 0)])]
    follow_ups.presence.failure = None
    follow_ups.presence.where = {"acme/alice": ("n1",)}
    follow_ups.clock.advance(10.0)
    await follow_ups.worker.step()
    assert await follow_ups.left() == [(60.0, [("acme/alice", 1)])]
    assert await follow_ups.offered() == [(id_of(1), ["acme/alice"])]


def _record(**changes: object) -> bytes:
    record = lane_record_pb2.LaneRecord()
    item = record.follow_ups.items.add(recipient_key="acme/alice")
    item.ref.notification_id = str(changes.get("id", id_of(1)))
    item.plan_index = int(str(changes.get("plan_index", 0)))
    record.follow_ups.plans.append(PLAN)
    return record.SerializeToString()


@pytest.mark.parametrize(
    "value",
    [b"\xff\xff", b"", _record(id="no id"), _record(plan_index=1), _record(plan_index=-1)],
    ids=["bytes", "empty", "bad id", "no such plan", "negative plan"],
)
async def test_what_cannot_be_read_is_parked(follow_ups: FollowUps, value: bytes) -> None:
    """With its bytes, once; what is due beside it is looked at as ever."""
    follow_ups.presence.where = {"acme/bob": ("n1",)}
    await follow_ups.store.inbox.write([], stamp=1, follow_up=FollowUpWrite(follow_ups.now_us, value))
    await follow_ups.inboxed(2, "bob")
    follow_ups.clock.advance(10.0)
    assert await follow_ups.worker.step()
    (found,) = await follow_ups.store.dead_letters.page(tenant_id="", reason=UNDECODABLE, start=None, limit=10)
    (letter,) = await follow_ups.store.dead_letters.get([found.letter_id])
    assert letter is not None
    shown = dead_letter_service_pb2.DeadLetter.FromString(letter.letter)
    assert (letter.original, shown.lane_position) == (value, "follow_ups/1")
    assert [bool(attempt.outcome) for attempt in shown.attempts] == [True]
    assert await follow_ups.left() == [(60.0, [("acme/bob", 1)])]
    assert not await follow_ups.worker.step()
    assert follow_ups.count("parked") == 1


async def test_many_records_are_looked_at_together(follow_ups: FollowUps) -> None:
    """One read of the rows and one look-up a page; what is left keeps to the size of a record."""
    for number in range(40):
        await follow_ups.inboxed(number, "alice", f"r{number}")
    follow_ups.presence.failure = Unavailable("no presence", reason="PEER_UNAVAILABLE")
    follow_ups.clock.advance(10.0)
    assert await follow_ups.worker.step()
    assert (follow_ups.inbox.calls["states"], len(follow_ups.presence.looked_up)) == (1, 1)
    assert len(follow_ups.presence.looked_up[0]) == 33
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "LARGEST_RECORD", 10)
        follow_ups.clock.advance(10.0)
        while await follow_ups.worker.step():
            continue
    left = await follow_ups.left()
    assert max(len(items) for _, items in left) <= 10
    assert sum(len(items) for _, items in left) == 80


async def test_while_offers_are_crowded_nothing_is_looked_at(tmp_path: Path) -> None:
    """An offer that finds no room would use up a try for nothing."""
    async with on_store(tmp_path) as made:
        crowded = FollowUps(made.store, limit=4)
        crowded.presence.where = {"acme/alice": ("n1",)}
        await crowded.inboxed(1, "alice")
        crowded.clock.advance(10.0)
        crowded.offers.add([intake.Offer(make_envelope(9), from_text(id_of(9)), ["acme/x", "acme/y", "acme/z"])])
        assert not await crowded.worker.step()
        assert await crowded.left() == [(0.0, [("acme/alice", 0)])]
        await crowded.offered()
        assert await crowded.worker.step()
        assert await crowded.left() == [(60.0, [("acme/alice", 1)])]


async def test_a_store_that_does_not_answer_keeps_every_record(follow_ups: FollowUps) -> None:
    """The loop goes on when it is back; nothing was offered for a record that is still there."""
    follow_ups.presence.where = {"acme/alice": ("n1",)}
    await follow_ups.inboxed(1, "alice")
    follow_ups.clock.advance(10.0)
    follow_ups.inbox.read_failure = store_down()
    async with running(follow_ups.worker.run):
        await until(lambda: follow_ups.inbox.calls["states"] >= 3)
        assert await follow_ups.left() == [(0.0, [("acme/alice", 0)])]
        assert follow_ups.offers.waiting == 0
        follow_ups.inbox.read_failure = None
        await until(lambda: follow_ups.offers.waiting == 1)
    assert await follow_ups.left() == [(60.0, [("acme/alice", 1)])]


async def test_a_record_survives_a_crash_until_it_is_finished(tmp_path: Path) -> None:
    """A process that dies between its look and the end of the record leaves it to its heir."""
    async with on_store(tmp_path) as first:
        first.presence.where = {"acme/alice": ("n1",)}
        await first.inboxed(1, "alice")
        first.clock.advance(10.0)
        first.follow_ups.dies = True
        with pytest.raises(ProcessDied):
            await first.worker.step()
    async with on_store(tmp_path) as heir:
        heir.presence.where = {"acme/alice": ("n1",)}
        heir.clock.advance(10.0)
        assert await heir.worker.step()
        assert await heir.offered() == [(id_of(1), ["acme/alice"])]
        assert await heir.left() == [(60.0, [("acme/alice", 1)])]


async def test_the_loop_works_what_becomes_due(follow_ups: FollowUps) -> None:
    """Without anybody waking it."""
    async with running(follow_ups.worker.run):
        await follow_ups.inboxed(1, "alice")
        follow_ups.clock.advance(10.0)

        async def is_empty() -> bool:
            return not await follow_ups.left()

        await until(is_empty)
    assert follow_ups.count("done") == 1


async def test_the_sweep_removes_what_is_too_old(follow_ups: FollowUps) -> None:
    """Also after a store that did not answer."""
    await follow_ups.inboxed(1, "alice")
    key = RowKey("acme/alice", from_text(id_of(1)))
    follow_ups.inbox.read_failure = store_down()
    follow_ups.clock.advance(91 * 86_400.0)
    async with running(lambda: sweep(follow_ups.inbox, follow_ups.clock, interval=0.002, pause=0.0)):
        await until(lambda: follow_ups.inbox.calls["sweep"] >= 2)
        follow_ups.inbox.read_failure = None

        async def is_gone() -> bool:
            return not await follow_ups.store.inbox.bodies([key])

        await until(is_gone)


class DoubtedClock(ManualClock):
    """A clock that was set, and counts how often somebody asked."""

    agreed = False
    asked = 0

    def agrees(self) -> bool:
        self.asked += 1
        return self.agreed


async def test_the_sweep_removes_nothing_while_the_clock_is_doubtful(follow_ups: FollowUps) -> None:
    """However old everything looks."""
    clock = DoubtedClock()
    async with running(lambda: sweep(follow_ups.inbox, clock, interval=0.002, pause=0.0)):
        await until(lambda: clock.asked >= 3)
        assert follow_ups.inbox.calls["sweep"] == 0
        clock.agreed = True
        await until(lambda: follow_ups.inbox.calls["sweep"] >= 1)

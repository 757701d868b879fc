"""A whole delivery without its streams, for tests of what happens after the ack window.

The service's own objects on a real store, over in-process presence, nodes, prefs and a scripted channel. Must not
assert anything.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from heliograph.access.v1 import access_pb2
from heliograph.delivery.v1 import (
    dead_letter_service_pb2,
    dead_letter_service_pb2_grpc,
    delivery_service_pb2,
    delivery_service_pb2_grpc,
    lane_record_pb2,
)
from heliograph.type.v1 import envelope_pb2, notification_pb2, plan_pb2
from mesh.access import read_access
from mesh.clock import ManualClock, Stamper, SystemClock
from mesh.ids import derive_id, from_text, to_text
from mesh.server import Server
from mesh.telemetry import Telemetry
from mesh.times import set_micros
from svc_delivery.caution import Caution
from svc_delivery.channels import PlanWalker
from svc_delivery.elsewhere import Elsewhere
from svc_delivery.explain import Explainer
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.ports import AckLevel, FollowUps, MarkWrite, RowKey, RowState
from svc_delivery.ports_channels import Attempt, Outcome, Sent
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.redrive import Redriver
from svc_delivery.rows import Rows, Stored
from svc_delivery.service import DeliveryService
from svc_delivery.service_dead_letters import DeadLetterService
from svc_delivery.settled import Settled
from svc_delivery.store import InboxStore, open_store
from svc_delivery.wishes import Wishes
from svc_delivery.worker import RECORDS, FollowUpWorker
from svc_delivery.writes import FreshWriter
from tests.support.delivering import InProcessNodes, InProcessPresence, UnsteadyInbox
from tests.support.dispatching import LIVE, InProcessPrefs

# Channels that no version of the contract knows: they reach senders by number alone.
FIRST, SECOND = 100, 101
CLOCK_S = 1_700_000_000.0


def plan_of(*channels: int) -> plan_pb2.Plan:
    """A plan over inbox, live and these channels."""
    plan = plan_pb2.Plan()
    for channel in (notification_pb2.CHANNEL_INBOX, notification_pb2.CHANNEL_LIVE, *channels):
        plan.steps.add().channel = channel  # type: ignore[assignment]  # a channel of tests
    return plan


def id_of(number: int) -> str:
    """The id of event `number`, which happened when the clock starts."""
    return to_text(derive_id(round(CLOCK_S * 1000), [number.to_bytes(8, "big")], False))


def envelope_of(number: int, *, category: str = "general", expire_s: float | None = None) -> envelope_pb2.Envelope:
    """The envelope of event `number` as ingest makes it."""
    notification = notification_pb2.Notification(
        notification_id=id_of(number),
        revision=1,
        category=category,
        priority=notification_pb2.PRIORITY_NORMAL,
        producer_id="demo",
        content=notification_pb2.Content(title=f"event {number}"),
    )
    envelope = envelope_pb2.Envelope(
        kind=envelope_pb2.ENVELOPE_KIND_NOTIFY,
        notification_id=id_of(number),
        event_id=id_of(number),
        revision=1,
        tenant_id="acme",
        producer_id="demo",
        category=category,
        priority=notification_pb2.PRIORITY_NORMAL,
    )
    set_micros(envelope.accept_time, round(CLOCK_S * 1e6))
    if expire_s is not None:
        for message in (notification, envelope):
            set_micros(message.expire_time, round((CLOCK_S + expire_s) * 1e6))
    envelope.notification = notification.SerializeToString()
    return envelope


class ScriptedSender:
    """A channel that answers what a test says, in order, and then takes everything.

    Attributes:
        outcomes: what the next calls come to; a failure is raised.
        calls: recipient, attempt and notification of each call.
    """

    def __init__(self, *outcomes: Outcome | Exception) -> None:
        self.outcomes: deque[Outcome | Exception] = deque(outcomes)
        self.calls: list[tuple[str, Attempt, envelope_pb2.Envelope]] = []

    async def send(self, envelope: envelope_pb2.Envelope, recipient_key: str, attempt: Attempt) -> Outcome:
        """See `ports_channels.ChannelSender`."""
        self.calls.append((recipient_key, attempt, envelope))
        outcome = self.outcomes.popleft() if self.outcomes else Sent()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def attempts(self) -> list[int]:
        """The number of each attempt."""
        return [attempt.attempt_number for _, attempt, _ in self.calls]


class Retrying:
    """Everything of delivery that works on what is due."""

    def __init__(
        self,
        store: InboxStore,
        *,
        presence: InProcessPresence | None = None,
        offer_limit: int = 10_000,
        clock: ManualClock | None = None,
        follow_ups: FollowUps | None = None,
    ) -> None:
        self.store = store
        self.clock = ManualClock(wall=CLOCK_S) if clock is None else clock
        self.inbox = UnsteadyInbox(store.inbox)
        self.presence = presence or InProcessPresence()
        self.nodes = InProcessNodes()
        self.prefs = InProcessPrefs()
        self.senders: dict[int, ScriptedSender] = {}
        self.settled = Settled(keep=15.0)
        self.telemetry = Telemetry("delivery")
        self.metrics = Metrics(self.telemetry)
        self.elsewhere = Elsewhere(follow_ups=store.follow_ups, metrics=self.metrics, now_us=self.now_us)
        self.offers = Offers(
            presence=self.presence,
            nodes=self.nodes,
            settled=self.settled,
            metrics=self.metrics,
            limit=offer_limit,
            nobody_there=self.elsewhere.add,
            offered=self.elsewhere.offered,
        )
        self.writer = FreshWriter(inbox=self.inbox, stamper=Stamper(self.clock), limit=5.0, late=lambda: None)
        wishes = Wishes(self.prefs)
        self.rows = Rows(
            writer=self.writer,
            follow_ups=store.follow_ups,
            wishes=wishes,
            metrics=self.metrics,
            now_us=self.now_us,
        )
        self.walker = PlanWalker(
            inbox=self.inbox,
            cells=store.steps,
            wishes=wishes,
            senders=self.senders,
            metrics=self.metrics,
            now_us=self.now_us,
            send_timeout=0.2,
        )
        self.caution = Caution(store.suspects, page=RECORDS)
        self.redriver = Redriver(
            dead_letters=store.dead_letters,
            follow_ups=store.follow_ups,
            inbox=self.inbox,
            cells=store.steps,
            writer=self.writer,
            wishes=wishes,
            offers=self.offers,
            metrics=self.metrics,
            now_us=self.now_us,
        )
        self.letters = DeadLetterService(dead_letters=store.dead_letters, redriver=self.redriver)
        self.explainer = Explainer(
            inbox=self.inbox,
            cells=store.steps,
            follow_ups=store.follow_ups,
            dead_letters=store.dead_letters,
            now_us=self.now_us,
        )
        self.worker = FollowUpWorker(
            follow_ups=store.follow_ups if follow_ups is None else follow_ups,
            inbox=self.inbox,
            rows=self.rows,
            channels=self.walker,
            caution=self.caution,
            presence=self.presence,
            offers=self.offers,
            settled=self.settled,
            clock=self.clock,
            metrics=self.metrics,
            trace=None,
            poll=0.002,
            first_retry=0.002,
        )

    def now_us(self) -> int:
        """The wall clock."""
        return round(self.clock.wall() * 1_000_000)

    def channel(self, number: int, *outcomes: Outcome | Exception) -> ScriptedSender:
        """Gives a channel its sender; wishes allow it."""
        sender = self.senders[number] = ScriptedSender(*outcomes)
        channels = [*self.prefs.default.channels, number]
        self.prefs.default = type(LIVE)()
        self.prefs.default.channels.extend(channels)  # type: ignore[arg-type]  # a channel of tests
        return sender

    async def dispatch(
        self, *envelopes: envelope_pb2.Envelope, to: Sequence[str] = ("alice",), plan: plan_pb2.Plan | None = None
    ) -> Stored:
        """Takes a batch of fanout's."""
        groups = [plan_pb2.RecipientGroup(recipient_ids=to)]
        dispatches = [delivery_service_pb2.Dispatch(envelope=envelope, groups=groups) for envelope in envelopes]
        plans = [plan_of() if plan is None else plan]
        return await self.rows.take(delivery_service_pb2.DispatchBatch(plans=plans, dispatches=dispatches))

    async def after(self, seconds: float) -> None:
        """Lets time pass, then works everything that is due."""
        self.clock.advance(seconds)
        while await self.worker.step():
            continue

    async def ack(self, number: int, level: AckLevel, name: str = "alice") -> None:
        """Stores an ack, as another process would."""
        mark = MarkWrite(f"acme/{name}", [from_text(id_of(number))], ack=level)
        await self.store.inbox.mark([mark], stamp=self.now_us())

    async def row(self, number: int, name: str = "alice") -> RowState | None:
        """The cells of a row."""
        (state,) = await self.store.inbox.states([key_of(number, name)])
        return state

    async def steps(self, number: int, name: str = "alice") -> list[tuple[int, int, str]]:
        """Step, attempt and outcome of each cell of a row."""
        (cells,) = await self.store.steps.cells([key_of(number, name)])
        return [(cell.step_index, cell.attempt_number, cell.outcome) for cell in cells]

    async def buried(self) -> list[DeadLetterRecord]:
        """All dead letters, newest first, whole."""
        page = await self.store.dead_letters.page(tenant_id="", reason=0, start=None, limit=1_000)
        return [one for one in await self.store.dead_letters.get([one.letter_id for one in page]) if one is not None]

    async def waiting(self) -> list[tuple[float, str]]:
        """What the retry lane holds: seconds from now and the kind of each record."""
        records = await self.store.follow_ups.due(self.now_us() + 10**13, 1_000)
        return [
            (
                (record.due_us - self.now_us()) / 1e6,
                lane_record_pb2.LaneRecord.FromString(record.record).WhichOneof("record") or "",
            )
            for record in records
        ]

    async def explained(self, number: int, name: str = "alice") -> delivery_service_pb2.ExplainResponse:
        """What an operator is told."""
        request = delivery_service_pb2.ExplainRequest(event_id=id_of(number), tenant_id="acme", recipient_id=name)
        return await self.explainer.explain(request)


def key_of(number: int, name: str = "alice") -> RowKey:
    """The key of a row."""
    return RowKey(f"acme/{name}", from_text(id_of(number)))


@contextlib.asynccontextmanager
async def retrying(
    data_dir: Path, *, follow_ups_url: str = "", clock: ManualClock | None = None, offer_limit: int = 10_000
) -> AsyncIterator[Retrying]:
    """A delivery on the store of a folder, nothing running.

    Args:
        data_dir: the folder.
        follow_ups_url: lanes for its follow-ups; empty: in the inbox.
        clock: its time; a new one when left out.
        offer_limit: recipients that may wait for the links.
    """
    clock = ManualClock(wall=CLOCK_S) if clock is None else clock
    with tempfile.TemporaryDirectory(prefix="hg-") as run_dir:
        store = open_store(
            "sqlite:///inbox.db", data_dir, follow_ups_url=follow_ups_url, run_dir=Path(run_dir), clock=clock
        )
        await store.open()
        try:
            yield Retrying(store, offer_limit=offer_limit, clock=clock)
        finally:
            await store.close()


@contextlib.asynccontextmanager
async def serving_operators(delivery: Retrying, run_dir: Path) -> AsyncIterator[None]:
    """Serves what operators may call of a delivery, at its socket, in direct mode."""
    service = DeliveryService(
        rows=delivery.rows,
        explainer=delivery.explainer,
        offers=delivery.offers,
        clock=delivery.clock,
        metrics=delivery.metrics,
        process="delivery",
        window_count=8,
        trace=None,
    )
    descriptors = (
        delivery_service_pb2.DESCRIPTOR.services_by_name["DeliveryService"],
        dead_letter_service_pb2.DESCRIPTOR.services_by_name["DeadLetterService"],
    )
    server = Server(
        name="delivery",
        socket=run_dir / "delivery.sock",
        access=read_access(descriptors, access_pb2.callers),
        direct=True,
        trust_domain="heliograph.local",
        tokens=None,
        telemetry=delivery.telemetry,
        clock=SystemClock(),
    )
    server.add(delivery_service_pb2_grpc.add_DeliveryServiceServicer_to_server, service, descriptors[0])
    add_letters = dead_letter_service_pb2_grpc.add_DeadLetterServiceServicer_to_server
    server.add(add_letters, delivery.letters, descriptors[1])
    await server.start()
    try:
        yield
    finally:
        await server.stop(0.0)

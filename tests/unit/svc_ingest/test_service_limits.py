"""Quotas, overload and deadlines at the servicer, on real embedded stores: who is refused leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from heliograph.ingest.v1 import ingest_service_pb2
from mesh.clock import ManualClock
from mesh.errors import DeadlineExceeded, Failure, InvalidArgument, ResourceExhausted
from svc_ingest.overload import Limits, Signals
from svc_ingest.ports import Claim, Known
from svc_ingest.quota import Quota, Quotas
from svc_ingest.store.sqlite import SqliteRequestLog
from tests.support.publishing import NOW, Ingest, open_lanes, publish_request, request_id


class SlowLog(SqliteRequestLog):
    """The embedded log; its answer takes as long as the test says, by the manual clock."""

    def __init__(self, url: str, data_dir: Path, clock: ManualClock) -> None:
        super().__init__(url, data_dir)
        self._clock = clock
        self.pause = 0.0
        self.begun = 0

    async def begin(self, claims: Sequence[Claim], now: float) -> Sequence[Known]:
        self.begun += len(claims)
        self._clock.advance(self.pause)
        return await super().begin(claims, now)


class World:
    """An ingest and its log."""

    def __init__(self, ingest: Ingest, log: SlowLog) -> None:
        self.ingest = ingest
        self.log = log

    async def count(self, lane: str = "normal") -> int:
        """How many records a lane has."""
        return len(await self.ingest.lane(lane))

    def overload(self) -> None:
        """Makes the process refuse bulk and normal."""
        for _ in range(4):
            self.ingest.gate.take(Signals(loop_lag=0.3))
            self.ingest.clock.advance(0.2)

    def recover(self) -> None:
        """Lets three quiet seconds pass."""
        for _ in range(15):
            self.ingest.gate.take(Signals())
            self.ingest.clock.advance(0.2)


Make = Callable[..., World]


@pytest.fixture
async def make(run_dir: Path) -> AsyncIterator[Make]:
    """Makes an ingest with the quotas and limits of a test; its stores are shared."""
    clock = ManualClock(NOW)
    async with AsyncExitStack() as stack:
        log = SlowLog("sqlite:///requests.db", run_dir, clock)
        await log.open()
        stack.push_async_callback(log.close)
        lanes = await stack.enter_async_context(open_lanes(run_dir, clock))

        def world(**arguments: Any) -> World:
            return World(Ingest(log=log, lanes=lanes, clock=clock, folder=run_dir, **arguments), log)

        yield world


def producer(events: float, burst: float | None = None) -> Quotas:
    """A quota for acme/demo."""
    return Quotas({("acme", "demo"): Quota(events, burst)})


def verdicts(results: Sequence[ingest_service_pb2.PublishResult]) -> list[str]:
    """Each result in a word."""
    return [result.refused.reason or ("replayed" if result.accepted.replayed else "ok") for result in results]


async def test_a_batch_over_the_quota_is_accepted_in_part(make: Make) -> None:
    """Item by item and in order; the refused know when to come back, and then they are accepted."""
    world = make(quotas=producer(2.0, burst=3.0))
    requests = [publish_request(str(number), id_=request_id(number)) for number in range(5)]
    results = await world.ingest.batch(*requests)
    assert verdicts(results) == ["ok"] * 3 + ["QUOTA_EXCEEDED"] * 2
    assert [result.refused.code for result in results[3:]] == [8, 8]
    assert 0.5 <= results[3].refused.retry_delay.ToTimedelta().total_seconds() <= 0.502
    assert await world.count() == 3
    world.ingest.clock.advance(1.01)
    # No lease is left of the refusal, and the accepted ones cost nothing again.
    assert verdicts(await world.ingest.batch(*requests)) == ["replayed"] * 3 + ["ok"] * 2
    assert await world.count() == 5
    assert world.ingest.metric("refused_events_total", reason="QUOTA_EXCEEDED") == 2


async def test_a_repeat_is_never_charged_nor_refused(make: Make) -> None:
    """With the quota used up a known request still gets its first answer."""
    world = make(quotas=producer(0.01, burst=1.0))
    request = publish_request(id_=request_id())
    first = await world.ingest.publish(request)
    for _ in range(20):
        assert (await world.ingest.publish(request)).event_id == first.event_id
    with pytest.raises(ResourceExhausted, match="used up"):
        await world.ingest.publish(publish_request(id_=request_id(2)))


async def test_what_is_not_accepted_is_not_charged(make: Make) -> None:
    """Judged only, wrong, or refused: one event still fits."""
    world = make(quotas=producer(0.01, burst=1.0))
    results = await world.ingest.batch(
        *[publish_request(validate_only=True)] * 3,
        publish_request(""),
        publish_request(id_=request_id()),
        publish_request(id_=request_id()),
    )
    assert verdicts(results) == ["ok", "ok", "ok", "FIELD_INVALID", "ok", "replayed"]


async def test_a_quota_of_zero_is_said_clearly(make: Make) -> None:
    """No delay: it does not help to wait."""
    world = make(quotas=producer(0.0))
    with pytest.raises(ResourceExhausted, match="0 events a second: nothing may be published") as failure:
        await world.ingest.publish(publish_request(id_=request_id()))
    assert failure.value.retry_delay is None
    # Neighbours do not notice.
    assert (await world.ingest.publish(publish_request(), "billing")).event_id
    assert (await world.ingest.publish(publish_request(), "demo", "globex")).event_id


async def test_a_tenants_producers_share_its_quota(make: Make) -> None:
    """One may use up what the other needs; another tenant has its own."""
    world = make(quotas=Quotas({}, {"acme": Quota(1.0, burst=2.0)}))
    await world.ingest.publish(publish_request("1"))
    await world.ingest.publish(publish_request("2"), "billing")
    with pytest.raises(ResourceExhausted, match="tenant's quota of 1 events a second"):
        await world.ingest.publish(publish_request("3"))
    await world.ingest.publish(publish_request("4"), "demo", "globex")


async def test_named_recipients_are_charged(make: Make) -> None:
    """By their number; topics are not counted here."""
    quotas = Quotas({("acme", "demo"): Quota(recipients_per_second=1.0, recipients_burst=3.0)})
    world = make(quotas=quotas)
    results = await world.ingest.batch(
        publish_request("a", to=["r1", "r2"]),
        publish_request("b", to=["r1", "r2"]),
        publish_request("c", to=["r1"]),
        publish_request("d", to=(), topics=["builds"]),
        publish_request("e", to=["r1", "r2", "r3", "r4"]),
    )
    assert verdicts(results) == ["ok", "QUOTA_EXCEEDED", "ok", "ok", "QUOTA_EXCEEDED"]
    assert [results[place].refused.HasField("retry_delay") for place in (1, 4)] == [True, False]


async def test_under_overload_a_batch_is_let_in_by_priority(make: Make) -> None:
    """Nothing is done for what is refused: no judgement, no look-up, no record; later it is accepted."""
    world = make()
    world.overload()
    requests = [
        publish_request(category=category, id_=request_id(number))
        for number, category in enumerate(("newsletter", "security", "general"))
    ]
    wrong = publish_request("", category="general")
    results = await world.ingest.batch(*requests, wrong)
    assert verdicts(results) == ["OVERLOADED", "ok", "OVERLOADED", "OVERLOADED"]
    assert world.log.begun == 1
    assert [await world.count(lane) for lane in ("high", "normal", "bulk")] == [1, 0, 0]
    assert world.ingest.metric("refused_events_total", reason="OVERLOADED") == 3
    world.recover()
    assert verdicts(await world.ingest.batch(*requests, wrong)) == ["ok", "replayed", "ok", "FIELD_INVALID"]


async def test_a_single_publish_is_refused_with_its_delay(make: Make) -> None:
    """RESOURCE_EXHAUSTED, OVERLOADED, and a time; an unregistered producer learns nothing of it."""
    world = make()
    world.overload()
    with pytest.raises(ResourceExhausted) as failure:
        await world.ingest.publish(publish_request())
    assert failure.value.reason == "OVERLOADED"
    assert failure.value.retry_delay is not None
    with pytest.raises(Failure, match="not registered"):
        await world.ingest.publish(publish_request(), "nobody")


async def test_what_is_in_flight_is_let_go_however_a_call_ends(make: Make) -> None:
    """Answered, refused or too much for the process."""
    world = make(limits=Limits(in_flight=4))
    results = await world.ingest.batch(*[publish_request()] * 6)
    assert verdicts(results) == ["ok"] * 4 + ["OVERLOADED"] * 2
    with pytest.raises(InvalidArgument):
        await world.ingest.publish(publish_request(""))
    assert world.ingest.gate.in_flight == 0
    assert verdicts(await world.ingest.batch(*[publish_request()] * 4)) == ["ok"] * 4


async def test_a_deadline_that_has_passed_costs_no_work(make: Make) -> None:
    """Refused before anything is asked."""
    world = make()
    with pytest.raises(DeadlineExceeded, match="has passed"):
        await world.ingest.publish(publish_request(id_=request_id()), timeout=0.0)
    assert (world.log.begun, await world.count()) == (0, 0)


async def test_a_hopeless_deadline_costs_no_work(make: Make) -> None:
    """Shorter than an append takes at present."""
    world = make()
    for _ in range(5):
        with world.ingest.gate.appending():
            world.ingest.clock.advance(0.04)
    world.ingest.gate.take(Signals())
    with pytest.raises(DeadlineExceeded, match="an append takes 40 ms"):
        await world.ingest.publish(publish_request(id_=request_id()), timeout=0.03)
    assert (world.log.begun, await world.count()) == (0, 0)
    assert (await world.ingest.publish(publish_request(id_=request_id()), timeout=0.05)).event_id


async def test_a_deadline_that_passes_meanwhile_stops_the_append(make: Make) -> None:
    """The request log took too long: no record, no charge, no lease; and it is counted."""
    world = make(quotas=producer(0.01, burst=1.0))
    request = publish_request(id_=request_id())
    world.log.pause = 1.0
    with pytest.raises(DeadlineExceeded):
        await world.ingest.publish(request, timeout=0.5)
    assert (world.log.begun, await world.count()) == (1, 0)
    world.log.pause = 0.0
    assert not (await world.ingest.publish(request, timeout=0.5)).replayed
    assert world.ingest.metric("late_events_total") == 1


async def test_a_deadline_that_passes_while_a_record_is_built_stops_the_append(make: Make) -> None:
    """Building takes time as well; whoever gave up the call has no event that nobody knows of."""
    clocks: list[ManualClock] = []

    def draw(count: int) -> bytes:
        for clock in clocks:
            clock.advance(0.6)
        return bytes(count)

    world = make(draw=draw)
    clocks.append(world.ingest.clock)
    with pytest.raises(DeadlineExceeded, match="has passed"):
        # Without a request id there is one to be drawn, after the holder's.
        await world.ingest.publish(publish_request(), timeout=1.0)
    assert await world.count() == 0
    assert world.ingest.metric("late_events_total") == 1

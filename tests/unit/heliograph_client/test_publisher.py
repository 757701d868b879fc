"""The publisher against a real gRPC server: what is sent, what is repeated, what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from heliograph_client import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    Failure,
    InvalidArgument,
    Publisher,
    Receipt,
    ResourceExhausted,
    RetryBudget,
    RetryPolicy,
    Tls,
    Unavailable,
    build_event,
)
from mesh import ids
from mesh.errors import Violation
from tests.support.scripted_ingest import ACCEPT_S, ScriptedIngest, scripted_ingest
from tests.support.stepped_clock import SteppedClock
from tests.support.wait import until


@pytest.fixture
async def ingest(run_dir: Path) -> AsyncIterator[ScriptedIngest]:
    """An ingest that listens."""
    async with scripted_ingest(run_dir) as servicer:
        yield servicer


def _open(
    ingest: ScriptedIngest,
    clock: SteppedClock | None = None,
    *,
    policy: RetryPolicy | None = None,
    budget: RetryBudget | None = None,
    token: str | Callable[[], str] | None = None,
    queue_limit: int = 10_000,
    close_limit: float = 5.0,
) -> Publisher:
    return Publisher(
        ingest.target,
        token=token,
        metadata=(("x-heliograph-caller", "producer/acme/demo"),),
        policy=policy,
        budget=budget,
        queue_limit=queue_limit,
        close_limit=close_limit,
        clock=clock or SteppedClock(),
        random=lambda: 0.5,
        entropy=lambda count: b"\x01" * count,
    )


def _lane_gone(delay: float | None = None) -> Unavailable:
    return Unavailable("the lane takes nothing", reason="LANE_UNAVAILABLE", retry_delay=delay)


async def test_publish_returns_the_receipt(ingest: ScriptedIngest) -> None:
    """The keyword form becomes an event, the answer a receipt; the request id carries the time."""
    async with _open(ingest) as publisher:
        receipt = await publisher.publish(category="general", to="alice", title="Hi", priority="high", ttl=60)
    request = ingest.singles[0]
    assert receipt == Receipt(
        event_id=request.request_id,
        accept_time=datetime.fromtimestamp(ACCEPT_S, UTC),
        replayed=False,
        request_id=request.request_id,
    )
    assert ids.id_time_ms(ids.from_text(request.request_id)) == 1_700_000_000_000
    assert list(request.event.audience.recipient_ids) == ["alice"]
    assert request.event.ttl.seconds == 60
    assert ingest.metadata[0]["x-heliograph-caller"] == "producer/acme/demo"


async def test_topics_and_exclusions_are_part_of_the_event(ingest: ScriptedIngest) -> None:
    """An event may be for the subscribers of topics alone; one topic needs no list."""
    async with _open(ingest) as publisher:
        await publisher.publish(category="general", topics="team/a", title="Hi")
        await publisher.publish(category="general", to="alice", topics=["a", "b"], excluded=["bob"], title="Hi")
    audiences = [request.event.audience for request in ingest.singles]
    assert [list(audience.recipient_ids) for audience in audiences] == [[], ["alice"]]
    assert [list(audience.topic_ids) for audience in audiences] == [["team/a"], ["a", "b"]]
    assert [list(audience.excluded_recipient_ids) for audience in audiences] == [[], ["bob"]]


async def test_a_failed_try_is_repeated_unchanged(ingest: ScriptedIngest) -> None:
    """Every try has the same id and the same bytes, whatever happens to the event meanwhile."""
    clock = SteppedClock()
    event = build_event(category="general", to=["alice"], title="Before")
    ingest.failures = [_lane_gone(2.0), None]
    async with _open(ingest, clock) as publisher:
        publishing = asyncio.create_task(publisher.publish(event))
        await until(lambda: len(clock.waiting) == 1)
        event.content.title = "After"
        # What the server names is waited for, and the jitter on top: half of 0.1 s.
        assert clock.waiting == [pytest.approx(2.05)]
        clock.advance(2.05)
        await publishing
    first, second = ingest.singles
    assert first == second
    assert first.event.content.title == "Before"
    assert (publisher.stats.calls, publisher.stats.retries, publisher.stats.accepted) == (2, 1, 1)


@pytest.mark.parametrize(
    "failure",
    [
        InvalidArgument("no", reason="FIELD_INVALID", violations=[Violation("event.category", "is missing")]),
        AlreadyExists("no", reason="REQUEST_ID_REUSED"),
        ResourceExhausted("no", reason="OVERLOADED"),
    ],
)
async def test_what_repeating_does_not_cure_is_raised_at_once(ingest: ScriptedIngest, failure: Failure) -> None:
    """The failure arrives with its category, its reason and every violation, after one try."""
    ingest.failures = [failure]
    async with _open(ingest) as publisher:
        with pytest.raises(type(failure)) as raised:
            await publisher.publish(category="general", to="alice", title="Hi")
    assert (raised.value.reason, raised.value.violations) == (failure.reason, failure.violations)
    assert len(ingest.singles) == 1


async def test_tries_are_bounded(ingest: ScriptedIngest) -> None:
    """After the last try its failure is raised; the waits in between double under full jitter."""
    clock = SteppedClock()
    ingest.failures = [_lane_gone() for _ in range(4)]
    policy = RetryPolicy(tries=3, base=1.0, cap=60.0)
    async with _open(ingest, clock, policy=policy) as publisher:
        publishing = asyncio.create_task(publisher.publish(category="general", to="alice", title="Hi"))
        for wait in (0.5, 1.0):
            await until(lambda: len(clock.waiting) == 1)
            assert clock.waiting == [pytest.approx(wait)]
            clock.advance(wait)
        with pytest.raises(Unavailable, match="LANE_UNAVAILABLE"):
            await publishing
    assert len(ingest.singles) == 3


async def test_all_tries_together_have_a_limit(ingest: ScriptedIngest) -> None:
    """A wait that would end after the limit is not begun."""
    ingest.failures = [_lane_gone(40.0)]
    async with _open(ingest, policy=RetryPolicy(time_limit=30.0)) as publisher:
        with pytest.raises(Unavailable):
            await publisher.publish(category="general", to="alice", title="Hi")
    assert len(ingest.singles) == 1


async def test_every_try_has_a_deadline(ingest: ScriptedIngest) -> None:
    """A server that does not answer costs one try's time, and the event is tried again."""
    ingest.gate.clear()
    async with _open(ingest, policy=RetryPolicy(tries=1, attempt_timeout=0.05)) as publisher:
        with pytest.raises(DeadlineExceeded):
            await publisher.publish(category="general", to="alice", title="Hi")
    assert ingest.deadlines[0] < 1.0


async def test_the_budget_stops_retries(ingest: ScriptedIngest) -> None:
    """When the budget is used up the failure is raised without another call."""
    ingest.failures = [_lane_gone()]
    budget = RetryBudget(ratio=0.0, per_second=0.0, limit=0.5)
    async with _open(ingest, budget=budget) as publisher:
        with pytest.raises(Unavailable):
            await publisher.publish(category="general", to="alice", title="Hi")
    assert publisher.stats.retries_denied == 1
    assert len(ingest.singles) == 1


@pytest.mark.parametrize(
    ("first", "is_open"),
    [
        (Unavailable("the connection was lost", reason=""), True),
        (DeadlineExceeded("no answer", reason=""), True),
        (Unavailable("a twin", reason="REQUEST_PENDING", retry_delay=0.1), True),
        (Unavailable("nobody knows", reason="LANE_UNAVAILABLE", metadata={"appended": "unknown"}), True),
        (Unavailable("nothing", reason="LANE_UNAVAILABLE", metadata={"appended": "no"}), False),
        (ResourceExhausted("too many", reason="OVERLOADED", retry_delay=0.1), False),
    ],
)
async def test_a_refusal_after_an_open_try_says_so(ingest: ScriptedIngest, first: Failure, is_open: bool) -> None:
    """The event may be accepted although the last try was refused, alone or in a batch; its producer is told."""
    clock = SteppedClock()

    def refusal() -> InvalidArgument:
        return InvalidArgument("too late", reason="EVENT_TIME_INVALID", violations=[Violation("event", "is old")])

    async with _open(ingest, clock) as publisher:
        ingest.failures = [first, refusal()]
        publishing = asyncio.create_task(publisher.publish(category="general", to="alice", title="Hi"))
        await until(lambda: len(clock.waiting) == 1)
        clock.advance(1.0)
        with pytest.raises(InvalidArgument) as raised:
            await publishing
        ingest.refusals = {"Hi": [first, refusal()]}
        prepared = publisher.prepare(category="general", to="alice", title="Hi")
        batch = asyncio.create_task(publisher.publish_batch([prepared, build_event(category="c", to="a", title="t")]))
        await until(lambda: len(clock.waiting) == 1)
        clock.advance(1.0)
        in_batch, other = await batch
    assert isinstance(other, Receipt)
    assert isinstance(in_batch, InvalidArgument)
    for failure, request_id in ((raised.value, ingest.singles[0].request_id), (in_batch, prepared.request_id)):
        assert failure.outcome_unknown is is_open
        assert (failure.reason, failure.violations) == ("EVENT_TIME_INVALID", refusal().violations)
        assert (f"unchanged under request id {request_id} is safe" in failure.message) is is_open


async def test_a_last_try_without_an_answer_is_open(ingest: ScriptedIngest) -> None:
    """So is what follows from it for the producer: the same id again."""
    ingest.gate.clear()
    async with _open(ingest, policy=RetryPolicy(tries=1, attempt_timeout=0.05)) as publisher:
        with pytest.raises(DeadlineExceeded, match="is safe") as raised:
            await publisher.publish(category="general", to="alice", title="Hi")
    assert raised.value.outcome_unknown


async def test_the_token_is_asked_for_before_each_try(ingest: ScriptedIngest) -> None:
    """A token that was renewed between two tries is used by the second."""
    clock = SteppedClock()
    tokens = iter(["first", "second"])
    ingest.failures = [_lane_gone()]
    async with _open(ingest, clock, token=lambda: next(tokens)) as publisher:
        publishing = asyncio.create_task(publisher.publish(category="general", to="alice", title="Hi"))
        await until(lambda: len(clock.waiting) == 1)
        clock.advance(1.0)
        await publishing
    assert [headers["authorization"] for headers in ingest.metadata] == ["Bearer first", "Bearer second"]


async def test_a_prepared_event_can_be_published_again(ingest: ScriptedIngest) -> None:
    """What was frozen once is sent byte for byte, also by another publisher."""
    async with _open(ingest) as publisher:
        prepared = publisher.prepare(category="general", to="alice", title="Hi")
        await publisher.publish(prepared)
    async with _open(ingest) as publisher:
        await publisher.publish_batch([prepared])
    assert ingest.singles[0] == ingest.batches[0].requests[0]
    assert ingest.singles[0].SerializeToString(deterministic=True) == prepared.request


async def test_a_batch_has_a_verdict_for_each_event(ingest: ScriptedIngest) -> None:
    """Only those that another try may help are sent again; the others keep their verdict."""
    clock = SteppedClock()
    ingest.refusals = {
        "bad": [InvalidArgument("no", reason="FIELD_INVALID")],
        "twin": [Unavailable("a twin", reason="REQUEST_PENDING", retry_delay=1.0)],
    }
    events = [build_event(category="general", to="alice", title=title) for title in ("good", "bad", "twin")]
    async with _open(ingest, clock) as publisher:
        publishing = asyncio.create_task(publisher.publish_batch(events))
        await until(lambda: len(clock.waiting) == 1)
        clock.advance(2.0)
        good, bad, twin = await publishing
    assert isinstance(good, Receipt)
    assert isinstance(bad, InvalidArgument)
    assert isinstance(twin, Receipt)
    assert [len(batch.requests) for batch in ingest.batches] == [3, 1]
    assert ingest.batches[1].requests[0] == ingest.batches[0].requests[2]
    assert (publisher.stats.accepted, publisher.stats.failed) == (2, 1)


async def test_a_batch_that_fails_as_a_whole_fails_each_event(ingest: ScriptedIngest) -> None:
    """The list of verdicts is as long as that of events, whatever happened."""
    ingest.failures = [InvalidArgument("no", reason="FIELD_INVALID")]
    async with _open(ingest) as publisher:
        verdicts = await publisher.publish_batch([build_event(category="c", to="a", title="t") for _ in range(3)])
    assert [type(verdict) for verdict in verdicts] == [InvalidArgument] * 3


async def test_what_arrives_while_a_call_is_in_flight_leaves_together(ingest: ScriptedIngest) -> None:
    """The first event leaves at once, the others in the next batches of at most 100, in their order."""
    ingest.gate.clear()
    async with _open(ingest) as publisher:
        waiting = [publisher.enqueue(category="general", to="alice", title="0")]
        await until(lambda: len(ingest.batches) == 1)
        waiting += [publisher.enqueue(category="general", to="alice", title=str(number)) for number in range(1, 151)]
        ingest.gate.set()
        receipts = await asyncio.gather(*waiting)
    assert [len(batch.requests) for batch in ingest.batches] == [1, 100, 50]
    titles = [item.event.content.title for batch in ingest.batches for item in batch.requests]
    assert titles == [str(number) for number in range(151)]
    assert all(isinstance(receipt, Receipt) for receipt in receipts)


async def test_a_full_queue_says_no(ingest: ScriptedIngest) -> None:
    """What finds no room is refused aloud and counted; what waits is published."""
    ingest.gate.clear()
    async with _open(ingest, queue_limit=2) as publisher:
        first = publisher.enqueue(category="general", to="alice", title="0")
        await until(lambda: len(ingest.batches) == 1)
        others = [publisher.enqueue(category="general", to="alice", title="1") for _ in range(2)]
        with pytest.raises(ResourceExhausted) as raised:
            publisher.enqueue(category="general", to="alice", title="2")
        ingest.gate.set()
        await asyncio.gather(first, *others)
    assert raised.value.reason == "OVERLOADED"
    assert publisher.stats.queue_refusals == 1


async def test_a_queued_event_that_is_refused_fails_alone(ingest: ScriptedIngest) -> None:
    """Its future raises what `publish` would raise; its neighbours are accepted."""
    ingest.refusals = {"bad": [InvalidArgument("no", reason="FIELD_INVALID")]}
    async with _open(ingest) as publisher:
        bad = publisher.enqueue(category="general", to="alice", title="bad")
        good = publisher.enqueue(category="general", to="alice", title="good")
        assert isinstance(await good, Receipt)
        with pytest.raises(InvalidArgument):
            await bad


async def test_leaving_publishes_what_is_queued(ingest: ScriptedIngest) -> None:
    """Who leaves the block has every verdict."""
    async with _open(ingest) as publisher:
        waiting = [publisher.enqueue(category="general", to="alice", title=str(number)) for number in range(250)]
    assert all(future.done() and future.exception() is None for future in waiting)
    with pytest.raises(FailedPrecondition):
        publisher.enqueue(category="general", to="alice", title="late")


async def test_leaving_does_not_wait_for_ever(ingest: ScriptedIngest) -> None:
    """What could not be published in time fails, so that its producer may repeat it."""
    ingest.gate.clear()
    async with _open(ingest, close_limit=0.05) as publisher:
        waiting = [publisher.enqueue(category="general", to="alice", title="0")]
        await until(lambda: len(ingest.batches) == 1)
        waiting.append(publisher.enqueue(category="general", to="alice", title="1"))
    failures = [future.exception() for future in waiting]
    assert [type(failure) for failure in failures] == [Unavailable, Unavailable]
    # The first one was on its way, the second never left.
    assert [failure.outcome_unknown for failure in failures if isinstance(failure, Failure)] == [True, False]


async def test_a_server_that_is_not_there_is_tried_again(run_dir: Path) -> None:
    """The event is accepted as soon as somebody listens."""
    clock = SteppedClock()
    async with Publisher(f"unix:{run_dir / 'ingest.sock'}", clock=clock, random=lambda: 0.5) as publisher:
        publishing = asyncio.create_task(publisher.publish(category="general", to="alice", title="Hi"))
        await until(lambda: len(clock.waiting) == 1)
        async with scripted_ingest(run_dir) as ingest:

            def turn() -> bool:
                clock.advance(0.5)
                return publishing.done()

            await until(turn)
            assert (await publishing).request_id == ingest.singles[0].request_id


async def test_an_event_and_keywords_exclude_each_other(ingest: ScriptedIngest) -> None:
    """Nothing is sent when it is not clear what."""
    async with _open(ingest) as publisher:
        with pytest.raises(InvalidArgument):
            await publisher.publish(build_event(category="c", to="a", title="t"), title="other")
        with pytest.raises(InvalidArgument, match="request_id"):
            await publisher.publish(category="c", to="a", title="t", request_id="1")
    assert ingest.singles == []


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The file's name stands in the failure."""
    with pytest.raises(InvalidArgument, match=r"absent\.pem"):
        async with Publisher("127.0.0.1:1", tls=Tls(ca_file=tmp_path / "absent.pem")):
            pass
    with pytest.raises(InvalidArgument, match="belong together"):
        Tls(key_file=tmp_path / "key.pem").context()

"""Publish and BatchPublish on real embedded stores: every effect on the lane and the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mesh import ids
from mesh.clock import ManualClock
from mesh.errors import AlreadyExists, Failure, InvalidArgument, PermissionDenied, Unavailable
from mesh.lanes import Backlog, LaneUnavailable, LaneWriter, Record
from mesh.times import micros_of
from svc_ingest import limits
from svc_ingest.ports import Answer, Claim, Known, RequestLog
from svc_ingest.service import LOG_CALLS
from svc_ingest.store.sqlite import SqliteRequestLog
from tests.support.publishing import NOW, Ingest, open_lanes, publish_request, random_id, request_id
from tests.support.wait import until


class FaultyLog(SqliteRequestLog):
    """The embedded log on a machine where it fails or stands still when told to."""

    failing: frozenset[str] = frozenset()
    stuck: frozenset[str] = frozenset()

    def __init__(self, url: str, data_dir: Path) -> None:
        super().__init__(url, data_dir)
        self.calls: list[tuple[str, int]] = []
        self.standing = asyncio.Event()
        self.going_on = asyncio.Event()

    async def begin(self, claims: Sequence[Claim], now: float) -> Sequence[Known]:
        await self._meet("begin", len(claims))
        return await super().begin(claims, now)

    async def finish(self, answers: Sequence[Answer]) -> None:
        await self._meet("finish", len(answers))
        await super().finish(answers)

    async def release(self, claims: Sequence[Claim]) -> None:
        await self._meet("release", len(claims))
        await super().release(claims)

    async def _meet(self, step: str, count: int) -> None:
        self.calls.append((step, count))
        if step in self.stuck:
            self.standing.set()
            await self.going_on.wait()
        if step in self.failing:
            raise Unavailable("the log is down", reason="STORE_UNAVAILABLE")


class FaultyLane:
    """A lane whose next append is refused, or done and then not confirmed."""

    def __init__(self, lane: LaneWriter) -> None:
        self._lane = lane
        self.appends: list[int] = []
        self.fault = ""

    async def append(self, records: Sequence[Record]) -> None:
        self.appends.append(len(records))
        fault, self.fault = self.fault, ""
        if fault == "refused":
            raise LaneUnavailable("/secret/place: disk full")
        await self._lane.append(records)
        if fault == "unknown":
            raise LaneUnavailable("/secret/place: the commit failed", unknown=True)

    async def open(self) -> None:
        await self._lane.open()

    async def backlog(self) -> Backlog:
        return await self._lane.backlog()

    async def trim(self, before_time: float) -> int:
        return await self._lane.trim(before_time)

    async def close(self) -> None:
        await self._lane.close()


class World:
    """An ingest, its log, and its lanes."""

    def __init__(self, ingest: Ingest, log: FaultyLog, lanes: dict[str, FaultyLane]) -> None:
        self.ingest = ingest
        self.log = log
        self.lanes = lanes

    async def texts(self, name: str = "normal") -> list[str]:
        """The event ids in a lane, in order."""
        return [record.envelope.event_id for record in await self.ingest.lane(name)]


@asynccontextmanager
async def world_in(folder: Path, clock: ManualClock) -> AsyncIterator[World]:
    """An ingest with its stores in this folder."""
    log = FaultyLog("sqlite:///requests.db", folder)
    await log.open()
    async with open_lanes(folder, clock) as lanes:
        faulty = {name: FaultyLane(lane) for name, lane in lanes.items()}
        port: RequestLog = log
        yield World(Ingest(log=port, lanes={**faulty}, clock=clock, folder=folder), log, faulty)
    await log.close()


@pytest.fixture
async def world(run_dir: Path) -> AsyncIterator[World]:
    """An ingest with empty stores."""
    async with world_in(run_dir, ManualClock(NOW)) as made:
        yield made


async def refusal_of(world: World, *args: object, **kwargs: object) -> Failure:
    """The failure of a publish that must be refused."""
    with pytest.raises(Failure) as failure:
        await world.ingest.publish(*args, **kwargs)  # type: ignore[arg-type]  # passed through
    return failure.value


async def test_an_accepted_event_is_in_its_lane(world: World) -> None:
    """OK means durable: the record is there, under the answered id and time."""
    answer = await world.ingest.publish(publish_request("Hello", id_=request_id(time_s=NOW - 3)))
    (record,) = await world.ingest.lane()
    assert record.envelope.event_id == record.envelope.notification_id == answer.event_id
    assert record.envelope.accept_time == answer.accept_time
    assert (record.envelope.tenant_id, record.envelope.producer_id) == ("acme", "demo")
    assert ids.id_time_ms(ids.from_text(answer.event_id)) == (NOW - 3) * 1_000
    assert micros_of(answer.accept_time) == NOW * 1_000_000
    assert not answer.replayed


async def test_each_priority_has_its_lane(world: World) -> None:
    """The category's default decides where a record goes."""
    for category in ("security", "general", "newsletter"):
        await world.ingest.publish(publish_request(category, category=category))
    for lane in ("high", "normal", "bulk"):
        assert len(await world.ingest.lane(lane)) == 1


async def test_a_repeat_gets_the_first_answer(world: World) -> None:
    """Hours later, and nothing is appended again."""
    request = publish_request(id_=request_id())
    first = await world.ingest.publish(request)
    world.ingest.clock.advance(20 * 3_600)
    again = await world.ingest.publish(request)
    assert (again.event_id, again.accept_time, again.replayed) == (first.event_id, first.accept_time, True)
    assert await world.texts() == [first.event_id]
    assert world.ingest.metric("replayed_events_total") == 1


async def test_a_repeat_after_the_expiry_gets_the_first_answer(world: World) -> None:
    """A producer whose answer was lost must not read "expired" for an event that was delivered."""
    request = publish_request(id_=request_id())
    request.event.ttl.seconds = 5
    first = await world.ingest.publish(request)
    world.ingest.clock.advance(60)
    assert (await world.ingest.publish(request)).event_id == first.event_id
    request.request_id = request_id(2)
    assert (await refusal_of(world, request)).reason == "EVENT_EXPIRED"
    # A refusal leaves no lease behind.
    request.event.ttl.seconds = 500
    assert not (await world.ingest.publish(request)).replayed


async def test_other_content_under_an_accepted_id_is_refused(world: World) -> None:
    """Nothing is appended, and the first answer stays."""
    first = await world.ingest.publish(publish_request("a", id_=request_id()))
    failure = await refusal_of(world, publish_request("b", id_=request_id()))
    assert isinstance(failure, AlreadyExists)
    assert await world.texts() == [first.event_id]


async def test_producers_do_not_share_request_ids(world: World) -> None:
    """The same request of two producers is two events."""
    request = publish_request(id_=request_id())
    answers = [
        await world.ingest.publish(request),
        await world.ingest.publish(request, "billing"),
        await world.ingest.publish(request, "demo", "globex"),
    ]
    assert len({answer.event_id for answer in answers}) == 3
    assert not any(answer.replayed for answer in answers)


async def test_without_a_request_id_each_call_is_a_new_event(world: World) -> None:
    """Also with the same time; and the log is not asked."""
    request = publish_request(event_time=NOW - 1)
    answers = [await world.ingest.publish(request) for _ in range(3)]
    assert len({answer.event_id for answer in answers}) == 3
    assert world.log.calls == []


async def test_parallel_twins_are_one_event(world: World) -> None:
    """Fifty hedged calls: one id, and whoever is not answered with it may try again."""
    request = publish_request(id_=request_id())
    results = await asyncio.gather(*(world.ingest.publish(request) for _ in range(50)), return_exceptions=True)
    texts = {result.event_id for result in results if not isinstance(result, BaseException)}
    failures = [result for result in results if isinstance(result, BaseException)]
    assert await world.texts() == list(texts)
    assert {failure.reason for failure in failures if isinstance(failure, Failure)} <= {"REQUEST_PENDING"}
    assert (await world.ingest.publish(request)).event_id in texts


async def test_an_append_that_surely_failed_makes_room_at_once(world: World) -> None:
    """UNAVAILABLE, without a word about our files; the repeat does not wait for a lease."""
    request = publish_request(id_=random_id())
    world.lanes["normal"].fault = "refused"
    failure = await refusal_of(world, request)
    assert isinstance(failure, Unavailable)
    assert (failure.reason, dict(failure.metadata)) == ("LANE_UNAVAILABLE", {"lane": "normal", "appended": "no"})
    assert "secret" not in failure.message
    assert await world.texts() == []
    assert not (await world.ingest.publish(request)).replayed


async def test_after_an_unknown_append_the_lease_runs_out_first(world: World) -> None:
    """The record is there and nobody knows: a repeat waits, then appends the same id once more."""
    request = publish_request(id_=random_id())
    world.lanes["normal"].fault = "unknown"
    failure = await refusal_of(world, request)
    assert (failure.reason, failure.metadata["appended"]) == ("LANE_UNAVAILABLE", "unknown")
    world.ingest.clock.advance(4)
    pending = await refusal_of(world, request)
    assert (pending.reason, pending.retry_delay) == ("REQUEST_PENDING", limits.REQUEST_LEASE_S - 4)
    world.ingest.clock.advance(6)
    answer = await world.ingest.publish(request)
    assert await world.texts() == [answer.event_id] * 2


async def test_the_heir_of_a_dead_holder_derives_the_same_id(world: World, run_dir: Path) -> None:
    """The first process died between the lane and the log; its clock's time was kept with the lease."""
    request = publish_request(id_=random_id())
    request.event.ttl.seconds = 3_600
    world.log.failing = frozenset({"finish"})
    first = await world.ingest.publish(request)
    world.ingest.clock.advance(limits.REQUEST_LEASE_S)
    world.log.failing = frozenset()
    again = await world.ingest.publish(request)
    one, two = await world.ingest.lane()
    assert first.event_id == again.event_id
    assert one.envelope.notification == two.envelope.notification
    assert (await world.ingest.publish(request)).replayed


@pytest.mark.parametrize("step", ["begin", "finish"])
async def test_a_log_that_fails_stops_nobody(world: World, step: str) -> None:
    """The answer is OK all the same, and the failure is counted."""
    world.log.failing = frozenset({step})
    answer = await world.ingest.publish(publish_request(id_=request_id()))
    assert await world.texts() == [answer.event_id]
    assert world.ingest.metric("skipped_requests_total", step=step) == 1


@pytest.mark.parametrize("step", ["begin", "finish"])
async def test_a_log_that_stands_still_stops_nobody(world: World, step: str) -> None:
    """After the limit the call goes on; what the log was told arrives when it moves again."""
    world.log.stuck = frozenset({step})
    request = publish_request(id_=request_id())
    answer = await world.ingest.publish(request)
    assert await world.texts() == [answer.event_id]
    assert world.ingest.metric("skipped_requests_total", step=step) == 1
    world.log.stuck = frozenset()
    world.log.going_on.set()
    await world.ingest.settle()
    again = await world.ingest.publish(request)
    assert (again.event_id, again.replayed) == (answer.event_id, True)


@pytest.mark.parametrize("step", ["begin", "finish"])
async def test_a_log_that_stands_still_is_waited_for_so_long(
    world: World, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the limit is reached, by the loop's own clock, and not a moment longer."""
    loop = asyncio.get_running_loop()
    moment = loop.time()
    monkeypatch.setattr(loop, "time", lambda: moment)
    world.log.stuck = frozenset({step})
    call = asyncio.create_task(world.ingest.publish(publish_request(id_=request_id())))
    await world.log.standing.wait()
    # The limit runs from now on at the latest; the loop looks at its timers once in a turn.
    moment += 0.049
    for _ in range(20):
        await asyncio.sleep(0)
    assert not call.done()
    moment += 0.002
    done, _ = await asyncio.wait({call})
    assert [one.exception() for one in done] == [None]
    assert world.ingest.metric("skipped_requests_total", step=step) == 1


async def test_nobody_waits_twice_for_a_log_that_stands_still(world: World) -> None:
    """The call waited for its claim; what it has to tell goes on without it, and arrives."""
    world.log.stuck = frozenset({"begin", "finish"})
    request = publish_request(id_=request_id())
    answer = await world.ingest.publish(request)
    assert [step for step, _ in world.log.calls][:1] == ["begin"]
    assert world.ingest.metric("skipped_requests_total", step="begin") == 1
    assert world.ingest.metric("skipped_requests_total", step="finish") == 0
    world.log.stuck = frozenset()
    world.log.going_on.set()
    await world.ingest.settle()
    assert (await world.ingest.publish(request)).event_id == answer.event_id


async def test_what_a_log_is_told_does_not_pile_up(world: World) -> None:
    """A log that stands still for long is told no more, and that is counted."""
    world.log.stuck = frozenset({"begin", "finish"})
    most = LOG_CALLS
    await asyncio.gather(*[world.ingest.publish(publish_request(id_=request_id(n))) for n in range(most + 7)])
    assert world.ingest.metric("skipped_requests_total", step="finish") == 7
    world.log.going_on.set()
    await world.ingest.settle()
    assert sum(count for step, count in world.log.calls if step == "finish") == most


async def test_what_is_given_up_before_it_began_leaves_nothing(world: World, recwarn: pytest.WarningsRecorder) -> None:
    """A process that ends takes what it spawned along: nothing that was begun for it is left, and the answer stands."""
    world.ingest.gives_up = True
    answer = await world.ingest.publish(publish_request(id_=request_id()))
    assert await world.texts() == [answer.event_id]
    assert [step for step, _ in world.log.calls] == ["begin"]
    assert [str(one.message) for one in recwarn if one.category is RuntimeWarning] == []


async def test_a_lost_log_costs_a_second_record_not_a_second_id(run_dir: Path) -> None:
    """Where the request carries a time."""
    clock = ManualClock(NOW)
    request = publish_request(id_=request_id())
    async with world_in(run_dir, clock) as world:
        first = await world.ingest.publish(request)
    for name in ("requests.db", "requests.db-wal", "requests.db-shm"):
        (run_dir / name).unlink(missing_ok=True)
    clock.advance(3_600)
    async with world_in(run_dir, clock) as world:
        again = await world.ingest.publish(request)
        assert (again.event_id, again.replayed) == (first.event_id, False)
        assert await world.texts() == [first.event_id] * 2


async def test_a_restart_recognises_a_repeat(run_dir: Path) -> None:
    """The log is durable."""
    request = publish_request(id_=random_id())
    async with world_in(run_dir, ManualClock(NOW)) as world:
        first = await world.ingest.publish(request)
    async with world_in(run_dir, ManualClock(NOW + 5)) as world:
        again = await world.ingest.publish(request)
    assert (again.event_id, again.accept_time, again.replayed) == (first.event_id, first.accept_time, True)


@pytest.mark.parametrize(
    ("request_", "category", "reason"),
    [
        (publish_request("", id_=request_id()), InvalidArgument, "FIELD_INVALID"),
        (publish_request(category="gossip", id_=request_id()), InvalidArgument, "CATEGORY_UNKNOWN"),
        (publish_request(to=["r"] * 10_001, id_=request_id()), InvalidArgument, "AUDIENCE_TOO_LARGE"),
        (publish_request(id_=request_id(time_s=NOW - 90_000)), InvalidArgument, "EVENT_TIME_INVALID"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    world: World, request_: object, category: type[Failure], reason: str
) -> None:
    """No record, no lease, one count."""
    failure = await refusal_of(world, request_)
    assert isinstance(failure, category)
    assert failure.reason == reason
    assert await world.texts() == []
    assert [step for step, _ in world.log.calls] in ([], ["begin", "release"])
    assert world.ingest.metric("refused_events_total", reason=reason) == 1


async def test_a_wrong_clock_is_counted_for_its_producer(world: World) -> None:
    """Somebody must be told."""
    await refusal_of(world, publish_request(event_time=NOW + 3_600))
    assert world.ingest.metric("time_refused_events_total", tenant="acme", producer="demo") == 1


async def test_an_unregistered_producer_is_refused_as_a_whole(world: World) -> None:
    """Also with a batch."""
    failure = await refusal_of(world, publish_request(), "nobody")
    assert isinstance(failure, PermissionDenied)
    with pytest.raises(PermissionDenied):
        await world.ingest.batch(publish_request(), producer="nobody")


async def test_judging_only_stores_nothing(world: World) -> None:
    """A right request is answered with nothing, a wrong one as always; the request id stays free."""
    answer = await world.ingest.publish(publish_request(id_=request_id(), validate_only=True))
    assert (answer.event_id, answer.replayed, answer.HasField("accept_time")) == ("", False, False)
    assert (await refusal_of(world, publish_request("", validate_only=True))).reason == "FIELD_INVALID"
    assert await world.texts() == []
    assert world.log.calls == []
    assert world.ingest.metric("validated_events_total") == 1
    assert not (await world.ingest.publish(publish_request("other", id_=request_id()))).replayed


async def test_a_batch_is_one_look_up_and_one_append_a_lane(world: World) -> None:
    """A hundred events over three lanes: one begin, three appends, one finish, each lane in the order of the call."""
    categories = ("general", "security", "newsletter")
    requests = [
        publish_request(str(number), category=categories[number % 3], id_=request_id(number)) for number in range(100)
    ]
    results = await world.ingest.batch(*requests)
    assert world.log.calls == [("begin", 100), ("finish", 100)]
    assert {name: lane.appends for name, lane in world.lanes.items()} == {"high": [33], "normal": [34], "bulk": [33]}
    answered = [result.accepted.event_id for result in results]
    assert [await world.texts(lane) for lane in ("normal", "high", "bulk")] == [answered[i::3] for i in range(3)]
    assert world.ingest.metric("accepted_events_total") == 100


async def test_each_item_of_a_batch_has_its_own_verdict(world: World) -> None:
    """A refused item harms no other, and says what a call of its own would."""
    await world.ingest.publish(publish_request("old", id_=request_id(1)))
    results = await world.ingest.batch(
        publish_request("old", id_=request_id(1)),
        publish_request("", id_=request_id(2)),
        publish_request("other", id_=request_id(1)),
        publish_request("new", id_=request_id(3)),
        publish_request("judged", validate_only=True),
        publish_request("nameless"),
    )
    kinds = [result.refused.reason or ("replayed" if result.accepted.replayed else "accepted") for result in results]
    assert kinds == ["replayed", "FIELD_INVALID", "REQUEST_ID_REUSED", "accepted", "accepted", "accepted"]
    assert results[1].refused.violations[0].field == "event.content.title"
    assert [results[1].refused.code, results[2].refused.code] == [3, 6]
    assert len(await world.texts()) == 3


async def test_items_of_one_batch_with_one_id_are_one_event(world: World) -> None:
    """The second is a repeat of the first, other content is refused; also while the log is away."""
    for number, failing in ((1, frozenset[str]()), (2, frozenset({"begin", "finish"}))):
        world.log.failing = failing
        results = await world.ingest.batch(
            publish_request("a", id_=request_id(number)),
            publish_request("a", id_=request_id(number)),
            publish_request("b", id_=request_id(number)),
        )
        assert not results[0].accepted.replayed
        assert results[1].accepted.replayed
        assert results[1].accepted.event_id == results[0].accepted.event_id
        assert results[2].refused.reason == "REQUEST_ID_REUSED"
        assert len(await world.texts()) == number


async def test_a_lane_that_fails_refuses_only_its_items(world: World) -> None:
    """The others are accepted; the refused ones may be repeated at once."""
    requests = [publish_request(category=category, id_=request_id(2)) for category in ("security", "general")]
    requests[0].request_id = request_id(1)
    world.lanes["high"].fault = "refused"
    results = await world.ingest.batch(*requests)
    assert results[0].refused.reason == "LANE_UNAVAILABLE"
    assert results[0].refused.retry_delay.seconds == 1
    assert results[1].accepted.event_id
    again = await world.ingest.batch(*requests)
    assert [result.accepted.replayed for result in again] == [False, True]


@pytest.mark.parametrize("count", [0, 501])
async def test_a_batch_of_the_wrong_size_is_refused_as_a_whole(world: World, count: int) -> None:
    """1 to 500 items."""
    with pytest.raises(InvalidArgument):
        await world.ingest.batch(*[publish_request()] * count)
    assert await world.texts() == []


async def test_a_call_given_up_before_its_answer_is_a_repeat_later(world: World) -> None:
    """The event was accepted, and the log learns it although nobody waits for it any more."""
    request = publish_request(id_=random_id())
    world.log.stuck = frozenset({"finish"})
    call = asyncio.ensure_future(world.ingest.publish(request))
    await until(lambda: ("finish", 1) in world.log.calls)
    call.cancel()
    await asyncio.wait({call})
    world.log.going_on.set()
    await world.ingest.settle()
    again = await world.ingest.publish(request)
    assert again.replayed
    assert await world.texts() == [again.event_id]


async def test_the_path_of_an_event_is_logged(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """Three steps with the event's id, in their order."""
    answer = await world.ingest.publish(publish_request())
    lines = [line for line in "".join(capfd.readouterr()).splitlines() if answer.event_id in line]
    assert [step for line in lines for step in ("published", "accepted", "answered") if step in line] == [
        "published",
        "accepted",
        "answered",
    ]

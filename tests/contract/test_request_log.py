"""What every request log promises; see `svc_ingest.ports.RequestLog`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_ingest.limits import REQUEST_LEASE_S
from svc_ingest.ports import Answer, Claim, Done, Fresh, Pending, RequestLog
from tests.support.backends import Opener, request_log_backends, swept_request_log_backends

NOW = 1_700_000_000.0
DIGEST = b"d" * 32
OTHER = b"o" * 32
EVENT = b"e" * 16


@pytest.fixture(params=request_log_backends())
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[RequestLog]:
    """Opens the same log again and again."""
    opened: Opener[RequestLog] = request.param(tmp_path)
    return opened


@pytest.fixture
async def log(opener: Opener[RequestLog]) -> AsyncIterator[RequestLog]:
    """An empty log of each kind."""
    async with opener() as opened:
        yield opened


@pytest.fixture(params=swept_request_log_backends())
async def swept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RequestLog]:
    """An empty log of each kind that does not forget by itself."""
    opened: Opener[RequestLog] = request.param(tmp_path)
    async with opened() as log:
        yield log


def claim(
    holder: str = "first",
    *,
    number: int = 1,
    digest: bytes = DIGEST,
    time_ms: int = 1_000,
    tenant: str = "acme",
    producer: str = "demo",
) -> Claim:
    """A claim on one request."""
    return Claim(tenant, producer, number.to_bytes(16, "big"), digest, time_ms, holder.encode())


def answer(claimed: Claim, event_id: bytes = EVENT, accept_micros: int = 7_000_001) -> Answer:
    """The answer to a claim."""
    return Answer(claimed, event_id, accept_micros)


async def test_an_unknown_request_is_fresh_with_its_own_time(log: RequestLog) -> None:
    """The first claim gets the request, with the time it brought."""
    assert await log.begin([claim(time_ms=1_234)], NOW) == [Fresh(1_234)]


async def test_a_twin_is_pending_for_what_is_left_of_the_lease(log: RequestLog) -> None:
    """Whoever comes while the lease runs learns how long it still does."""
    await log.begin([claim()], NOW)
    assert await log.begin([claim("second")], NOW + 4) == [Pending(REQUEST_LEASE_S - 4)]
    assert await log.begin([claim("third")], NOW + 9.5) == [Pending(0.5)]


async def test_other_content_is_pending_too_while_the_lease_runs(log: RequestLog) -> None:
    """Nobody knows yet whether the first one will be accepted."""
    await log.begin([claim()], NOW)
    assert await log.begin([claim("second", digest=OTHER)], NOW + 1) == [Pending(REQUEST_LEASE_S - 1)]


async def test_a_lease_that_ran_out_is_taken_over_with_its_time(log: RequestLog) -> None:
    """The heir derives the same id: the time of the first try stays, and the lease begins anew."""
    await log.begin([claim(time_ms=1_000)], NOW)
    assert await log.begin([claim("second", time_ms=9_999)], NOW + REQUEST_LEASE_S) == [Fresh(1_000)]
    assert await log.begin([claim("third")], NOW + REQUEST_LEASE_S + 1) == [Pending(REQUEST_LEASE_S - 1)]


async def test_other_content_takes_a_lease_over_with_its_own_time(log: RequestLog) -> None:
    """Another event is another id: nothing of the first try stays."""
    await log.begin([claim(time_ms=1_000)], NOW)
    taken = claim("second", digest=OTHER, time_ms=9_999)
    assert await log.begin([taken], NOW + REQUEST_LEASE_S) == [Fresh(9_999)]
    await log.finish([answer(taken)])
    assert await log.begin([claim("third")], NOW + 30) == [Done(OTHER, EVENT, 7_000_001)]


async def test_a_lease_from_the_future_has_run_out(log: RequestLog) -> None:
    """A wall clock that was set back does not make a lease last for hours."""
    await log.begin([claim()], NOW)
    assert await log.begin([claim("second")], NOW - 0.5) == [Pending(REQUEST_LEASE_S)]
    assert await log.begin([claim("third")], NOW - 3_600) == [Fresh(1_000)]


async def test_done_requests_tell_their_digest_and_answer(log: RequestLog) -> None:
    """A repeat gets what the first one got, however late."""
    first = claim()
    await log.begin([first], NOW)
    await log.finish([answer(first)])
    later = [await log.begin([claim("second")], NOW + seconds) for seconds in (0, 11, 86_000)]
    assert later == [[Done(DIGEST, EVENT, 7_000_001)]] * 3


async def test_finish_needs_no_claim_before_it(log: RequestLog) -> None:
    """A log that was away at the beginning, or lost everything since, still learns the end."""
    await log.finish([answer(claim())])
    assert await log.begin([claim("second")], NOW) == [Done(DIGEST, EVENT, 7_000_001)]


async def test_finish_wins_over_the_lease_of_another(log: RequestLog) -> None:
    """An append that came late is as accepted as any."""
    await log.begin([claim()], NOW)
    await log.begin([claim("second", digest=OTHER)], NOW + REQUEST_LEASE_S)
    await log.finish([answer(claim())])
    assert await log.begin([claim("third")], NOW + 11) == [Done(DIGEST, EVENT, 7_000_001)]


async def test_the_first_answer_stays(log: RequestLog) -> None:
    """A second finish changes nothing."""
    await log.finish([answer(claim())])
    await log.finish([answer(claim("second", digest=OTHER), b"x" * 16, 9)])
    assert await log.begin([claim("third")], NOW) == [Done(DIGEST, EVENT, 7_000_001)]


async def test_release_makes_the_request_fresh_again(log: RequestLog) -> None:
    """A holder that surely did nothing makes room at once."""
    await log.begin([claim()], NOW)
    await log.release([claim()])
    assert await log.begin([claim("second", digest=OTHER, time_ms=5)], NOW + 1) == [Fresh(5)]


async def test_release_compares_the_holder(log: RequestLog) -> None:
    """Whoever woke up late does not take the request from its heir, nor undo what is done."""
    await log.begin([claim()], NOW)
    await log.begin([claim("second")], NOW + REQUEST_LEASE_S)
    await log.release([claim()])
    assert await log.begin([claim("third")], NOW + REQUEST_LEASE_S) == [Pending(REQUEST_LEASE_S)]
    await log.finish([answer(claim("second"))])
    await log.release([claim("second"), claim("nobody", number=99)])
    assert await log.begin([claim("third")], NOW + 30) == [Done(DIGEST, EVENT, 7_000_001)]


async def test_claims_of_one_call_see_each_other(log: RequestLog) -> None:
    """Of two claims on one request in one call the first gets it, also when its lease has to be taken over."""
    await log.finish([answer(claim(number=7))])
    known = await log.begin([claim(time_ms=1), claim(time_ms=2), claim(number=2, time_ms=3), claim(number=7)], NOW)
    assert known == [Fresh(1), Pending(REQUEST_LEASE_S), Fresh(3), Done(DIGEST, EVENT, 7_000_001)]
    taken = await log.begin([claim("second", time_ms=8), claim("second", time_ms=9)], NOW + REQUEST_LEASE_S)
    assert taken == [Fresh(1), Pending(REQUEST_LEASE_S)]


async def test_the_key_is_tenant_producer_and_request_id(log: RequestLog) -> None:
    """The same request id of another producer, or another tenant, is another request."""
    await log.begin([claim()], NOW)
    others = [
        claim(producer="billing"),
        claim(tenant="globex"),
        claim(number=2),
        claim(tenant="acme-demo", producer="x"),
    ]
    assert await log.begin(others, NOW) == [Fresh(1_000)] * 4


async def test_parallel_claims_have_one_winner(log: RequestLog) -> None:
    """Fifty twins at once: one is fresh, the others wait."""
    calls = [log.begin([claim(f"holder {number}")], NOW) for number in range(50)]
    known = [fact for (fact,) in await asyncio.gather(*calls)]
    assert known.count(Fresh(1_000)) == 1
    assert known.count(Pending(REQUEST_LEASE_S)) == 49


async def test_sweep_forgets_the_oldest_within_its_limit(swept: RequestLog) -> None:
    """What began before the given time goes, oldest first; what is younger stays."""
    for number in range(6):
        await swept.begin([claim(number=number)], NOW + number * 100)
    assert await swept.sweep(NOW + 350, 3) == 3
    assert await swept.begin([claim("second", number=3)], NOW + 301) == [Pending(REQUEST_LEASE_S - 1)]
    assert await swept.sweep(NOW + 350, 3) == 1
    assert await swept.sweep(NOW + 350, 3) == 0
    known = await swept.begin([claim("second", number=number, time_ms=5) for number in range(6)], NOW + 501)
    assert known == [Fresh(5)] * 4 + [Fresh(1_000), Pending(REQUEST_LEASE_S - 1)]


async def test_a_request_taken_over_counts_as_young(swept: RequestLog) -> None:
    """The age of a request is that of its last lease, and it does not stop the sweep of others."""
    await swept.begin([claim(number=1)], NOW)
    await swept.begin([claim(number=2)], NOW + 1)
    await swept.begin([claim("second", number=1)], NOW + 500)
    assert await swept.sweep(NOW + 100, 1) == 1
    assert await swept.begin([claim("third", number=1)], NOW + 501) == [Pending(REQUEST_LEASE_S - 1)]


async def test_sweep_leaves_what_is_young(log: RequestLog) -> None:
    """Nobody loses a request that began after the given time."""
    await log.begin([claim(number=1)], NOW)
    assert await log.sweep(NOW - 1, 10) == 0
    assert await log.begin([claim("second", number=1)], NOW + 1) == [Pending(REQUEST_LEASE_S - 1)]


async def test_everything_is_there_after_a_restart(opener: Opener[RequestLog]) -> None:
    """Leases and answers outlive the process."""
    async with opener() as log:
        await log.begin([claim(number=1), claim(number=2)], NOW)
        await log.finish([answer(claim(number=2))])
    async with opener() as log:
        known = await log.begin([claim("second", number=1), claim("second", number=2)], NOW + 1)
        assert known == [Pending(REQUEST_LEASE_S - 1), Done(DIGEST, EVENT, 7_000_001)]

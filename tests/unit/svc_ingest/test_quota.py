"""Token buckets: never more than burst and rate allow, whatever the order of calls, and delays that are right."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import ResourceExhausted
from svc_ingest import limits
from svc_ingest.quota import Bucket, Meter, Quota, Quotas

steps = st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 20)), max_size=80)
rates = st.floats(0.01, 1_000.0)
bursts = st.floats(1.0, 100.0)


@given(rates, bursts, steps)
def test_never_more_than_burst_and_rate_allow(rate: float, burst: float, calls: list[tuple[float, int]]) -> None:
    """In any span of time that begins at any call."""
    bucket, now = Bucket(rate, burst, 0.0), 0.0
    taken: list[tuple[float, int]] = []
    for pause, count in calls:
        now += pause
        if not bucket.wait(count, now):
            bucket.take(count, now)
            taken.append((now, count))
        for start, _ in taken:
            total = sum(count for time, count in taken if time >= start)
            assert total <= burst + rate * (now - start) + 1e-6


@given(rates, bursts, st.integers(1, 100))
def test_after_the_named_wait_it_is_let_through(rate: float, burst: float, count: int) -> None:
    """A delay that is waited for exactly is enough, and it is no longer than a token takes."""
    meter = Meter(Quotas({("t", "p"): Quota(events_per_second=rate, burst=burst)}), 0.0)
    refusal = None
    for _ in range(count + 101):
        refusal = refusal or meter.charge("t", "p", 1, 0.0)
    assert refusal is not None
    assert refusal.retry_delay is not None
    assert meter.charge("t", "p", 1, refusal.retry_delay) is None
    assert refusal.retry_delay <= 1 / rate + 0.001 + 1e-9


def test_a_clock_that_stands_or_goes_back_gives_nothing() -> None:
    """Tokens come with time only."""
    bucket = Bucket(10.0, 1.0, 5.0)
    bucket.take(1, 5.0)
    assert bucket.wait(1, 5.0) == pytest.approx(0.1)
    assert bucket.wait(1, 1.0) == pytest.approx(0.1)
    assert bucket.wait(1, 5.2) == 0.0


def refusal_of(refusal: ResourceExhausted | None) -> ResourceExhausted:
    """The refusal, which must be one."""
    assert refusal is not None
    assert refusal.reason == "QUOTA_EXCEEDED"
    return refusal


@pytest.mark.parametrize("quotas", [Quotas({("t", "p"): Quota(0.0)}), Quotas({}, {"t": Quota(0.0)})])
def test_a_quota_of_zero_lets_nothing_through(quotas: Quotas) -> None:
    """Said clearly, and without a delay: waiting does not help."""
    refusal = refusal_of(Meter(quotas, 0.0).charge("t", "p", 1, 1e9))
    assert refusal.retry_delay is None
    assert "quota is 0 events a second: nothing may be published" in refusal.message


def test_recipients_are_counted_apart() -> None:
    """Only those that an event names; one that names none is not held up by them."""
    meter = Meter(Quotas({("t", "p"): Quota(recipients_per_second=10.0, recipients_burst=20.0)}), 0.0)
    assert meter.charge("t", "p", 20, 0.0) is None
    refusal = refusal_of(meter.charge("t", "p", 5, 0.0))
    assert refusal.retry_delay == pytest.approx(0.5, abs=0.002)
    assert dict(refusal.metadata) == {"quota": "recipients_per_second", "of": "producer"}
    assert meter.charge("t", "p", 0, 0.0) is None


def test_what_never_fits_is_told_so() -> None:
    """An event with more recipients than the bucket holds would wait for ever."""
    meter = Meter(Quotas({("t", "p"): Quota(recipients_per_second=10.0, recipients_burst=20.0)}), 0.0)
    refusal = refusal_of(meter.charge("t", "p", 21, 0.0))
    assert refusal.retry_delay is None
    assert "more than the producer's quota ever lets through" in refusal.message


def test_without_a_burst_the_largest_event_fits() -> None:
    """Otherwise a small rate would forbid large audiences altogether."""
    meter = Meter(Quotas({("t", "p"): Quota(recipients_per_second=10.0)}), 0.0)
    assert meter.charge("t", "p", limits.RECIPIENTS, 0.0) is None
    delay = refusal_of(meter.charge("t", "p", limits.RECIPIENTS, 0.0)).retry_delay
    assert delay == pytest.approx(limits.RECIPIENTS / 10, abs=0.002)


def test_producer_and_tenant_are_charged_together_or_not_at_all() -> None:
    """An event that the tenant's quota refuses costs the producer nothing, and neighbours share the tenant's."""
    quotas = Quotas({("t", "p"): Quota(1.0, burst=3.0)}, {"t": Quota(1.0, burst=4.0)})
    meter = Meter(quotas, 0.0)
    for _ in range(3):
        assert meter.charge("t", "other", 1, 0.0) is None
    assert meter.charge("t", "p", 1, 0.0) is None
    for _ in range(5):
        assert refusal_of(meter.charge("t", "p", 1, 0.0)).metadata["of"] == "tenant"
    # Two of the producer's three are left: those refusals took none.
    assert meter.charge("t", "p", 1, 1.0) is None
    assert meter.charge("t", "p", 1, 2.0) is None
    assert meter.charge("elsewhere", "p", 1, 0.0) is None


def test_the_longest_wait_is_named() -> None:
    """Of all buckets that say no."""
    quotas = Quotas({("t", "p"): Quota(2.0, burst=1.0)}, {"t": Quota(0.5, burst=1.0)})
    meter = Meter(quotas, 0.0)
    assert meter.charge("t", "p", 1, 0.0) is None
    assert refusal_of(meter.charge("t", "p", 1, 0.0)).retry_delay == pytest.approx(2.0, abs=0.002)


def test_a_bucket_never_waits_for_nothing() -> None:
    """Nothing asked, nothing waited for, even with a rate of zero."""
    assert Bucket(0.0, 1.0, 0.0).wait(0, 0.0) == 0.0
    assert Bucket(0.0, 1.0, 0.0).wait(1, 0.0) == math.inf

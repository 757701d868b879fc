"""How much a producer and its tenant may publish: token buckets for events and for the recipients that they name.

Path step 2. Pure: the time is an argument. An event is charged to its producer and to its tenant, all or nothing. Must
not be asked before the request log: a repeat of what was accepted costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from mesh.errors import ResourceExhausted
from svc_ingest import limits

_MILLIS: Final = 1_000


class Quota(msgspec.Struct, frozen=True):
    """What one producer, or all producers of a tenant together, may publish; None: as much as they like.

    Attributes:
        events_per_second: in the long run; 0: none at all.
        burst: events at once after a pause; None: those of one second, at least one.
        recipients_per_second: recipients that events name, in the long run; 0: none.
        recipients_burst: recipients at once after a pause; None: those of one second, at least one largest event.
    """

    events_per_second: float | None = None
    burst: float | None = None
    recipients_per_second: float | None = None
    recipients_burst: float | None = None


class Quotas(msgspec.Struct, frozen=True):
    """Every quota of the installation.

    Attributes:
        producers: by (tenant, producer); who is not listed has none.
        tenants: by tenant.
    """

    producers: Mapping[tuple[str, str], Quota] = {}
    tenants: Mapping[str, Quota] = {}


class Bucket:
    """Holds up to `burst` tokens and gains `rate` a second: never more than burst + rate · t are taken in t seconds."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._tokens = burst
        self._time = now

    def wait(self, count: float, now: float) -> float:
        """Returns the seconds until so many can be taken: 0 when they can be now, infinite when they never can."""
        if not count:
            return 0.0
        if not self.rate or count > self.burst:
            return math.inf
        self._fill(now)
        return max(0.0, (count - self._tokens) / self.rate)

    def take(self, count: float, now: float) -> None:
        """Takes what `wait` said is there."""
        self._fill(now)
        self._tokens -= count

    def _fill(self, now: float) -> None:
        if now > self._time:
            self._tokens = min(self.burst, self._tokens + (now - self._time) * self.rate)
            self._time = now


class _Charge(msgspec.Struct, frozen=True):
    """One bucket, and whose it is."""

    owner: str
    what: str
    bucket: Bucket


class Meter:
    """The buckets of every quota, full at the start."""

    def __init__(self, quotas: Quotas, now: float) -> None:
        self._producers = {key: _charges("producer", quota, now) for key, quota in quotas.producers.items()}
        self._tenants = {key: _charges("tenant", quota, now) for key, quota in quotas.tenants.items()}

    def charge(self, tenant_id: str, producer_id: str, recipient_count: int, now: float) -> ResourceExhausted | None:
        """Charges one event, or returns why it is not let through; then nothing is charged.

        Args:
            tenant_id: whose quota is charged.
            producer_id: whose quota is charged.
            recipient_count: recipients that the event names.
            now: monotonic seconds.
        """
        charges = (*self._producers.get((tenant_id, producer_id), ()), *self._tenants.get(tenant_id, ()))
        counts = [1 if one.what == "events" else recipient_count for one in charges]
        waits = [one.bucket.wait(count, now) for one, count in zip(charges, counts, strict=True)]
        longest = max(waits, default=0.0)
        if longest:
            at = waits.index(longest)
            return _quota_exceeded(charges[at], counts[at], longest)
        for one, count in zip(charges, counts, strict=True):
            one.bucket.take(count, now)
        return None


def _charges(owner: str, quota: Quota, now: float) -> tuple[_Charge, ...]:
    charges = []
    if quota.events_per_second is not None:
        burst = max(1.0, quota.events_per_second) if quota.burst is None else quota.burst
        charges.append(_Charge(owner, "events", Bucket(quota.events_per_second, burst, now)))
    if quota.recipients_per_second is not None:
        least = max(float(limits.RECIPIENTS), quota.recipients_per_second)
        burst = least if quota.recipients_burst is None else quota.recipients_burst
        charges.append(_Charge(owner, "recipients", Bucket(quota.recipients_per_second, burst, now)))
    return tuple(charges)


def _quota_exceeded(charge: _Charge, count: int, wait: float) -> ResourceExhausted:
    """The quota does not let the event through: now, or ever."""
    bucket = charge.bucket
    names = {"quota": f"{charge.what}_per_second", "of": charge.owner}
    if not bucket.rate:
        message = f"the {charge.owner}'s quota is 0 {charge.what} a second: nothing may be published"
    elif count > bucket.burst:
        message = f"the event names {count:,} recipients, more than the {charge.owner}'s quota ever lets through"
        message += f" at once ({bucket.burst:,g})"
    else:
        message = f"the {charge.owner}'s quota of {bucket.rate:,g} {charge.what} a second is used up"
        # The next whole millisecond: who waits exactly as long must not come a rounding error too early.
        wait = (math.floor(wait * _MILLIS) + 1) / _MILLIS
        return ResourceExhausted(message, reason="QUOTA_EXCEEDED", metadata=names, retry_delay=wait)
    return ResourceExhausted(message, reason="QUOTA_EXCEEDED", metadata=names)

"""What ingest needs from outside its rules: a short memory of requests. Must not know a technology.

Path step 2: the request log says whether a request is known. The lanes' writing end is `mesh.lanes.LaneWriter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec


class Claim(msgspec.Struct, frozen=True, gc=False):
    """One request that somebody starts to work on.

    Attributes:
        tenant_id: part of the key.
        producer_id: part of the key.
        request_id: sixteen bytes, part of the key.
        digest: of what was sent.
        id_time_ms: the time the event's id will carry.
        holder: who works on it; no two calls have the same.
    """

    tenant_id: str
    producer_id: str
    request_id: bytes
    digest: bytes
    id_time_ms: int
    holder: bytes


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A claim that ended with an accepted event."""

    claim: Claim
    event_id: bytes
    accept_micros: int


class Fresh(msgspec.Struct, frozen=True, gc=False):
    """Nobody holds the request: the claim is this caller's now, with this time for the event's id."""

    id_time_ms: int


class Pending(msgspec.Struct, frozen=True, gc=False):
    """Somebody else works on it for at most so many seconds more."""

    remaining_s: float


class Done(msgspec.Struct, frozen=True, gc=False):
    """The request was accepted before, with this content and this answer."""

    digest: bytes
    event_id: bytes
    accept_micros: int


Known: TypeAlias = Fresh | Pending | Done


class RequestLog(Protocol):
    """A short memory of requests by (tenant, producer, request id). Losing it is survivable.

    A request is absent, pending under a lease of `limits.REQUEST_LEASE_S` seconds, or done. A lease runs out by
    itself. All times are Unix seconds of the caller's wall clock; a lease that seems to begin more than a second in
    the future (the clock was set back) counts as run out. Every method raises `mesh.errors.Unavailable` when the log
    cannot be used; then nothing is known about what was written.
    """

    async def open(self) -> None:
        """Opens the log; raises one line with where and what when it cannot be used."""
        ...

    async def begin(self, claims: Sequence[Claim], now: float) -> Sequence[Known]:
        """Claims requests, in order; each claim sees those before it, also of the same call.

        An absent request, or a pending one whose lease has run out, becomes pending under the claim's holder: `Fresh`
        with the claim's time. When the run-out lease had the same digest, its time is kept: whoever takes over derives
        the same id. Otherwise the answer is `Pending` or `Done`, and nothing changes.
        """
        ...

    async def finish(self, answers: Sequence[Answer]) -> None:
        """Makes requests done, whoever holds them and also when they are absent; a done one stays as it is."""
        ...

    async def release(self, claims: Sequence[Claim]) -> None:
        """Forgets pending requests that are still held by the claims' holders; others stay."""
        ...

    async def sweep(self, before: float, limit: int) -> int:
        """Forgets at most `limit` requests begun before this time, oldest first; returns how many.

        A log that forgets each request by itself, `limits.REQUEST_LOG_S` after its last lease began, returns 0.
        """
        ...

    async def close(self) -> None:
        """Closes the log; harmless when it is not open."""
        ...

"""What a request id leads to: accept, answer again, or refuse. Path step 2.

Pure. Every case is here: twins at work, repeats after the answer, other content under the same id, appends of which
nobody knows the outcome, and a log that does not answer. Must not know how the log keeps things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from mesh.errors import Failure
from svc_ingest import limits
from svc_ingest.core import APPENDED, UNKNOWN, Draft, request_id_reused, request_pending
from svc_ingest.ports import Claim, Done, Known, Pending


class Accept(msgspec.Struct, frozen=True, gc=False):
    """The event is to be appended, with this time in its id."""

    id_time_ms: int


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What an accepted event's producer is told; the event may have been accepted by an earlier call (`replayed`)."""

    event_id: bytes
    accept_micros: int
    replayed: bool


class Closing(Enum):
    """What becomes of a claim in the request log."""

    NOTHING = 0
    FINISH = 1
    RELEASE = 2


class TwinOf(msgspec.Struct, frozen=True, gc=False):
    """An earlier item of the same call holds the request id: its outcome decides."""

    index: int


Verdict: TypeAlias = Accept | Receipt | TwinOf | Failure
Outcome: TypeAlias = Receipt | Failure

# The receipt of a request that was only judged.
VALIDATED: Final = Receipt(b"", 0, replayed=False)


def claim_of(draft: Draft, tenant_id: str, producer_id: str, holder: bytes, now_ms: int) -> Claim | None:
    """Returns what the request log is asked; None when there is nothing to remember."""
    if not draft.request_id or draft.request.validate_only:
        return None
    time_ms = now_ms if draft.id_time_ms is None else draft.id_time_ms
    return Claim(tenant_id, producer_id, draft.request_id, draft.digest, time_ms, holder)


def settle(drafts: Sequence[Draft], known: Sequence[Known | None], now_ms: int) -> list[Verdict]:
    """Decides about the requests of one call, in order.

    Args:
        drafts: those that follow the rules.
        known: for each what the log said; None without a request id, or when the log did not answer. Then the request
            counts as new: at worst its event is appended twice, under the same id.
        now_ms: the id's time of a request without one.
    """
    holders: dict[bytes, int] = {}
    return [
        _settle_one(draft, fact, holders, index, now_ms)
        for index, (draft, fact) in enumerate(zip(drafts, known, strict=True))
    ]


def _settle_one(draft: Draft, known: Known | None, holders: dict[bytes, int], index: int, now_ms: int) -> Verdict:
    if isinstance(known, Done):
        if known.digest == draft.digest:
            return Receipt(known.event_id, known.accept_micros, replayed=True)
        return request_id_reused(draft.request.request_id)
    if draft.request_id and not draft.request.validate_only:
        first = holders.setdefault(draft.request_id, index)
        if first != index:
            return TwinOf(first)
    if isinstance(known, Pending):
        return request_pending(known.remaining_s)
    if draft.late is not None:
        return draft.late
    if draft.request.validate_only:
        return VALIDATED
    if known is not None:
        return Accept(known.id_time_ms)
    return Accept(now_ms if draft.id_time_ms is None else draft.id_time_ms)


def conclude(drafts: Sequence[Draft], verdicts: Sequence[Verdict], appended: Mapping[int, Outcome]) -> list[Outcome]:
    """Returns what became of each request, once it is known what became of those that were to be appended.

    Args:
        drafts: the requests.
        verdicts: of `settle`.
        appended: the outcome of every `Accept`, by its index.
    """
    outcomes: list[Outcome] = []
    for index, verdict in enumerate(verdicts):
        if isinstance(verdict, Accept):
            outcomes.append(appended[index])
        elif isinstance(verdict, TwinOf):
            outcomes.append(_conclude_twin(drafts[index], drafts[verdict.index], outcomes[verdict.index]))
        else:
            outcomes.append(verdict)
    return outcomes


def _conclude_twin(draft: Draft, first: Draft, outcome: Outcome) -> Outcome:
    """Decides about a request whose id an earlier one of the same call had."""
    if draft.digest == first.digest:
        return (
            outcome if isinstance(outcome, Failure) else Receipt(outcome.event_id, outcome.accept_micros, replayed=True)
        )
    if isinstance(outcome, Failure):
        return request_pending(limits.REQUEST_LEASE_S)
    return request_id_reused(draft.request.request_id)


def close(drafts: Sequence[Draft], verdicts: Sequence[Verdict], outcomes: Sequence[Outcome]) -> list[Closing]:
    """Says what to do with each claim: a lease stays when nobody knows whether its event was appended."""
    return [_close(*item) for item in zip(drafts, verdicts, outcomes, strict=True)]


def _close(draft: Draft, verdict: Verdict, outcome: Outcome) -> Closing:
    if not isinstance(verdict, Accept):
        # A repeat that came too late found nobody before it.
        return Closing.RELEASE if verdict is draft.late else Closing.NOTHING
    if isinstance(outcome, Receipt):
        return Closing.FINISH
    return Closing.NOTHING if outcome.metadata.get(APPENDED) == UNKNOWN else Closing.RELEASE

"""The case table of repeats, row by row."""

from __future__ import annotations

from mesh.errors import AlreadyExists, Failure, Unavailable
from svc_ingest import core
from svc_ingest.limits import REQUEST_LEASE_S
from svc_ingest.ports import Claim, Done, Fresh, Known, Pending
from svc_ingest.repeats import (
    VALIDATED,
    Accept,
    Closing,
    Outcome,
    Receipt,
    TwinOf,
    Verdict,
    claim_of,
    close,
    conclude,
    settle,
)
from tests.support.publishing import NOW, NOW_NS, REGISTRIES, publish_request, random_id, request_id

NOW_MS = NOW * 1_000
TAKEN = Receipt(b"e" * 16, 7, replayed=False)


def draft(title: str = "a", id_: str | None = None, *, late: bool = False, validate_only: bool = False) -> core.Draft:
    """A draft with a random request id, unless another one is given; late ones happened two days ago."""
    event_time = NOW - 2 * 86_400 if late else None
    request = publish_request(
        title, id_=random_id() if id_ is None else id_, event_time=event_time, validate_only=validate_only
    )
    judged = core.check(request, REGISTRIES.grants["acme", "demo"], REGISTRIES, NOW_NS)
    assert isinstance(judged, core.Draft)
    return judged


def settle_one(one: core.Draft, known: Known | None) -> Verdict:
    """The verdict on a single request."""
    (verdict,) = settle([one], [known], NOW_MS)
    return verdict


def failure_of(verdict: Verdict | Outcome) -> Failure:
    """A verdict that must be a refusal."""
    assert isinstance(verdict, Failure)
    return verdict


def test_a_fresh_request_is_accepted_with_the_time_of_the_log() -> None:
    """The log may remember the time of a first try."""
    assert settle_one(draft(), Fresh(123)) == Accept(123)


def test_without_the_log_a_request_counts_as_new() -> None:
    """Its own time counts, else ingest's clock."""
    assert settle_one(draft(), None) == Accept(NOW_MS)
    assert settle_one(draft(id_=request_id(time_s=NOW - 60)), None) == Accept(NOW_MS - 60_000)


def test_a_twin_at_work_is_retryable() -> None:
    """Whatever its content: nobody knows yet which one is accepted."""
    failure = failure_of(settle_one(draft(), Pending(4.5)))
    assert isinstance(failure, Unavailable)
    assert (failure.reason, failure.retry_delay) == ("REQUEST_PENDING", 4.5)


def test_a_repeat_gets_the_first_answer() -> None:
    """Same id, same content."""
    one = draft()
    assert settle_one(one, Done(one.digest, b"e" * 16, 99)) == Receipt(b"e" * 16, 99, replayed=True)


def test_other_content_under_an_accepted_id_is_refused() -> None:
    """Never an overwrite, never a second event."""
    failure = failure_of(settle_one(draft("b"), Done(draft("a").digest, b"e" * 16, 99)))
    assert isinstance(failure, AlreadyExists)
    assert failure.reason == "REQUEST_ID_REUSED"


def test_a_late_repeat_gets_its_answer_and_a_late_first_try_does_not() -> None:
    """A producer that lost the answer and comes back after the expiry must not believe that nothing happened."""
    one = draft(late=True)
    assert settle_one(one, Done(one.digest, b"e" * 16, 99)) == Receipt(b"e" * 16, 99, replayed=True)
    assert failure_of(settle_one(one, Fresh(1))).reason == "EVENT_TIME_INVALID"
    assert failure_of(settle_one(one, None)).reason == "EVENT_TIME_INVALID"
    assert failure_of(settle_one(one, Pending(1))).reason == "REQUEST_PENDING"


def test_a_request_that_is_only_judged_touches_nothing() -> None:
    """It has no claim, no place among twins, and no event."""
    judged = draft(validate_only=True)
    assert claim_of(judged, "acme", "demo", b"h", NOW_MS) is None
    assert settle([judged, draft()], [None, Fresh(1)], NOW_MS) == [VALIDATED, Accept(1)]
    assert failure_of(settle_one(draft(late=True, validate_only=True), None)).reason == "EVENT_TIME_INVALID"


def test_a_request_without_an_id_has_no_claim_and_no_twin() -> None:
    """Every call is a new event."""
    nameless = draft(id_="")
    assert claim_of(nameless, "acme", "demo", b"h", NOW_MS) is None
    assert settle([nameless, nameless], [None, None], NOW_MS) == [Accept(NOW_MS), Accept(NOW_MS)]


def test_a_claim_has_the_time_of_the_request_else_the_clock() -> None:
    """The log keeps it for whoever takes over."""
    timed = draft(id_=request_id(time_s=NOW - 60))
    expected = Claim("acme", "demo", timed.request_id, timed.digest, NOW_MS - 60_000, b"h")
    assert claim_of(timed, "acme", "demo", b"h", NOW_MS) == expected
    untimed = claim_of(draft(), "acme", "demo", b"h", NOW_MS)
    assert untimed is not None
    assert untimed.id_time_ms == NOW_MS


def test_items_with_one_id_wait_for_the_first_of_them() -> None:
    """Also without the log."""
    twins = [draft("a"), draft("a"), draft("b")]
    assert settle(twins, [Fresh(1), Pending(10), Pending(10)], NOW_MS) == [Accept(1), TwinOf(0), TwinOf(0)]
    assert settle(twins, [None] * 3, NOW_MS) == [Accept(NOW_MS), TwinOf(0), TwinOf(0)]


def test_twins_of_an_accepted_item_are_repeats_or_refused() -> None:
    """Same content: the same answer. Other content: the id is taken."""
    same, other = conclude([draft("a"), draft("a"), draft("b")], [Accept(1), TwinOf(0), TwinOf(0)], {0: TAKEN})[1:]
    assert same == Receipt(TAKEN.event_id, TAKEN.accept_micros, replayed=True)
    assert failure_of(other).reason == "REQUEST_ID_REUSED"


def test_twins_of_a_refused_item_may_be_repeated() -> None:
    """Same content: the same refusal. Other content: later."""
    refused = core.lane_unavailable("normal", unknown=False)
    same, other = conclude([draft("a"), draft("a"), draft("b")], [Accept(1), TwinOf(0), TwinOf(0)], {0: refused})[1:]
    assert same is refused
    assert (failure_of(other).reason, failure_of(other).retry_delay) == ("REQUEST_PENDING", REQUEST_LEASE_S)


def test_what_becomes_of_claims() -> None:
    """Done when accepted; released when surely nothing was appended; kept while nobody knows; others are not ours."""
    one, late = draft(), draft(late=True)
    assert late.late is not None
    cases: list[tuple[core.Draft, Verdict, Outcome, Closing]] = [
        (one, Accept(1), TAKEN, Closing.FINISH),
        (one, Accept(1), core.lane_unavailable("normal", unknown=False), Closing.RELEASE),
        (one, Accept(1), core.lane_unavailable("normal", unknown=True), Closing.NOTHING),
        (late, late.late, late.late, Closing.RELEASE),
        (one, core.request_pending(1), core.request_pending(1), Closing.NOTHING),
        (one, TwinOf(0), Receipt(b"e" * 16, 7, replayed=True), Closing.NOTHING),
        (one, Receipt(b"e" * 16, 7, replayed=True), Receipt(b"e" * 16, 7, replayed=True), Closing.NOTHING),
        (one, VALIDATED, VALIDATED, Closing.NOTHING),
    ]
    drafts, verdicts, outcomes, closings = zip(*cases, strict=True)
    assert close(drafts, verdicts, outcomes) == list(closings)

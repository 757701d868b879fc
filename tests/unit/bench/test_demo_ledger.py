"""The demo's accounts and what it concludes from them."""

from __future__ import annotations

import pytest

from bench.demo_ledger import MUTED, STORE_REFUSED, WINDOW_ROWS, Evidence, Ledger, Phase, Published, phase_of, verdict

_SEEN = Evidence(MUTED, STORE_REFUSED, True)


def _event(number: int, *recipients: str, intended: float = 0.0, category: str = "general") -> Published:
    return Published(f"{number:08d}", category, recipients, intended, "REST" if number % 2 else "SDK")


def _faults(ledger: Ledger, *, missing_rows: int = 0, refused: int = 0) -> str:
    return "; ".join(verdict(ledger.counts(), _SEEN, missing_rows=missing_rows, refused=refused))


def _good_run() -> Ledger:
    ledger = Ledger()
    ledger.publish(
        Published("00000001", "general", ("a", "b"), 0.0, "REST", by_topic=("b",), suppressed=("m",), excluded=("x",))
    )
    ledger.publish(_event(2, "a"))
    for listener, event_id in (("a", "00000001"), ("b", "00000001"), ("a", "00000002")):
        ledger.show(listener, event_id)
        ledger.ack(listener, [event_id], 1.0)
    return ledger


def test_a_good_run_adds_up_and_has_no_faults() -> None:
    """Each event makes a notification for each recipient; all were shown once and acked."""
    ledger = _good_run()
    counts = ledger.counts()
    assert (counts.published, counts.due, counts.delivered, counts.acked) == (2, 3, 3, 3)
    assert counts.by_way == {"REST": 1, "SDK": 1}
    assert (counts.shown_twice, counts.lost, counts.strangers, ledger.outstanding()) == (0, 0, 0, 0)
    assert _faults(ledger) == ""


def test_what_was_not_shown_is_lost() -> None:
    """One listener that never got it is enough."""
    ledger = _good_run()
    ledger.publish(_event(3, "a", "b"))
    ledger.show("a", "00000003")
    ledger.ack("a", ["00000003"], 1.0)
    assert ledger.outstanding() == 1
    assert _faults(ledger) == "1 notifications were lost"


def test_a_second_showing_is_counted() -> None:
    """Each showing beyond the first is one too many."""
    ledger = _good_run()
    ledger.show("a", "00000001")
    ledger.show("a", "00000001")
    assert ledger.counts().shown_twice == 2
    assert _faults(ledger) == "2 notifications were shown twice"


def test_what_was_for_somebody_else_is_counted() -> None:
    """A notification at the wrong listener is a fault even if everybody else got theirs."""
    ledger = _good_run()
    ledger.show("b", "00000002")
    assert ledger.counts().strangers == 1
    assert "not for" in _faults(ledger)


def test_an_ack_that_was_not_stored_is_a_fault() -> None:
    """Shown is not enough: the ack has to come home."""
    ledger = _good_run()
    ledger.publish(_event(3, "a"))
    ledger.show("a", "00000003")
    assert "acks of 1" in _faults(ledger)


def test_a_run_without_a_publish_proves_nothing() -> None:
    """No losses of nothing is no success."""
    assert "nothing" in _faults(Ledger())


def test_missing_rows_and_refused_events_are_faults() -> None:
    """The inbox and the answers to the producer count as well."""
    assert _faults(_good_run(), missing_rows=2, refused=3) == (
        "2 notifications are not in the inbox; 3 events were not accepted"
    )


def test_showing_before_the_answer_to_the_producer_is_no_fault() -> None:
    """A listener may be faster than the answer to Publish."""
    ledger = Ledger()
    ledger.show("a", "00000001")
    ledger.ack("a", ["00000001"], 0.5)
    ledger.publish(_event(1, "a"))
    ledger.publish(_event(1, "a"))
    assert (ledger.counts().due, ledger.counts().lost, ledger.counts().strangers, ledger.outstanding()) == (1, 0, 0, 0)


def test_the_number_of_those_that_are_on_their_way_is_exact_at_the_end() -> None:
    """Acks of notifications that are nobody's do not hide one that is missing."""
    ledger = Ledger()
    ledger.publish(_event(1, "a", "b", "c", "d", "e"))
    assert ledger.outstanding() == 5
    for listener in ("a", "b", "c", "d"):
        ledger.ack(listener, ["00000001"], 1.0)
    ledger.ack("a", ["00000009"], 1.0)
    assert ledger.outstanding() == 1


@pytest.mark.parametrize(
    ("intended", "acked", "phase"),
    [
        (1.0, 9.9, Phase.BEFORE),
        (9.0, 10.5, Phase.DURING),
        (9.0, 30.0, Phase.DURING),
        (11.0, 11.1, Phase.DURING),
        (12.0, 12.1, Phase.DURING),
        (12.1, 12.2, Phase.AFTER),
    ],
)
def test_phases_go_by_the_way_of_a_notification(intended: float, acked: float, phase: Phase) -> None:
    """Whoever was on the way at any moment between kill and recovery felt the kill."""
    assert phase_of(intended, acked, 10.0, 12.0) is phase


def test_latencies_run_from_the_intended_time_to_the_first_stored_ack() -> None:
    """A repeated confirmation does not make it later, and times are in µs."""
    ledger = Ledger()
    ledger.publish(_event(1, "a", intended=1.0))
    ledger.ack("a", ["00000001"], 1.25)
    ledger.ack("a", ["00000001"], 7.0)
    assert ledger.latencies(10.0, 12.0)[Phase.BEFORE] == [250_000]


def test_an_inbox_must_list_the_newest_of_each_kind() -> None:
    """Security has a window of its own; of the rest the oldest may be gone."""
    ledger = Ledger()
    for number in range(WINDOW_ROWS + 5):
        ledger.publish(_event(number, "a"))
    ledger.publish(_event(999, "a", category="security"))
    ledger.publish(_event(1000, "b"))
    window = ledger.window_of("a")
    assert len(window) == WINDOW_ROWS + 1
    assert "00000999" in window
    assert "00000004" not in window
    assert "00000005" in window


def test_topics_exclusions_and_mutes_are_counted() -> None:
    """Who is due by topic is part of those who are due; who is kept back is not."""
    counts = _good_run().counts()
    assert (counts.due, counts.due_by_topic, counts.suppressed, counts.excluded) == (3, 1, 1, 1)
    assert _good_run().suppressed("m") == ["00000001"]
    assert _good_run().suppressed("a") == []


@pytest.mark.parametrize("recipient", ["m", "x"])
def test_what_was_to_be_kept_back_and_came_is_a_fault(recipient: str) -> None:
    """A mute or an exclusion that is not respected shows."""
    ledger = _good_run()
    ledger.show(recipient, "00000001")
    assert "not for" in _faults(ledger)


@pytest.mark.parametrize(
    ("evidence", "fault"),
    [
        (Evidence("", STORE_REFUSED, True), "a mute kept 1 notifications back, and Explain says nothing"),
        (Evidence("opted_out", STORE_REFUSED, True), "a mute kept 1 notifications back, and Explain says opted_out"),
        (Evidence(MUTED, "", True), "no dead letter was redriven to its listener"),
        (Evidence(MUTED, "poison", True), "no dead letter was redriven to its listener"),
        (Evidence(MUTED, STORE_REFUSED, False), "no dead letter was redriven to its listener"),
    ],
)
def test_missing_evidence_is_a_fault(evidence: Evidence, fault: str) -> None:
    """What Explain says and the way of the dead letter decide as the counts do."""
    assert verdict(_good_run().counts(), evidence, missing_rows=0, refused=0) == [fault]


def test_a_run_without_topics_or_a_mute_is_a_fault() -> None:
    """What was not tried is not shown to work."""
    ledger = Ledger()
    ledger.publish(_event(1, "a"))
    ledger.show("a", "00000001")
    ledger.ack("a", ["00000001"], 1.0)
    assert verdict(ledger.counts(), _SEEN, missing_rows=0, refused=0) == [
        "no event went to a topic and left somebody out",
        "a mute kept 0 notifications back, and Explain says muted",
    ]


def test_what_was_held_up_on_purpose_is_due_but_not_timed() -> None:
    """A redriven notification counts, and its latency does not."""
    ledger = Ledger()
    ledger.publish(Published("00000001", "billing", ("a",), 1.0, "SDK", timed=False))
    assert ledger.outstanding() == 1
    ledger.show("a", "00000001")
    ledger.ack("a", ["00000001"], 9.0)
    assert (ledger.is_shown("a", "00000001"), ledger.is_acked("a", "00000001")) == (True, True)
    assert ledger.is_acked("b", "00000001") is False
    assert not any(ledger.latencies(0.0, 0.5).values())

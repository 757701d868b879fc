"""Every metric of ingest, declared once, counted per call. Must not decide anything."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache

from mesh.errors import Failure
from mesh.telemetry import Telemetry
from svc_ingest.repeats import VALIDATED, Outcome

_PRIORITIES = ("high", "normal", "bulk")
_APPEND_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    """What ingest counts: events by what became of them, appends, and what the request log did not answer."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._accepted = telemetry.counter("accepted_events", "Events made durable.").inc
        self._replayed = telemetry.counter("replayed_events", "Repeats answered with the first answer.").inc
        self._validated = telemetry.counter(
            "validated_events", "Requests that were only to be judged, and are right."
        ).inc
        refused = telemetry.counter("refused_events", "Events refused, by reason.", ["reason"])
        self._refused = lru_cache(maxsize=64)(lambda reason: refused.labels(reason).inc)
        self._wrong_clocks = telemetry.counter(
            "time_refused_events",
            "Events refused for their time: that producer's clock is wrong.",
            ["tenant", "producer"],
        )
        append = telemetry.histogram(
            "append_seconds", "Time until an append to a lane was durable.", ["lane"], buckets=_APPEND_BUCKETS_S
        )
        self._append = lru_cache(maxsize=8)(lambda lane: append.labels(lane).time)
        skipped = telemetry.counter(
            "skipped_requests", "Requests handled without the request log: it failed or was slow.", ["step"]
        )
        self._skipped = {step: skipped.labels(step).inc for step in ("begin", "finish", "release")}
        shed = telemetry.counter(
            "shed_events", "Events refused for overload before any work was done, by priority.", ["priority"]
        )
        self._shed = {priority: shed.labels(priority).inc for priority in _PRIORITIES}
        self._late = telemetry.counter(
            "late_events", "Events not appended because their call's deadline passed while they were looked at."
        ).inc
        self._level = telemetry.gauge(
            "overload_level", "Who is refused for overload: 0 nobody, 1 bulk, 2 normal too, 3 high too."
        ).set
        self._in_flight = telemetry.gauge("in_flight_events", "Events being worked on.").set
        self._open_calls = telemetry.gauge(
            "open_calls", "Calls that have arrived and are not answered, those included that nobody has taken up yet."
        ).set
        self._backlog = telemetry.gauge("lane_backlog_records", "Records that fanout has not finished.", ["lane"])
        self._wait = telemetry.gauge(
            "lane_wait_seconds", "How long a record that is appended now will wait, as ingest reckons.", ["lane"]
        )
        self._swept = telemetry.counter("swept_records", "Old records removed.", ["store"])

    def count(self, outcomes: Sequence[Outcome], tenant_id: str, producer_id: str) -> None:
        """Counts the outcomes of one call."""
        reasons = Tally(outcome.reason for outcome in outcomes if isinstance(outcome, Failure))
        receipts = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
        validated = sum(receipt is VALIDATED for receipt in receipts)
        replayed = sum(receipt.replayed for receipt in receipts)
        self._accepted(len(receipts) - replayed - validated)
        if replayed:
            self._replayed(replayed)
        if validated:
            self._validated(validated)
        for reason, count in reasons.items():
            self._refused(reason)(count)
        if wrong := reasons["EVENT_TIME_INVALID"]:
            self._wrong_clocks.labels(tenant_id, producer_id).inc(wrong)

    def time_append(self, lane: str) -> AbstractContextManager[object]:
        """Returns a context that measures one append."""
        return self._append(lane)()

    def skip_log(self, step: str, count: int) -> None:
        """Counts requests for which the request log did not answer in time."""
        self._skipped[step](count)

    def shed(self, priority: str) -> None:
        """Counts an event that was refused for overload."""
        self._shed[priority]()

    def refuse_late(self, count: int) -> None:
        """Counts events that are not appended because their call's deadline has passed meanwhile."""
        self._late(count)

    def show_lane(self, lane: str, record_count: int, wait_s: float) -> None:
        """Shows what waits in a lane."""
        self._backlog.labels(lane).set(record_count)
        self._wait.labels(lane).set(wait_s)

    def show_load(self, level: int, in_flight: int, open_calls: int) -> None:
        """Shows who is refused, and how much is being worked on."""
        self._level(level)
        self._open_calls(open_calls)
        self._in_flight(in_flight)

    def sweep(self, store: str, count: int) -> None:
        """Counts what housekeeping removed."""
        self._swept.labels(store).inc(count)

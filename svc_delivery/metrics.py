"""Every metric of svc_delivery."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from heliograph.delivery.v1 import dead_letter_service_pb2
from mesh.telemetry import Telemetry


class Metrics:
    """Counters with their children bound once; counted per batch."""

    def __init__(self, telemetry: Telemetry) -> None:
        registry = telemetry.registry
        self.inboxed = Counter("heliograph_delivery_inboxed_total", "Rows written", registry=registry)
        self.suppressed = Counter(
            "heliograph_delivery_suppressed_total",
            "Recipients that get nothing, with a decision record",
            registry=registry,
        )
        self.rewritten = Counter(
            "heliograph_delivery_rewritten_batches_total",
            "Batches written again: the answer came too late to count",
            registry=registry,
        )
        self.offered = Counter(
            "heliograph_delivery_offered_total", "Recipients offered to a gateway node", registry=registry
        )
        self.not_offered = Counter(
            "heliograph_delivery_not_offered_total",
            "Recipients left to the follow-up: queue full, no link, no presence",
            registry=registry,
        )
        self.absent = Counter("heliograph_delivery_absent_total", "Recipients with no session", registry=registry)
        self.presence_failures = Counter(
            "heliograph_delivery_presence_failures_total", "Look-ups that presence did not answer", registry=registry
        )
        self.marks = Counter("heliograph_delivery_marks_total", "Marks stored", registry=registry)
        refusals = Counter(
            "heliograph_delivery_refused_total",
            "Recipients that a gateway node did not take, by why",
            ["kind"],
            registry=registry,
        )
        self.refused = {kind: refusals.labels(kind) for kind in ("absent", "behind", "draining", "unknown")}
        follow_ups = Counter(
            "heliograph_delivery_follow_ups_total",
            "Follow-ups looked at, by what came of them",
            ["outcome"],
            registry=registry,
        )
        self.follow_ups = {
            kind: follow_ups.labels(kind) for kind in ("settled", "done", "again", "parked", "nobody_there")
        }
        retried = Counter(
            "heliograph_delivery_retried_rows_total",
            "Rows that a healthy store refused, and what came of them on the retry lane",
            ["outcome"],
            registry=registry,
        )
        self.retried_rows = {kind: retried.labels(kind) for kind in ("refused", "written", "dropped")}
        attempts = Counter(
            "heliograph_delivery_attempts_total",
            "Attempts over channels beyond inbox and live, by what came of them",
            ["outcome"],
            registry=registry,
        )
        outcomes = ("sent", "retry", "refused", "exhausted", "skipped", "suppressed", "unanswered")
        self.attempts = {kind: attempts.labels(kind) for kind in outcomes}
        buried = Counter(
            "heliograph_delivery_dead_letters_total", "Deliveries given up, by why", ["reason"], registry=registry
        )
        self.dead_letters: dict[int, Counter] = {
            number: buried.labels(name.removeprefix("DEAD_LETTER_REASON_").lower())
            for name, number in dead_letter_service_pb2.DeadLetterReason.items()
            if number
        }
        self.redriven = Counter(
            "heliograph_delivery_redriven_total",
            "Dead letters that operators sent on their way again",
            registry=registry,
        )
        reloads = Counter(
            "heliograph_delivery_reloads_total",
            "Replays that sent the whole window, by why the cursor could not be used",
            ["why"],
            registry=registry,
        )
        self.reloads = {why: reloads.labels(why.lower()) for why in ("ABSENT", "FOREIGN", "FUTURE", "OLD")}
        self.links = Gauge("heliograph_delivery_links", "Gateway nodes with an open link", registry=registry)
        self.unknown_frames = Counter(
            "heliograph_delivery_unknown_frames_total",
            "Stream frames of a kind that this version does not know",
            registry=registry,
        )
        self.write_seconds = Histogram(
            "heliograph_delivery_write_seconds",
            "From a batch's arrival to its rows being durable",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
            registry=registry,
        )

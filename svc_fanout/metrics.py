"""Every metric of svc_fanout."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from mesh.telemetry import Telemetry

LANES = ("high", "normal", "bulk")
SLICE_LANES = tuple(f"slices-{lane}" for lane in LANES)


class Metrics:
    """Counters with their children bound once; counted per batch."""

    def __init__(self, telemetry: Telemetry) -> None:
        registry = telemetry.registry
        events = Counter(
            "heliograph_fanout_events_total", "Events or slices finished, by lane", ["lane"], registry=registry
        )
        lanes = (*LANES, *SLICE_LANES)
        self.events = {lane: events.labels(lane) for lane in lanes}
        deliveries = Counter(
            "heliograph_fanout_deliveries_total", "Recipients handed to delivery, by lane", ["lane"], registry=registry
        )
        self.deliveries = {lane: deliveries.labels(lane) for lane in lanes}
        parked = Counter(
            "heliograph_fanout_parked_total", "Records that could not be read, by lane", ["lane"], registry=registry
        )
        self.parked = {lane: parked.labels(lane) for lane in lanes}
        retries = Counter(
            "heliograph_fanout_retries_total",
            "Batches sent again, and prefs asked again, by why",
            ["why"],
            registry=registry,
        )
        self.retries = {why: retries.labels(why) for why in ("refused", "stream", "prefs", "lane", "slices")}
        lag = Gauge(
            "heliograph_fanout_lag_records",
            "Records after the committed position, by lane",
            ["lane"],
            registry=registry,
        )
        self.lag = {lane: lag.labels(lane) for lane in lanes}
        age = Gauge("heliograph_fanout_lag_seconds", "Age of the oldest of them, by lane", ["lane"], registry=registry)
        self.lag_age = {lane: age.labels(lane) for lane in lanes}
        slices = Counter(
            "heliograph_fanout_slices_total", "Slices of large audiences written, by lane", ["lane"], registry=registry
        )
        self.slices = {lane: slices.labels(lane) for lane in LANES}
        held = Gauge(
            "heliograph_fanout_held_events", "Events that wait for prefs, by lane", ["lane"], registry=registry
        )
        self.held = {lane: held.labels(lane) for lane in LANES}
        self.wishes = Gauge(
            "heliograph_fanout_wishes_recipients", "Recipients whose decisions are remembered", registry=registry
        )
        found = Counter(
            "heliograph_fanout_wishes_total",
            "Decisions needed, by whether they were known",
            ["known"],
            registry=registry,
        )
        self.wishes_found, self.wishes_asked = found.labels("yes"), found.labels("no")
        self.wishes_dropped = Counter(
            "heliograph_fanout_wishes_dropped_total", "Recipients forgotten after a change", registry=registry
        )
        self.poll_failures = Counter(
            "heliograph_fanout_poll_failures_total", "Looks at the changes of wishes that failed", registry=registry
        )
        self.bulk_share = Gauge(
            "heliograph_fanout_bulk_share_ratio",
            "Part of the time in which bulk works while high comes through",
            registry=registry,
        )
        self.bulk_share.set(1.0)
        self.streams = Gauge("heliograph_fanout_streams", "Open Dispatch streams", registry=registry)
        self.unknown_frames = Counter(
            "heliograph_fanout_unknown_frames_total",
            "Stream frames of a kind that this version does not know",
            registry=registry,
        )

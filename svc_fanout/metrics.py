"""Every metric of svc_fanout."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from mesh.telemetry import Telemetry

LANES = ("high", "normal", "bulk")


class Metrics:
    """Counters with their children bound once; counted per batch."""

    def __init__(self, telemetry: Telemetry) -> None:
        registry = telemetry.registry
        events = Counter("heliograph_fanout_events_total", "Events finished, by lane", ["lane"], registry=registry)
        self.events = {lane: events.labels(lane) for lane in LANES}
        deliveries = Counter(
            "heliograph_fanout_deliveries_total", "Recipients handed to delivery, by lane", ["lane"], registry=registry
        )
        self.deliveries = {lane: deliveries.labels(lane) for lane in LANES}
        parked = Counter(
            "heliograph_fanout_parked_total", "Records that could not be read, by lane", ["lane"], registry=registry
        )
        self.parked = {lane: parked.labels(lane) for lane in LANES}
        retries = Counter(
            "heliograph_fanout_retries_total",
            "Batches sent again, and prefs asked again, by why",
            ["why"],
            registry=registry,
        )
        self.retries = {why: retries.labels(why) for why in ("refused", "stream", "prefs", "lane")}
        lag = Gauge(
            "heliograph_fanout_lag_records",
            "Records after the committed position, by lane",
            ["lane"],
            registry=registry,
        )
        self.lag = {lane: lag.labels(lane) for lane in LANES}
        age = Gauge("heliograph_fanout_lag_seconds", "Age of the oldest of them, by lane", ["lane"], registry=registry)
        self.lag_age = {lane: age.labels(lane) for lane in LANES}
        self.streams = Gauge("heliograph_fanout_streams", "Open Dispatch streams", registry=registry)
        self.unknown_frames = Counter(
            "heliograph_fanout_unknown_frames_total",
            "Stream frames of a kind that this version does not know",
            registry=registry,
        )

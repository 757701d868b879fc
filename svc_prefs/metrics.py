"""Every metric of svc_prefs."""

from __future__ import annotations

from prometheus_client import Counter

from mesh.telemetry import Telemetry


class Metrics:
    """Counters with their children bound once."""

    def __init__(self, telemetry: Telemetry) -> None:
        registry = telemetry.registry
        self.resolved = Counter("heliograph_prefs_resolved_total", "Recipients decided for", registry=registry)
        self.changed = Counter("heliograph_prefs_changed_total", "Preferences changed", registry=registry)
        self.foreign = Counter(
            "heliograph_prefs_foreign_rows_total",
            "Rows of another owner that a store answered; always 0",
            registry=registry,
        )
        self.resets = Counter(
            "heliograph_prefs_resets_total",
            "Askers told to forget all decisions, because the changes since are not known",
            registry=registry,
        )
        self.subscribed = Counter(
            "heliograph_prefs_subscribed_total",
            "Subscriptions asked for and stored, repeated ones too",
            registry=registry,
        )
        self.unsubscribed = Counter("heliograph_prefs_unsubscribed_total", "Subscriptions ended", registry=registry)
        self.subscribers = Counter("heliograph_prefs_subscribers_total", "Subscribers listed", registry=registry)

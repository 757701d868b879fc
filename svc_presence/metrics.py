"""Every metric of svc_presence."""

from __future__ import annotations

from prometheus_client import Counter

from mesh.telemetry import Telemetry


class Metrics:
    """Counters with their children bound once."""

    def __init__(self, telemetry: Telemetry) -> None:
        registry = telemetry.registry
        sessions = Counter(
            "heliograph_presence_sessions_total",
            "Session entries written, by what was said of them",
            ["change"],
            registry=registry,
        )
        self._joined = sessions.labels("joined")
        self._left = sessions.labels("left")
        self._restored = sessions.labels("restored")
        self._superseded = sessions.labels("superseded")
        self.looked_up = Counter(
            "heliograph_presence_look_ups_total", "Recipients that were asked for", registry=registry
        )
        self.refused_leases = Counter(
            "heliograph_presence_leases_refused_total", "Renewals and reports with a stale lease", registry=registry
        )

    def count_report(self, joined: int, left: int, restored: int, superseded: int) -> None:
        """Counts one report."""
        self._joined.inc(joined)
        self._left.inc(left)
        self._restored.inc(restored)
        self._superseded.inc(superseded)

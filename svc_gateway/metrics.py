"""Every metric of svc_gateway."""

from __future__ import annotations

from mesh.telemetry import Telemetry
from svc_gateway.decisions import CloseCode


class Metrics:
    """Gauges and counters with their children bound once."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.sessions = telemetry.gauge("sessions_count", "Sessions that said hello")
        self.frozen = telemetry.gauge("frozen_sessions_count", "Sessions that had come when garbage was last frozen")
        self.deferred = telemetry.gauge("openings_deferred_count", "Openings that were told to come later, so far")
        self.links = telemetry.gauge("links_count", "Links from delivery processes")
        self.backlog = telemetry.gauge("backlog_bytes", "Bytes that wait in all transports")
        self.marks_waiting = telemetry.gauge("marks_waiting_count", "Marks that are not known to be durable")
        self.topics_waiting = telemetry.gauge("topic_changes_waiting_count", "Frames about topics not durable yet")
        self.streams = telemetry.gauge("streams_count", "gRPC streams of clients, with a session or not")
        self.replays_waiting = telemetry.gauge("replays_waiting_count", "Sessions that wait for a replay")
        self.accepted = telemetry.counter("deliveries", "Notifications that arrived over links, one a recipient")
        refused = telemetry.counter("deliveries_refused", "Those that no session took", ["kind"])
        self.refused_absent = refused.labels("absent")
        self.refused_behind = refused.labels("behind")
        self.refused_draining = refused.labels("draining")
        self.expired = telemetry.counter("deliveries_expired", "Those whose time was over before a session was asked")
        self.marks = telemetry.counter("marks", "Acks and marks of clients")
        self.marks_refused = telemetry.counter("marks_refused", "Mark frames for which there was no room")
        self.topics = telemetry.counter("topic_changes", "Frames about topics that became durable")
        self.topics_refused = telemetry.counter("topic_changes_refused", "Frames about topics that did not")
        self.replayed = telemetry.counter("replayed", "Notifications sent in replays")
        self.replays = telemetry.counter("replays", "Replays that were begun")
        self.replays_failed = telemetry.counter("replays_failed", "Replays that the inbox did not answer")
        self.frames_refused = telemetry.counter("frames_refused", "Client frames that could not be read")
        self.frames_unknown = telemetry.counter("frames_unknown", "Link frames of an unknown kind")
        self.undecodable = telemetry.counter("undecodable", "Notifications that have no JSON form")
        self.behind = telemetry.counter("behind", "Times that a socket was full")
        self.superseded = telemetry.counter("superseded", "Sessions replaced by a newer one of their device")
        self.lease_lost = telemetry.counter("leases_lost", "Times that a new epoch was taken")
        closes = telemetry.counter("closes", "Ended connections, by close code", ["code"])
        self._closes = {int(code): closes.labels(str(int(code))) for code in CloseCode}
        self._other_closes = closes.labels("other")

    def count_close(self, code: int) -> None:
        """Counts the end of a connection."""
        self._closes.get(code, self._other_closes).inc()

"""The gate: who is let in, what the refused are told, and that nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from heliograph.ingest.v1 import ingest_service_pb2
from heliograph.type.v1 import notification_pb2
from mesh.clock import ManualClock
from mesh.errors import DeadlineExceeded
from mesh.lanes import LaneUnavailable
from mesh.telemetry import Telemetry
from svc_ingest.gate import Gate
from svc_ingest.metrics import Metrics
from svc_ingest.overload import Level, Limits, Signals
from tests.support.publishing import DEFAULTS, publish_request

HIGH, NORMAL, BULK = (publish_request(category=category) for category in ("security", "general", "newsletter"))
LATE = {Level.BULK: 0.1, Level.NORMAL: 0.2, Level.HIGH: 1.0}


class Entrance:
    """A gate with its clock and its counters."""

    def __init__(self, in_flight: int = 10_000) -> None:
        self.clock = ManualClock()
        self.telemetry = Telemetry("ingest")
        self.gate = Gate(
            limits=Limits(append=0.5, loop_lag=0.2, in_flight=in_flight),
            default_priorities=DEFAULTS,
            clock=self.clock,
            metrics=Metrics(self.telemetry),
            random=random.Random(1).random,
        )

    def overload(self, level: Level) -> None:
        """Makes the event loop late until the level is reached."""
        for _ in range(4):
            self.gate.take(Signals(loop_lag=LATE[level]))
            self.clock.advance(0.2)
        assert self.gate.level is level

    def refused(self, *requests: ingest_service_pb2.PublishRequest) -> Sequence[int]:
        """Which of them are refused."""
        return sorted(self.gate.shed(requests))

    def shed(self, priority: str) -> float | None:
        """How many of a priority were refused so far."""
        return self.telemetry.registry.get_sample_value("heliograph_ingest_shed_events_total", {"priority": priority})


@pytest.mark.parametrize(("level", "refused"), [(Level.BULK, [2]), (Level.NORMAL, [1, 2]), (Level.HIGH, [0, 1, 2])])
def test_each_level_refuses_its_priorities(level: Level, refused: list[int]) -> None:
    """In one batch some are let in and some are not."""
    entrance = Entrance()
    assert entrance.refused(HIGH, NORMAL, BULK) == []
    entrance.overload(level)
    assert entrance.refused(HIGH, NORMAL, BULK) == refused
    counts = [entrance.shed(priority) for priority in ("high", "normal", "bulk")]
    assert counts == [float(place in refused) for place in range(3)]


def test_the_priority_is_the_events_own_or_its_categorys() -> None:
    """What nobody knows is treated as normal: it is judged later."""
    entrance = Entrance()
    entrance.overload(Level.BULK)
    urgent = publish_request(category="newsletter", priority=notification_pb2.PRIORITY_HIGH)
    lowered = publish_request(category="security", priority=notification_pb2.PRIORITY_BULK)
    unknown = publish_request(category="gossip")
    odd = publish_request()
    odd.event.priority = 77  # type: ignore[assignment]  # a number of a later contract
    assert entrance.refused(urgent, lowered, unknown, odd) == [1]


def test_the_refused_are_told_why_and_when() -> None:
    """Delays differ from call to call, within half of the nominal one, and grow the less an event matters."""
    entrance = Entrance()
    entrance.overload(Level.HIGH)
    for request, nominal in ((HIGH, 1.0), (NORMAL, 2.0), (BULK, 5.0)):
        failures = [entrance.gate.shed([request])[0] for _ in range(50)]
        delays = [failure.retry_delay or 0.0 for failure in failures]
        assert nominal * 0.5 <= min(delays) < nominal * 0.7
        assert nominal * 1.3 < max(delays) <= nominal * 1.5
        assert failures[0].reason == "OVERLOADED"
        assert failures[0].metadata["cause"] == "event loop is late"


def test_what_is_being_worked_on_is_bounded() -> None:
    """Each event that is let in counts, also within its own batch, and stops counting when its call ends."""
    entrance = Entrance(in_flight=10)
    assert entrance.refused(*[BULK] * 8) == [5, 6, 7]
    assert entrance.refused(*[HIGH] * 12) == [10, 11]
    with entrance.gate.working(9):
        assert entrance.refused(NORMAL, BULK, HIGH, HIGH) == [0, 1, 3]
    with pytest.raises(ZeroDivisionError), entrance.gate.working(10):
        raise ZeroDivisionError
    assert entrance.gate.in_flight == 0
    assert entrance.refused(HIGH, NORMAL, BULK) == []


def test_a_deadline_that_cannot_suffice_is_refused() -> None:
    """Compared with what appends take at present; when none has ended lately, any time will do."""
    entrance = Entrance()
    gate, clock = entrance.gate, entrance.clock
    gate.check_time(None)
    gate.check_time(0.001)
    for left in (0.0, -1.0):
        with pytest.raises(DeadlineExceeded, match="has passed"):
            gate.check_time(left)
    for _ in range(3):
        with gate.appending():
            clock.advance(0.2)
    gate.take(Signals())
    gate.check_time(0.2)
    with pytest.raises(DeadlineExceeded, match="150 ms are left, and an append takes 200 ms") as failure:
        gate.check_time(0.15)
    assert failure.value.reason == "DEADLINE_EXPIRED"
    clock.advance(10)
    gate.take(Signals())
    gate.check_time(0.001)


def test_slow_appends_shed() -> None:
    """The gate measures them itself, failed ones too, and lets in again when there are none any more."""
    entrance = Entrance()
    for _ in range(4):
        with suppress(OSError), entrance.gate.appending():
            entrance.clock.advance(0.6)
            raise OSError("disk full")
        entrance.gate.take(Signals())
    assert entrance.refused(HIGH, NORMAL, BULK) == [1, 2]
    for _ in range(60):
        entrance.clock.advance(0.2)
        entrance.gate.take(Signals())
    assert entrance.refused(HIGH, NORMAL, BULK) == []


def test_a_lane_that_is_gone_is_not_slow() -> None:
    """Appends that wait for it in vain shed nobody, and take no call's time: their callers are told what is gone."""
    entrance = Entrance()
    for _ in range(4):
        with suppress(LaneUnavailable), entrance.gate.appending():
            entrance.clock.advance(5.0)
            raise LaneUnavailable("no answer in time", unknown=True)
        entrance.gate.take(Signals())
    assert entrance.refused(HIGH, NORMAL, BULK) == []
    entrance.gate.check_time(0.5)

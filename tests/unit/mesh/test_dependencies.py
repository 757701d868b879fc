"""What a process needs from outside: losses and returns are told once each, by name."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from mesh.clock import ManualClock
from mesh.dependencies import Dependencies
from mesh.errors import Unavailable
from mesh.telemetry import Telemetry


class Engine:
    """An adapter whose engine can be taken away."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False

    async def ping(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


class _Case:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.telemetry = Telemetry("frame")
        self.dependencies = Dependencies(
            telemetry=self.telemetry, log=structlog.get_logger(), monotonic=self.clock.monotonic, answer=0.05
        )
        self.engine = Engine()
        self.told: list[tuple[str, bool]] = []
        self.dependencies.watch("inbox", "cassandra://h:1/k", self.engine)
        self.dependencies.on_change(lambda name, here: self.told.append((name, here)))

    def gauge(self) -> float | None:
        """What /metrics says."""
        return self.telemetry.registry.get_sample_value("heliograph_frame_dependency_up", {"dependency": "inbox"})


@pytest.fixture
def case() -> _Case:
    """One watched engine that is there."""
    return _Case()


async def test_the_first_look_tells_what_is_there(case: _Case) -> None:
    """Whoever asks before the first look learns nothing; after it, the truth."""
    assert (case.told, case.gauge(), case.dependencies.gone()) == ([], None, [])
    await case.dependencies.look()
    await case.dependencies.look()
    assert (case.told, case.gauge(), case.dependencies.gone()) == ([("inbox", True)], 1.0, [])


async def test_what_is_missing_from_the_start_is_told_at_once(case: _Case) -> None:
    """There is no good state to hold on to."""
    case.engine.error = Unavailable("refused", reason="STORE_UNAVAILABLE")
    await case.dependencies.look()
    assert (case.told, case.gauge(), case.dependencies.gone()) == ([("inbox", False)], 0.0, ["inbox"])


async def test_a_loss_and_a_return_have_one_line_each(case: _Case) -> None:
    """Two failures in a row are a loss; one answer is a return, with the time between."""
    await case.dependencies.look()
    with capture_logs() as lines:
        case.engine.error = Unavailable("refused", reason="STORE_UNAVAILABLE")
        await case.dependencies.look()
        assert (lines, case.gauge()) == ([], 1.0)
        for _ in range(3):
            await case.dependencies.look()
        case.clock.advance(7.5)
        case.engine.error = None
        for _ in range(2):
            await case.dependencies.look()
    assert [(line["event"], line["dependency"], line["where"]) for line in lines] == [
        ("dependency_lost", "inbox", "cassandra://h:1/k"),
        ("dependency_back", "inbox", "cassandra://h:1/k"),
    ]
    assert (lines[0]["error"], lines[1]["gone_s"]) == ("refused", 7.5)
    assert case.told == [("inbox", True), ("inbox", False), ("inbox", True)]


async def test_one_late_answer_is_no_loss(case: _Case) -> None:
    """A single failure between answers changes nothing, however often."""
    for error in (None, OSError("reset"), None, OSError("reset"), None):
        case.engine.error = error
        await case.dependencies.look()
    assert case.told == [("inbox", True)]


async def test_silence_is_a_loss(case: _Case) -> None:
    """An engine that takes the question and does not answer is gone, and holds up nobody for longer."""
    await case.dependencies.look()
    case.engine.hangs = True
    with capture_logs() as lines:
        await case.dependencies.look()
        await case.dependencies.look()
    assert [(line["event"], line["error"]) for line in lines] == [("dependency_lost", "no answer within 0.05 s")]


async def test_embedded_stores_are_not_watched(case: _Case) -> None:
    """What has no ping cannot go away by itself."""
    case.dependencies.watch("prefs", "sqlite:///prefs.db", object())
    assert case.dependencies.watched == ["inbox"]

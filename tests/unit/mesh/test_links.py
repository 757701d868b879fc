"""A stream that is kept open, whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from mesh.clock import ManualClock
from mesh.errors import Failure, InvalidArgument, Unavailable
from mesh.links import KeptStream, Pace
from mesh.streams import Bidi, accept, connect, live_calls
from mesh.telemetry import logger
from tests.support import echo
from tests.support.far_ends import running
from tests.support.wait import until

Stream = Bidi[StringValue, StringValue]

PACE = Pace(ping=0.005, silence=3.0, first_retry=0.002, last_retry=0.01)


class Far:
    """The other end: answers openings, keeps what it hears, and ends streams when it is told to."""

    def __init__(self) -> None:
        self.answers = True
        self.heard: list[str] = []
        self.streams: list[Stream] = []
        self._end = asyncio.Event()

    async def talk(self, requests: object, context: echo.Context) -> None:
        """Serves a stream."""
        stream: Stream = await accept(context, limit=16, marker="far-0")
        self.streams.append(stream)
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(stream.write_loop())
            ending = group.create_task(self._end.wait())
            reading = group.create_task(self._read(stream))
            await asyncio.wait([ending, reading], return_when=asyncio.FIRST_COMPLETED)
            for task in (ending, reading):
                task.cancel()
            stream.close()
            await writing

    async def _read(self, stream: Stream) -> None:
        while (frame := await stream.read()) is not None:
            self.heard.append(frame.value)
            if frame.value == "open" and self.answers:
                stream.send(StringValue(value="ready"))

    def say(self, text: str) -> None:
        """Says something on the newest stream."""
        self.streams[-1].send(StringValue(value=text))

    def end(self) -> None:
        """Ends every stream in order; the next ones live."""
        self._end.set()
        self._end = asyncio.Event()


class Near:
    """What is said on this side, and what became of it."""

    def __init__(self, running: echo.Echo) -> None:
        self._running = running
        self.events: list[str] = []
        self.failures: list[Failure | None] = []
        self.heard: list[str] = []
        self.at_once = self.leaves = False
        self.besides = 0
        self.clock = ManualClock()
        self.kept: KeptStream[StringValue, StringValue] = KeptStream(
            self, peer="far", clock=self.clock, log=logger(), pace=PACE
        )

    def connect(self) -> AbstractAsyncContextManager[Stream]:
        """See `Talk`."""
        self.events.append("connect")
        return connect(self._running.talk, metadata=self._running.channels.metadata(), limit=8)

    def opening(self) -> StringValue:
        """See `Talk`."""
        return StringValue(value="open")

    def opened(self, stream: Stream, answer: StringValue) -> None:
        """See `Talk`."""
        if answer.value != "ready":
            raise Unavailable("no answer to the opening", reason="")
        self.events.append("opened")

    async def beside(self) -> None:
        """See `Talk`."""
        self.besides += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.besides -= 1

    def ping(self, number: int) -> StringValue:
        """See `Talk`."""
        return StringValue(value=f"ping {number}")

    def take(self, frame: StringValue) -> None:
        """See `Talk`."""
        if frame.value == "nonsense":
            raise InvalidArgument("what?", reason="FRAME_INVALID")
        if frame.value == "bug":
            raise RuntimeError("a bug")
        self.heard.append(frame.value)

    def closed(self) -> None:
        """See `Talk`."""
        self.events.append("closed")

    def lost(self, failure: Failure | None) -> bool:
        """See `Talk`."""
        self.failures.append(failure)
        return self.at_once


@pytest.fixture
async def ends(run_dir: Path) -> AsyncIterator[tuple[Near, Far]]:
    """Both ends, nothing running on this side."""
    far = Far()
    async with echo.serving(run_dir, talk=far.talk) as server:
        yield Near(server), far
        await until(lambda: live_calls() == 0, what="all streams closed")


async def test_a_stream_is_opened_and_carries_frames_and_pings(ends: tuple[Near, Far]) -> None:
    """The opening is the first frame; pings are numbered; what runs beside ends with the stream."""
    near, far = ends
    async with running(near.kept.run):
        await until(lambda: near.besides == 1 and len(far.heard) >= 4)
        assert far.heard[:3] == ["open", "ping 1", "ping 2"]
        far.say("hello")
        await until(lambda: near.heard == ["hello"])
    assert near.besides == 0
    assert near.events == ["connect", "opened", "closed"]
    assert near.failures == []


@pytest.mark.parametrize("word", ["nonsense", "bug"])
async def test_what_breaks_a_stream_brings_a_new_one(ends: tuple[Near, Far], word: str) -> None:
    """A failure of the talk, or a bug in it."""
    near, far = ends
    async with running(near.kept.run):
        await until(lambda: "opened" in near.events)
        far.say(word)
        await until(lambda: near.events.count("opened") == 2)
    (failure,) = near.failures
    assert failure is not None
    assert failure.reason == {"nonsense": "FRAME_INVALID", "bug": "INTERNAL"}[word]
    assert near.events == ["connect", "opened", "closed"] * 2


@pytest.mark.parametrize(("leaves", "reason"), [(False, "PEER_UNAVAILABLE"), (True, "DRAINING")])
async def test_a_peer_that_ends_the_stream_is_called_again(ends: tuple[Near, Far], leaves: bool, reason: str) -> None:
    """The reason says whether it had announced it."""
    near, far = ends
    near.leaves = near.at_once = leaves
    async with running(near.kept.run):
        await until(lambda: "opened" in near.events)
        far.end()
        await until(lambda: near.events.count("opened") == 2)
    (failure,) = near.failures
    assert failure is not None
    assert (failure.reason, failure.message) == (reason, "far ended the stream")


async def test_a_silent_peer_is_left(ends: tuple[Near, Far]) -> None:
    """It says nothing for too long: the stream may be dead without anybody knowing."""
    near, far = ends
    async with running(near.kept.run):
        await until(lambda: "opened" in near.events)
        near.clock.advance(2.9)
        far.say("hello")
        await until(lambda: near.heard == ["hello"])
        near.clock.advance(2.9)
        pings = len(far.heard)
        await until(lambda: len(far.heard) >= pings + 3)
        assert near.failures == []
        near.clock.advance(0.2)
        await until(lambda: near.events.count("opened") == 2)
    (failure,) = near.failures
    assert failure is not None
    assert failure.message == "far was silent for 3 s"


async def test_a_peer_that_does_not_answer_the_opening_is_left(ends: tuple[Near, Far]) -> None:
    """Nothing runs beside a stream that never opened."""
    near, far = ends
    far.answers = False
    near.kept = KeptStream(near, peer="far", clock=near.clock, log=logger(), pace=Pace(silence=0.02, first_retry=0.002))
    async with running(near.kept.run):
        await until(lambda: len(near.failures) >= 2)
        far.answers = True
        await until(lambda: "opened" in near.events)
    assert near.failures[0] is not None
    assert near.failures[0].message == "far did not answer the opening"


async def test_tries_are_further_apart_until_a_stream_was_steady(
    ends: tuple[Near, Far], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure doubles the bound; one that lived long, or a talk that says so, begins anew."""
    near, far = ends
    attempts: list[int] = []

    async def pause(attempt: int) -> None:
        attempts.append(attempt)

    monkeypatch.setattr(near.kept, "pause", pause)

    async def end_one(*, after: float = 0.0) -> None:
        count = len(attempts)
        await until(lambda: near.events.count("opened") == count + 1)
        near.clock.advance(after)
        far.say("nonsense")
        await until(lambda: len(attempts) == count + 1)

    async with running(near.kept.run):
        for _ in range(3):
            await end_one()
        await end_one(after=5.1)
        await end_one()
        near.at_once = True
        await end_one()
    assert attempts[:6] == [1, 2, 3, 0, 1, 0]

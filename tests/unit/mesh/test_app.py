"""The frame of a process inside one event loop: order of start, drain and stop, loops, and what failures do."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import structlog

from mesh.app import App, LoopFailed, StartError
from mesh.clock import ManualClock
from mesh.errors import Unavailable
from mesh.settings import ServiceSettings
from tests.support.wait import until


class FrameSettings(ServiceSettings):
    service: ClassVar[str] = "frame"


class _Frame:
    """An app that writes down what happens to it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        values = {"run_dir": folder / "run", "data_dir": folder / "data", "drain_limit": 5.0, **changes}
        self.machine = ManualClock()
        self.app = App(name="frame", settings=FrameSettings(**values), clock=self.machine, random=lambda: 0.0)
        self.seen: list[str] = []
        self.app.on_ready(lambda ready: self.seen.append("ready" if ready else "unready"))

    def step(self, word: str, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
        """Returns a step that is written down and may fail."""

        async def run() -> None:
            self.seen.append(word)
            if error is not None:
                raise error

        return run

    def loop(self, word: str) -> Callable[[], Awaitable[None]]:
        """Returns a loop that runs until cancelled and writes that down."""

        async def run() -> None:
            self.seen.append(word)
            try:
                await asyncio.Event().wait()
            finally:
                self.seen.append(f"{word} over")

        return run


async def _forever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def _running(app: App) -> AsyncIterator[asyncio.Task[None]]:
    """Runs the app until it is ready; the body must see to its end."""
    task = asyncio.create_task(app.run())
    try:
        await until(lambda: app.started.is_set() or task.done(), what="the start")
        yield task
    finally:
        app.request_stop("test")
        await asyncio.wait([task])


@pytest.fixture
def frame(run_dir: Path) -> _Frame:
    """A fresh app in a short folder."""
    return _Frame(run_dir)


async def test_everything_happens_in_order(frame: _Frame) -> None:
    """Start in order, ready, unready first, drain in order, loops end, stop in reverse."""
    app = frame.app
    app.resource("a", frame.step("start a"), frame.step("stop a"))
    app.resource("b", frame.step("start b"), None)
    app.resource("c", None, frame.step("stop c"))
    app.supervise("loop", frame.loop("loop"))
    app.on_drain("one", frame.step("drain one"))
    app.on_drain("two", frame.step("drain two"))
    async with _running(app) as task:
        await until(lambda: "loop" in frame.seen)
        assert frame.seen == ["start a", "start b", "ready", "loop"]
        app.request_stop("first")
        app.request_stop("second")
        await task
    assert frame.seen[4:] == ["unready", "drain one", "drain two", "loop over", "stop c", "stop a"]


async def test_folders_are_made_for_the_owner_alone(frame: _Frame) -> None:
    """The folders for sockets and stores exist before the first resource starts, closed to others."""
    folders = (frame.app.settings.run_dir, frame.app.settings.data_dir)
    modes: list[int] = []

    async def look() -> None:
        modes.extend(folder.stat().st_mode & 0o777 for folder in folders)

    frame.app.resource("look", look, None)
    async with _running(frame.app):
        assert modes == [0o700, 0o700]


async def test_a_folder_that_cannot_be_made_is_named(run_dir: Path) -> None:
    """The start stops with the setting and the folder."""
    (run_dir / "file").touch()
    frame = _Frame(run_dir, data_dir=run_dir / "file" / "data")
    with pytest.raises(StartError, match=f"data_dir {run_dir}/file/data: Not a directory"):
        await frame.app.run()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unavailable("engine is away", reason="STORE_UNAVAILABLE"), "store: engine is away"),
        (OSError(28, "No space left on device", "/x/y"), "store: /x/y: No space left on device"),
        (TimeoutError(), "store: TimeoutError"),
        (StartError("store: is from a later version; upgrade"), "store: is from a later version; upgrade"),
    ],
)
async def test_a_start_that_fails_stops_what_had_started(frame: _Frame, error: Exception, text: str) -> None:
    """The failing resource and the later ones are not stopped, those before it are; nobody is told ready."""
    app = frame.app
    app.resource("lane", frame.step("start lane"), frame.step("stop lane"))
    app.resource("store", frame.step("start store", error), frame.step("stop store"))
    app.resource("server", frame.step("start server"), frame.step("stop server"))
    app.supervise("loop", frame.loop("loop"))
    app.on_drain("drain", frame.step("drain"))
    with pytest.raises(StartError) as caught:
        await app.run()
    assert str(caught.value) == text
    assert frame.seen == ["start lane", "start store", "stop lane"]


async def test_a_stop_during_the_start_gives_the_start_up(frame: _Frame) -> None:
    """A process that waits for a lock can be told to end."""
    app = frame.app
    app.resource("lane", frame.step("start lane"), frame.step("stop lane"))
    app.resource("lock", frame.loop("lock"), frame.step("stop lock"))
    task = asyncio.create_task(app.run())
    await until(lambda: "lock" in frame.seen)
    app.request_stop("test")
    await task
    assert frame.seen == ["start lane", "lock", "lock over", "stop lane"]


async def test_a_stop_before_the_start_starts_nothing(frame: _Frame) -> None:
    """A signal that came while the parts were built is not forgotten."""
    frame.app.resource("lane", frame.step("start lane"), frame.step("stop lane"))
    frame.app.request_stop("test")
    await frame.app.run()
    assert frame.seen == []


async def test_a_critical_loop_that_raises_skips_the_drain(frame: _Frame) -> None:
    """The failure is logged with its traceback, callers are told, resources stop, the drain is skipped."""
    app = frame.app
    broken = asyncio.Event()

    async def loop() -> None:
        await broken.wait()
        raise KeyError("what broke")

    app.resource("store", frame.step("start"), frame.step("stop"))
    app.supervise("reader", loop)
    app.supervise("other", frame.loop("other"))
    app.on_drain("drain", frame.step("drain"))
    with structlog.testing.capture_logs() as lines:
        async with _running(app) as task:
            broken.set()
            with pytest.raises(LoopFailed, match="reader"):
                await task
    assert frame.seen == ["start", "ready", "other", "unready", "other over", "stop"]
    (failed,) = [line for line in lines if line["event"] == "loop_failed"]
    assert (failed["loop"], failed["exc_info"]) == ("reader", True)


async def test_a_loop_broken_by_a_cancelled_call_fails_too(frame: _Frame) -> None:
    """A loop that awaits something cancelled by others does not just vanish."""

    async def loop() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    frame.app.supervise("reader", loop)
    with pytest.raises(LoopFailed, match="reader"):
        await frame.app.run()


async def test_a_failure_during_the_drain_cuts_it_short(frame: _Frame) -> None:
    """What the drain waits for may need the loop that just broke."""
    app = frame.app
    draining = asyncio.Event()

    async def drain() -> None:
        draining.set()
        await _forever()

    async def loop() -> None:
        await draining.wait()
        raise KeyError("late")

    app.on_drain("first", drain)
    app.on_drain("second", frame.step("second"))
    app.supervise("reader", loop)
    async with _running(app) as task:
        app.request_stop("test")
        with pytest.raises(LoopFailed):
            await task
    assert frame.seen == ["ready", "unready"]


async def test_late_and_broken_steps_do_not_stop_the_others(run_dir: Path) -> None:
    """Each step of draining and stopping is bounded, and its failure is only logged."""
    frame = _Frame(run_dir, drain_limit=0.05)
    app = frame.app
    app.resource("a", None, frame.step("stop a"))
    app.resource("b", None, frame.loop("stop b"))
    app.resource("c", None, frame.step("stop c", TimeoutError("its own")))
    app.on_drain("late", frame.loop("late"))
    app.on_drain("broken", frame.step("broken", KeyError("x")))
    app.on_drain("last", frame.step("last"))
    with structlog.testing.capture_logs() as lines:
        async with _running(app) as task:
            app.request_stop("test")
            await task
    assert frame.seen[1:] == [
        "unready",
        "late",
        "late over",
        "broken",
        "last",
        "stop c",
        "stop b",
        "stop b over",
        "stop a",
    ]
    faults = [(line["event"], line["step"]) for line in lines if line["event"].startswith("step_")]
    assert faults == [("step_late", "late"), ("step_failed", "broken"), ("step_failed", "c"), ("step_late", "b")]


async def test_callers_get_time_to_notice(run_dir: Path) -> None:
    """Between unready and the first drain step lies the configured delay."""
    frame = _Frame(run_dir, drain_delay=0.2)
    times: list[float] = []
    now = asyncio.get_running_loop().time

    async def drain() -> None:
        times.append(now())

    frame.app.on_ready(lambda ready: None if ready else times.append(now()))
    frame.app.on_drain("drain", drain)
    async with _running(frame.app) as task:
        frame.app.request_stop("test")
        await task
    assert times[1] - times[0] >= 0.19


async def test_restarting_loops_come_back(frame: _Frame) -> None:
    """A link that breaks, returns, or awaits a cancelled call is run again; the process goes on."""
    app = frame.app
    runs: list[int] = []

    async def link() -> None:
        runs.append(len(runs))
        match len(runs):
            case 1:
                raise Unavailable("peer is away", reason="")
            case 2:
                raise KeyError("bug")
            case 3:
                return
            case 4:
                raise asyncio.CancelledError
            case _:
                await _forever()

    app.supervise_restarting("link", link, base=0.01, cap=0.02)
    with structlog.testing.capture_logs() as lines:
        async with _running(app) as task:
            await until(lambda: len(runs) == 5)
            assert not task.done()
    causes = [line["cause"] for line in lines if line["event"] == "loop_restarts"]
    assert causes == ["peer is away", "KeyError", "returned", "cancelled"]
    assert [line["event"] for line in lines].count("loop_broken") == 1


async def test_restarts_back_off_and_forget(run_dir: Path) -> None:
    """Attempts count up while runs are short, and start anew after a run as long as the cap."""
    settings = FrameSettings(run_dir=run_dir / "run", data_dir=run_dir / "data")
    app = App(name="frame", settings=settings, random=lambda: 0.01)
    runs: list[int] = []
    long_enough = 0.05
    now = asyncio.get_running_loop().time

    async def link() -> None:
        runs.append(len(runs))
        if len(runs) == 4:
            begin = now()
            await until(lambda: now() - begin > long_enough)
        if len(runs) >= 6:
            await _forever()

    app.supervise_restarting("link", link, base=0.01, cap=long_enough)
    with structlog.testing.capture_logs() as lines:
        async with _running(app):
            await until(lambda: len(runs) == 6)
    assert [line["attempt"] for line in lines if line["event"] == "loop_restarts"] == [0, 1, 2, 0, 1]


async def test_loops_may_come_and_go_while_running(frame: _Frame) -> None:
    """A link to a node that appeared later begins at once, and ends alone when its node is gone."""
    app = frame.app
    async with _running(app) as task:
        link = app.supervise_restarting("link", frame.loop("link"))
        await until(lambda: "link" in frame.seen)
        link.cancel()
        await until(lambda: "link over" in frame.seen)
        assert not task.done()
    assert frame.seen.count("link") == 1


async def test_a_loop_cancelled_before_the_start_never_runs(frame: _Frame) -> None:
    """Cancelling a registered loop takes it out."""
    frame.app.supervise("loop", frame.loop("loop")).cancel()
    async with _running(frame.app):
        pass
    assert "loop" not in frame.seen


async def test_spawned_work_may_finish_and_its_failure_ends_nothing(frame: _Frame) -> None:
    """Clean-up that a cancelled loop left behind is completed before resources stop."""
    app = frame.app

    async def clean_up() -> None:
        await until(lambda: app.stopping)
        await asyncio.sleep(0)
        frame.seen.append("cleaned")

    async def loop() -> None:
        try:
            await _forever()
        finally:
            app.spawn(clean_up())

    app.resource("store", None, frame.step("stop"))
    app.supervise("loop", loop)
    with structlog.testing.capture_logs() as lines:
        async with _running(app) as task:
            await app.spawn(frame.step("spawned", KeyError("x"))())  # type: ignore[arg-type]  # the step is a coroutine
            assert not task.done()
    assert frame.seen == ["ready", "spawned", "unready", "cleaned", "stop"]
    assert [line["event"] for line in lines].count("spawned_work_failed") == 1


async def test_spawned_work_that_is_cancelled_before_it_began_is_closed(frame: _Frame) -> None:
    """Nobody else would: the interpreter would complain of a coroutine that nobody awaited."""
    async with _running(frame.app):
        work = _forever()
        task = frame.app.spawn(work)
        task.cancel()
        await asyncio.wait({task})
        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


async def test_spawning_outside_a_run_is_refused(frame: _Frame) -> None:
    """Work that nobody would await is not taken."""
    with pytest.raises(RuntimeError, match="not running"):
        frame.app.spawn(_forever())


async def test_a_task_that_does_not_end_is_given_up(run_dir: Path) -> None:
    """After its limit the process is told that a task ignores its cancellation, by name."""
    frame = _Frame(run_dir, drain_limit=0.05)
    app = frame.app
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                frame.seen.append("ignored")

    app.supervise("stubborn", stubborn)
    app.end_when_stuck(release.set)
    with structlog.testing.capture_logs() as lines:
        async with _running(app) as task:
            app.request_stop("test")
            await task
    assert "ignored" in frame.seen
    assert [line["tasks"] for line in lines if line["event"] == "tasks_stuck"] == [["stubborn"]]


async def test_a_cancelled_run_still_stops_its_resources(frame: _Frame) -> None:
    """A test or program that holds several apps may cancel one; nothing stays open."""
    frame.app.resource("store", frame.step("start"), frame.step("stop"))
    frame.app.supervise("loop", frame.loop("loop"))
    async with _running(frame.app) as task:
        await until(lambda: "loop" in frame.seen)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert frame.seen == ["start", "ready", "loop", "unready", "loop over", "stop"]


async def test_a_clock_that_is_set_makes_unready_until_it_is_right(run_dir: Path) -> None:
    """The process lives on, and is ready again by itself."""
    frame = _Frame(run_dir)
    async with _running(frame.app):
        for step in (-60.0, 60.0):
            frame.machine.step_wall(step)
            frame.app.clock_watch.look()
        assert frame.seen == ["ready", "unready", "ready"]
        frame.machine.step_wall(60.0)
        await until(lambda: frame.seen[-1] == "unready", what="the app's own look")
        assert not frame.app.stopping

"""The frame of a process: ordered start, supervised loops, ordered drain and stop, signals, exit codes.

Exit codes: 0 after a drain; 1 when a critical loop failed; 2 when the start failed, with one line on standard error.
Must not know what the process does: a service's `main.wire` registers everything here.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from mesh import loops, process, telemetry
from mesh.clock import Clock, SteadyClock, SystemClock
from mesh.clock_watch import ClockWatch
from mesh.dependencies import Dependencies
from mesh.errors import Failure, StartError
from mesh.loops import SupervisedLoop
from mesh.readiness import Readiness
from mesh.settings import ServiceSettings, document, load, render, uvloop_wanted
from mesh.telemetry import Telemetry

__all__ = ["App", "LoopFailed", "StartError", "SupervisedLoop", "run"]

S = TypeVar("S", bound=ServiceSettings)
Step = Callable[[], Awaitable[None]]


class LoopFailed(Exception):
    """A critical loop raised; the text is the loop's name."""


class _Resource(msgspec.Struct, frozen=True):
    name: str
    start: Step | None
    stop: Step | None


class App:
    """One per process.

    Start: resources in the order of their registration, then loops, then ready. Drain: unready, a delay for callers
    to notice, the drain steps in order. Then loops are cancelled, spawned work may finish, and resources stop in
    reverse order. Each step is bounded by the setting `drain_limit`; a step that fails or is late is logged and the
    next one follows.

    Attributes:
        name: the service.
        settings: what the process was told.
        clock: the process's clock; no step of the machine's moves it.
        clock_watch: notices such a step.
        readiness: whether the process takes work.
        telemetry: its metrics.
        log: its logger.
        dependencies: watches what it needs from outside.
        started: set once everything has started and the process is ready.
    """

    def __init__(
        self,
        *,
        name: str,
        settings: ServiceSettings,
        clock: Clock | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock = SteadyClock(SystemClock() if clock is None else clock)
        self.telemetry = Telemetry(name)
        self.log = telemetry.logger().bind(service=name, process=settings.process)
        self.dependencies = Dependencies(telemetry=self.telemetry, log=self.log, monotonic=self.clock.monotonic)
        self.readiness = Readiness()
        self.clock_watch = ClockWatch(clock=self.clock, telemetry=self.telemetry, log=self.log)
        self.clock_watch.on_change(self.readiness.see_clock)
        self.started = asyncio.Event()
        self._random = random
        self._resources: list[_Resource] = []
        self._loops: list[SupervisedLoop] = []
        self._drains: list[tuple[str, Step]] = []
        self._group: asyncio.TaskGroup | None = None
        self._scope: asyncio.Timeout | None = None
        self._stop = asyncio.Event()
        self._begun = False
        self._finishing = False
        self._failed_loop = ""
        self._loop_tasks: set[asyncio.Task[None]] = set()
        self._spawned: set[asyncio.Task[None]] = set()
        self._give_up: Callable[[], None] | None = None

    # ---------------------------------------------------------------- registration

    def resource(self, name: str, start: Step | None, stop: Step | None) -> None:
        """Registers what is started in order and stopped in reverse; a resource that fails to start is not stopped."""
        self._resources.append(_Resource(name=name, start=start, stop=stop))

    def supervise(self, name: str, loop: Step) -> SupervisedLoop:
        """Registers a loop whose exception ends the process; it begins after all resources have started."""
        return self._add(loops.critical(name, loop, log=self.log, fail=self._fail))

    def supervise_restarting(self, name: str, loop: Step, *, base: float = 0.1, cap: float = 5.0) -> SupervisedLoop:
        """Registers a loop that is restarted, with full-jitter back-off, whenever it raises or returns.

        May also be called while the process runs; the loop then begins at once.

        Args:
            name: for logs.
            loop: makes one run of the loop.
            base: bound of the first wait, seconds.
            cap: largest bound, seconds; a run at least that long starts the back-off anew.
        """
        return self._add(loops.restarting(name, loop, log=self.log, random=self._random, base=base, cap=cap))

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Runs short clean-up work that belongs to nobody else; its exception is logged and ends nothing.

        Raises:
            RuntimeError: the app is not running.
        """
        if self._group is None:
            coroutine.close()
            raise RuntimeError("the app is not running: there is nothing yet, or any more, that could own this work")
        task = self._group.create_task(self._run_spawned(coroutine))
        # One that is cancelled before its first step would leave the coroutine as nobody's.
        task.add_done_callback(lambda _: coroutine.close())
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    def on_ready(self, set_serving: Callable[[bool], None]) -> None:
        """Registers what learns that the process is ready (True) or not any more (False)."""
        self.readiness.on_change(set_serving)

    def on_drain(self, name: str, drain: Step) -> None:
        """Registers a step of the drain: hand back what is unfinished, say goodbye, wait for the last answers."""
        self._drains.append((name, drain))

    # ---------------------------------------------------------------- running

    def request_stop(self, cause: str) -> None:
        """Begins the drain; a start that is still under way is given up. Once is enough, more does nothing."""
        if self._stop.is_set():
            return
        self.log.info("stopping", cause=cause)
        self._stop.set()
        self._interrupt()

    @property
    def stopping(self) -> bool:
        """True from the request to stop, or the failure of a critical loop, on."""
        return self._stop.is_set()

    def end_when_stuck(self, give_up: Callable[[], None]) -> None:
        """Registers what ends the process when a task does not end after it was cancelled."""
        self._give_up = give_up

    async def run(self, *, when_started: Callable[[], None] | None = None) -> None:
        """Starts, serves until `request_stop`, drains and stops.

        Args:
            when_started: called once when everything has started.

        Raises:
            StartError: a resource could not start; those before it are stopped again.
            LoopFailed: a critical loop raised; the drain was skipped, all resources are stopped.
        """
        # Kept and raised outside: the group would wrap it.
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self._live(group, when_started)
            except Exception as error:
                failure = error
            finally:
                self._group = None
        if failure is not None:
            raise failure
        if self._failed_loop:
            raise LoopFailed(self._failed_loop)

    async def _live(self, group: asyncio.TaskGroup, when_started: Callable[[], None] | None) -> None:
        started: list[_Resource] = []
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            if self._stop.is_set() or not await self._until_interrupted(self._start(started)):
                return
            self._begin_loops(group)
            self.readiness.open(True)
            if when_started is not None:
                when_started()
            # Only now: what is collected after the start keeps nobody waiting.
            self.telemetry.watch_collections()
            self.started.set()
            self.log.info("ready", start_s=round(loop.time() - begin, 3), loop=type(loop).__module__)
            await self._stop.wait()
            if not self._failed_loop:
                await self._until_interrupted(self._drain())
        finally:
            begin = loop.time()
            await self._finish(started)
            self.log.info("stopped", stop_s=round(loop.time() - begin, 3))

    async def _until_interrupted(self, work: Coroutine[Any, Any, None]) -> bool:
        """Awaits the work; False when `_interrupt` cut it short."""
        scope = self._scope = asyncio.timeout(None)
        try:
            async with scope:
                await work
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._scope = None
        return not scope.expired()

    def _interrupt(self) -> None:
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def _start(self, started: list[_Resource]) -> None:
        self._make_folders()
        if self.settings.metrics_port:
            self.telemetry.serve(self.settings.metrics_port)
        for resource in self._resources:
            if resource.start is not None:
                try:
                    await resource.start()
                except (Failure, OSError) as error:
                    raise StartError(f"{resource.name}: {process.explain(error)}") from error
            started.append(resource)

    def _make_folders(self) -> None:
        for name, folder in (("run_dir", self.settings.run_dir), ("data_dir", self.settings.data_dir)):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise StartError(f"{name} {folder}: {error.strerror}; give a folder this process may make") from None

    def _add(self, loop: SupervisedLoop) -> SupervisedLoop:
        if self._begun and self._group is not None and not self._finishing:
            self._begin(self._group, loop)
        else:
            self._loops.append(loop)
        return loop

    def _begin_loops(self, group: asyncio.TaskGroup) -> None:
        self.supervise("loop_lag", self.telemetry.run_loop_lag)
        self.supervise("clock_watch", self.clock_watch.run)
        if self.dependencies.watched:
            self.supervise("dependencies", self.dependencies.run)
        self._begun = True
        for loop in self._loops:
            self._begin(group, loop)

    def _begin(self, group: asyncio.TaskGroup, loop: SupervisedLoop) -> None:
        task = loop.begin(group)
        if task is not None:
            self._loop_tasks.add(task)
            task.add_done_callback(self._loop_tasks.discard)

    def _fail(self, name: str) -> None:
        # While the process stops anyway, a loop that breaks at its cancellation changes nothing.
        if not self._finishing:
            self._failed_loop = self._failed_loop or name
            self._stop.set()
            self._interrupt()

    async def _run_spawned(self, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await coroutine
        except Exception:
            self.log.exception("spawned_work_failed")

    # ---------------------------------------------------------------- drain and stop

    async def _drain(self) -> None:
        self.readiness.open(False)
        await asyncio.sleep(self.settings.drain_delay)
        for name, drain in self._drains:
            await self._bounded("drain", name, drain)

    async def _finish(self, started: Sequence[_Resource]) -> None:
        self._finishing = True
        self.readiness.open(False)
        await self._end(self._loop_tasks, grace=0.0)
        await self._end(self._spawned, grace=self.settings.drain_limit)
        for resource in reversed(started):
            if resource.stop is not None:
                await self._bounded("stop", resource.name, resource.stop)
        await self._end(self._spawned, grace=0.0)
        # In a thread: it waits until the metrics server's own thread is over.
        await asyncio.to_thread(self.telemetry.close)

    async def _bounded(self, kind: str, name: str, step: Step) -> None:
        limit = self.settings.drain_limit
        try:
            async with asyncio.timeout(limit) as scope:
                await step()
        except Exception:
            if scope.expired():
                self.log.error("step_late", kind=kind, step=name, limit_s=limit)
            else:
                self.log.exception("step_failed", kind=kind, step=name)

    async def _end(self, tasks: set[asyncio.Task[None]], grace: float) -> None:
        """Waits for the tasks, then cancels them; those that do not obey are given up with the process."""
        left = set(tasks)
        if left and grace:
            _, left = await asyncio.wait(left, timeout=grace)
        for task in left:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=self.settings.drain_limit)
        if left:
            self.log.error("tasks_stuck", tasks=sorted(task.get_name() for task in left))
            if self._give_up is not None:
                self._give_up()


# ---------------------------------------------------------------- the process


def run(
    name: str, settings_model: type[S], wire: Callable[[App, S], None], argv: Sequence[str] | None = None
) -> NoReturn:
    """Runs a service as this process and exits.

    The event loop is uvloop where it is installed, unless HELIOGRAPH_LOOP=asyncio. SIGTERM and SIGINT begin the
    drain; a second signal ends the process at once, with 128 + the signal's number.

    Args:
        name: the service.
        settings_model: its settings.
        wire: builds the process's parts and registers them with the app; called once, inside the event loop.
        argv: flags without the program's name; the process's own when left out.
    """
    try:
        code = _run(name, settings_model, wire, sys.argv[1:] if argv is None else argv)
    except StartError as error:
        # Whatever the text is made of, it stays one line.
        print(f"heliograph {name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        code = 2
    sys.exit(code)


def _run(name: str, model: type[S], wire: Callable[[App, S], None], argv: Sequence[str]) -> int:
    options = process.read_options(argv)
    if options.help:
        print(process.describe_flags(name, document(model)))
        return 0
    if options.parent is not None:
        process.die_with_parent(options.parent)
    settings = load(model, options.rest)
    factory = process.loop_factory(uvloop_wanted())
    if options.show_config:
        print(render(settings), end="")
        return 0
    if options.check_config:
        print(f"heliograph {name}: the configuration is valid")
        return 0
    telemetry.configure_logs(name, settings.log_level, process=settings.process)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(name, settings, wire))


async def _serve(name: str, settings: S, wire: Callable[[App, S], None]) -> int:
    app = App(name=name, settings=settings)
    app.end_when_stuck(lambda: process.leave_at_once(1))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, app, number)
    try:
        wire(app, settings)
    except (Failure, OSError) as error:
        raise StartError(process.explain(error)) from error
    try:
        await app.run(when_started=process.tune_collector)
    except StartError:
        raise
    except Exception as error:
        if not isinstance(error, LoopFailed):
            app.log.exception("crashed")
        return 1
    return 0


def _on_signal(app: App, number: signal.Signals) -> None:
    if app.stopping:
        app.log.warning("left_at_once", signal=number.name)
        process.leave_at_once(128 + number)
    app.request_stop(number.name)

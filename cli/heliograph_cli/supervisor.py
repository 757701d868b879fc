"""Starts processes, keeps them running, and stops them in order.

Every child gets a session of its own, so that Ctrl-C at the terminal reaches this process alone, and ends by itself
when this process is gone. A child that cannot start at all ends the whole start with its own last words; later ones are
started again with full-jitter back-off. Must run in the main thread: children die with the thread that started them.
Must not know what the processes do.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from heliograph_cli import tails
from heliograph_cli.failures import FAILED, USAGE, CommandFailed
from heliograph_cli.plan import Process, stop_order
from heliograph_cli.record import State
from mesh.backoff import full_jitter

BACKOFF_BASE_S: Final = 0.2
BACKOFF_CAP_S: Final = 5.0
STOP_LIMIT_S: Final = 12.0

_FIRST_POLL_S = 0.03
_LONGEST_POLL_S = 0.25
_TAIL_S = 0.25
# Of one log file; as much again lies in its older one.
_LARGEST_LOG = 64 << 20
_START_FAILED = 2
# A process that never served and ended so often will not serve.
_FIRST_TRIES = 5
_WRAPPER: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py")))


class Child:
    """One process that is kept running.

    Attributes:
        process: what it is.
        running: the operating system's process; None while there is none.
        state: how it is.
        restart_count: how often it was started again.
        proved: it served at least once, so its files and settings are good.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.running: asyncio.subprocess.Process | None = None
        self.state: State = "stopped"
        self.restart_count = 0
        self.proved = False
        self.log_offset = 0

    @property
    def pid(self) -> int:
        """Its process id; 0 while it does not run."""
        return self.running.pid if self.running is not None else 0


class Supervisor:
    """Keeps processes running until it is told to stop.

    Args:
        processes: what to run.
        environ: the children's environment.
        is_ready: asks once whether a process takes work.
        before_stop: called before a process gets SIGTERM; its failure is ignored by itself.
        say: shows a line: process, text, and whether it is a warning.
        changed: called whenever a child's state changed.
        stop_limit: seconds until a process that does not stop is killed.
        backoff_base: bound of the first pause before a restart, in seconds.
        draw: returns a random number in [0, 1).
        clock_agrees: says whether the machine's clock was left alone; while it was set, nothing is started again.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        environ: Mapping[str, str],
        is_ready: Callable[[Process], Awaitable[bool]],
        before_stop: Callable[[Process], Awaitable[None]],
        say: Callable[[str, str, bool], None],
        changed: Callable[[], None],
        stop_limit: float = STOP_LIMIT_S,
        backoff_base: float = BACKOFF_BASE_S,
        draw: Callable[[], float] = random.random,
        clock_agrees: Callable[[], bool] = lambda: True,
    ) -> None:
        self.children = {process.name: Child(process) for process in processes}
        self._environ = dict(environ)
        self._is_ready = is_ready
        self._before_stop = before_stop
        self._say = say
        self._changed = changed
        self._stop_limit = stop_limit
        self._backoff_base = backoff_base
        self._draw = draw
        self._clock_agrees = clock_agrees
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        self._fault: CommandFailed | None = None

    @property
    def stopping(self) -> bool:
        """True from the request to stop on."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Begins to stop; asked a second time, kills what is left."""
        if not self._stop.is_set():
            self._stop.set()
            return
        for child in self.children.values():
            if child.running is not None and child.running.returncode is None:
                child.running.kill()

    async def run(self, *, ready_limit: float, when_ready: Callable[[], None]) -> None:
        """Starts everything, waits until all of it is ready, keeps it running, and stops it in order.

        Args:
            ready_limit: seconds until everything must be ready.
            when_ready: called once when it is.

        Raises:
            CommandFailed: a process cannot start, or not everything was ready in time; all of it was stopped.
        """
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.request_stop)
        try:
            async with asyncio.TaskGroup() as group:
                follower = group.create_task(self._follow())
                keepers = [group.create_task(self._keep(child)) for child in self.children.values()]
                try:
                    await self._until_ready(ready_limit, when_ready)
                    await self._stop.wait()
                finally:
                    self._stop.set()
                    await self._stop_all()
                    await asyncio.wait(keepers)
                    follower.cancel()
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
        if self._fault is not None:
            raise self._fault

    # ---------------------------------------------------------------- start

    async def _until_ready(self, limit: float, when_ready: Callable[[], None]) -> None:
        ends = [asyncio.ensure_future(self._ready.wait()), asyncio.ensure_future(self._stop.wait())]
        try:
            await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        if self._stop.is_set():
            return
        if self._ready.is_set():
            when_ready()
            return
        late = [child for child in self.children.values() if not child.proved]
        words = "; ".join(self._last_words(child) or child.process.name for child in late[:1])
        names = ", ".join(child.process.name for child in late)
        self._give_up(CommandFailed(f"not ready within {limit:g} s: {names} (last said: {words})", FAILED))

    def _give_up(self, fault: CommandFailed) -> None:
        # The first fault is the cause; those after it may be its consequences.
        self._fault = self._fault or fault
        self._stop.set()

    # ---------------------------------------------------------------- one child

    async def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        attempt = 0
        while not self._stop.is_set():
            begun = loop.time()
            code = await self._live(child)
            if self._stop.is_set():
                break
            if not child.proved and (_cannot_start(child.process, code) or child.restart_count >= _FIRST_TRIES):
                words = self._last_words(child) or f"ended with exit code {code}"
                self._give_up(CommandFailed(f"{child.process.name}: {words}", USAGE))
                break
            attempt = 0 if loop.time() - begun > BACKOFF_CAP_S else attempt
            wait = full_jitter(attempt, base=self._backoff_base, cap=BACKOFF_CAP_S, random=self._draw())
            attempt += 1
            child.restart_count += 1
            self._enter(child, "waiting")
            self._say(child.process.name, f"{_how(code)}; starting it again in {wait:.1f} s", True)
            await _first(self._stop.wait(), wait)
            await self._until_the_clock_agrees(child)
        self._enter(child, "stopped")

    async def _until_the_clock_agrees(self, child: Child) -> None:
        """Waits: a process takes the time of its start for the right one, and what it writes bears it."""
        if self._clock_agrees():
            return
        text = (
            "waits: this machine's clock was set; put it right, or if it is right now, stop everything and start anew"
        )
        self._say(child.process.name, text, True)
        while not self._stop.is_set() and not self._clock_agrees():
            await _first(self._stop.wait(), _LONGEST_POLL_S)

    async def _live(self, child: Child) -> int:
        """Starts the child and returns how it ended."""
        process = child.process
        child.log_offset = process.log.stat().st_size if process.log.exists() else 0
        argv = _complete(process)
        descriptor = os.open(process.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            running = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            self._give_up(CommandFailed(f"{process.name}: {argv[0]}: {error.strerror}", USAGE))
            return _START_FAILED
        finally:
            os.close(descriptor)
        child.running = running
        self._enter(child, "starting")
        self._say(process.name, f"started (pid {running.pid})", False)
        watching = asyncio.ensure_future(self._watch(child))
        try:
            if self._stop.is_set():
                # It was on its way when everything else was told to stop.
                running.kill()
            return await running.wait()
        finally:
            watching.cancel()
            child.running = None

    async def _watch(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        begun, pause = loop.time(), _FIRST_POLL_S
        while not await self._is_ready(child.process):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)
        if self._stop.is_set():
            return
        again, child.proved = child.proved, True
        self._enter(child, "serving")
        if again:
            self._say(child.process.name, f"serves again after {loop.time() - begun:.1f} s", False)
        if all(one.proved for one in self.children.values()):
            self._ready.set()

    def _enter(self, child: Child, state: State) -> None:
        child.state = state
        self._changed()

    def _last_words(self, child: Child) -> str:
        words = tails.last_line(child.process.log, child.log_offset)
        # A service begins with its own name, which stands before its words already.
        return words.removeprefix(f"heliograph {child.process.service}: ")

    # ---------------------------------------------------------------- stop

    async def _stop_all(self) -> None:
        for group in stop_order([child.process for child in self.children.values()]):
            await asyncio.gather(*(self._stop_one(self.children[process.name]) for process in group))

    async def _stop_one(self, child: Child) -> None:
        running = child.running
        if running is None:
            return
        self._enter(child, "stopping")
        await self._before_stop(child.process)
        if running.returncode is None:
            running.terminate()
        if not await _first(running.wait(), self._stop_limit):
            self._say(child.process.name, f"does not stop within {self._stop_limit:g} s; killed", True)
            running.kill()
            await running.wait()
        code = running.returncode or 0
        # Envoy's answer to SIGTERM is an ordinary end, a service's is exit code 0; anything else is worth a look.
        self._say(child.process.name, "stopped" if code in (0, -signal.SIGTERM) else _how(code), code > 0)

    # ---------------------------------------------------------------- logs

    async def _follow(self) -> None:
        """Shows the children's warnings; not while they start or stop, when peers miss each other as they must."""
        loop = asyncio.get_running_loop()
        alarms = tails.Alarms(self._alarm)
        followed = [(name, tails.Tail(child.process.log)) for name, child in self.children.items()]
        while not self._stop.is_set():
            for name, tail in followed:
                for line in tail.read():
                    if self._ready.is_set():
                        alarms.hear(name, line, loop.time())
                tails.shrink(self.children[name].process.log, _LARGEST_LOG)
            await asyncio.sleep(_TAIL_S)

    def _alarm(self, name: str, line: tails.Line, hidden: int) -> None:
        more = f" ({hidden} more of these)" if hidden else ""
        self._say(name, tails.show(line) + more, True)


def _complete(process: Process) -> tuple[str, ...]:
    """Returns the arguments with which the process ends when this one is gone."""
    parent = str(os.getpid())
    if process.kind == "service":
        return (*process.argv, f"--die-with-parent={parent}")
    return (*_WRAPPER, parent, *process.argv)


def _cannot_start(process: Process, code: int) -> bool:
    """Says whether starting again is of no use: a service says so with its exit code, an Envoy has just one."""
    return code == _START_FAILED if process.kind == "service" else code > 0


def _how(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"ended with exit code {code}"


async def _first(event: Awaitable[object], limit: float) -> bool:
    """Waits for something, at most so long; False when the time was over."""
    try:
        async with asyncio.timeout(limit):
            await event
    except TimeoutError:
        return False
    return True

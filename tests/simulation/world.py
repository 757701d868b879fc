"""The simulated machines: who lives, what is slow, what is cut, and where a crash may strike.

Every effect of a process goes through here: a message that leaves, a transaction that is done. Around each is a named
hook, and a run may say at which of them a process dies. What a dead process still does has no effect on anybody.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec

WALL_BASE_S = 1_700_000_000.0

_OWNERS: weakref.WeakKeyDictionary[asyncio.Task[Any], Host] = weakref.WeakKeyDictionary()
_HOST: contextvars.ContextVar[Host] = contextvars.ContextVar("simulated_host")


class HostClock:
    """A machine's clocks: the wall clock may differ from the others', durations never do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew: float = 0.0) -> None:
        self._loop = loop
        self.skew = skew

    def wall(self) -> float:
        """Returns Unix time as this machine believes it."""
        return WALL_BASE_S + self._loop.time() + self.skew

    def monotonic(self) -> float:
        """Returns seconds; all machines agree."""
        return self._loop.time() + 1_000.0

    def agrees(self) -> bool:
        """Returns True: nobody sets a clock while a process runs."""
        return True


class Host:
    """One process, from its start to its death; the next one under its name is another host."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self.name = name
        self.alive = True
        self.clock = HostClock(world.loop, skew)
        self.tasks: dict[asyncio.Task[Any], None] = {}
        # Closed when it dies: what an operating system would take back.
        self.held: list[Callable[[], None]] = []
        self.context = contextvars.copy_context()
        self.context.run(_HOST.set, self)

    @property
    def kind(self) -> str:
        """The name without the number of a node or the name of a person."""
        return self.name.partition(":")[0].rstrip("0123456789").rstrip("-")


def current() -> Host | None:
    """Returns the machine that the running task is on; None outside of all."""
    return _HOST.get(None)


class Trouble(msgspec.Struct):
    """What one store does to its callers for a while.

    Attributes:
        kind: "slow": answers late; "stalled": done late, and answered then; "lost": done, and answered with a failure;
            "refused": not done; "late": answered with a failure, and done only later; "busy": put off, which only a
            channel can say.
        seconds: how late.
        share: of the transactions that are hit.
    """

    kind: Literal["slow", "stalled", "lost", "refused", "late", "busy"]
    seconds: float
    share: float = 1.0


class World:
    """One run.

    Attributes:
        loop: its time.
        random: every choice of a run comes from here.
        visited: hooks that were passed, and how often.
        crashed: hooks at which a process died.
        hit: transactions that a store's trouble has changed, by store.
        held: messages that a cut held, by the two ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.random = random.Random(seed)
        self.hosts: dict[str, Host] = {}
        self.visited: Counter[str] = Counter()
        self.crashed: Counter[str] = Counter()
        self.troubles: dict[str, Trouble] = {}
        self.hit: Counter[str] = Counter()
        self.held: Counter[frozenset[str]] = Counter()
        self.effects = 0
        self.on_crash: Callable[[Host], None] = lambda host: None
        # What broke on a living machine and nobody took: a fault of the code or of the simulation.
        self.broken: list[str] = []
        self._armed: dict[str, int] = {}
        self._cut: dict[frozenset[str], float] = {}
        loop.set_task_factory(_own)
        loop.set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        task = context.get("future") or context.get("task")
        host = _OWNERS.get(task) if isinstance(task, asyncio.Task) else None
        if host is None or host.alive:
            error = context.get("exception")
            trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
            self.broken.append(f"{context.get('message')} {trace}")

    # ------------------------------------------------------------ machines

    def boot(self, name: str, skew: float = 0.0) -> Host:
        """Starts a machine under a name that no living one has."""
        assert name not in self.hosts or not self.hosts[name].alive
        host = self.hosts[name] = Host(self, name, skew)
        return host

    def start(self, host: Host, coroutine: Coroutine[Any, Any, Any], label: str = "") -> asyncio.Task[Any]:
        """Runs work on a machine."""
        return host.context.run(self.loop.create_task, coroutine, name=label or host.name)

    def crash(self, host: Host) -> None:
        """Ends a machine without any goodbye; its tasks end too, and whatever they still try does nothing."""
        if not host.alive:
            return
        host.alive = False
        for close in reversed(host.held):
            close()
        self.on_crash(host)
        for task in list(host.tasks):
            task.cancel()

    # ------------------------------------------------------------ hooks

    def arm(self, hook: str, count: int) -> None:
        """Lets the process die at the so-manieth pass of a hook from now on."""
        self._armed[hook] = count

    def hook(self, host: Host, name: str) -> bool:
        """Passes a hook; False when the process died here."""
        label = f"{host.kind} {name}"
        self.visited[label] += 1
        self.effects += 1
        if label in self._armed:
            self._armed[label] -= 1
            if not self._armed[label]:
                del self._armed[label]
                self.crashed[label] += 1
                self.crash(host)
        return host.alive

    # ------------------------------------------------------------ delays and cuts

    def latency(self) -> float:
        """Returns the seconds of one step: mostly short, rarely long."""
        if self.random.random() < 0.01:
            return self.random.uniform(0.02, 0.3)
        return self.random.uniform(0.0001, 0.003)

    def cut(self, one: str, other: str, seconds: float) -> None:
        """Lets nothing pass between two machines for a while; what is under way arrives afterwards."""
        pair = frozenset({one, other})
        self._cut[pair] = max(self._cut.get(pair, 0.0), self.loop.time() + seconds)

    def send(self, one: str, other: str) -> float:
        """Returns when a message that is sent now between two machines arrives."""
        now, pair = self.loop.time(), frozenset({one, other})
        passes = self._cut.get(pair, 0.0)
        if passes > now:
            self.held[pair] += 1
        return max(now, passes) + self.latency()

    def heal(self) -> None:
        """Ends all trouble and all cuts; what is held arrives as it was said when it was sent."""
        self.troubles.clear()
        self._cut.clear()
        self._armed.clear()

    def trouble(self, store: str, *, writes: bool = True) -> Trouble | None:
        """Returns what a store does to this transaction, if anything; one that only reads can only be late."""
        found = self.troubles.get(store)
        if found is None or not (writes or found.seconds) or self.random.random() >= found.share:
            return None
        self.hit[store] += 1
        return found


def _own(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Makes a task that its machine knows."""
    context: contextvars.Context | None = options.get("context")
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    host = context.get(_HOST) if context is not None else _HOST.get(None)
    if host is not None:
        _OWNERS[task] = host
        host.tasks[task] = None
        task.add_done_callback(lambda done: host.tasks.pop(done, None))
        if not host.alive:
            task.cancel()
    return task

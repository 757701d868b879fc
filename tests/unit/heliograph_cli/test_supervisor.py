"""The supervisor with real, tiny processes: start, restart, order of stopping, failure of a start."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heliograph_cli.failures import FAILED, USAGE, CommandFailed
from heliograph_cli.plan import Process
from heliograph_cli.record import Kind, alive
from heliograph_cli.supervisor import Supervisor
from tests.support.wait import until

# Says that it is there, then waits for SIGTERM and says that it goes.
_SERVE = """
import signal, sys
def leave(*_):
    print(f"{sys.argv[1]} left", flush=True, file=open(sys.argv[2], "a"))
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print(f"{sys.argv[1]} here", flush=True, file=open(sys.argv[2], "a"))
while True:
    signal.pause()
"""
_STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"{sys.argv[1]} here", flush=True, file=open(sys.argv[2], "a"))
while True:
    signal.pause()
"""


class _Stage:
    """Processes in a folder, and what was said about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.journal.touch()
        self.said: list[str] = []
        self.states: list[str] = []
        self.processes: list[Process] = []
        self.clock_agrees = True
        self.is_ready: Callable[[Process], bool] = lambda process: f"{process.name} here" in self.journal.read_text()

    def add(self, name: str, program: str, *, rank: int = 1, kind: Kind = "service") -> None:
        """Adds a process that runs a Python program with its name and the journal as arguments."""
        argv = (sys.executable, "-I", "-S", "-c", program, name, str(self.journal))
        log = self.folder / f"{name}.log"
        self.processes.append(Process(name, kind, name, argv=argv, log=log, stop_rank=rank))

    def supervisor(self, *, stop_limit: float = 10.0) -> Supervisor:
        async def is_ready(process: Process) -> bool:
            return self.is_ready(process)

        async def before_stop(process: Process) -> None:
            self.said.append(f"{process.name}: before stop")

        return Supervisor(
            self.processes,
            environ=os.environ,
            is_ready=is_ready,
            before_stop=before_stop,
            say=lambda process, text, _: self.said.append(f"{process}: {text}"),
            changed=lambda: None,
            stop_limit=stop_limit,
            backoff_base=0.01,
            draw=lambda: 0.5,
            clock_agrees=lambda: self.clock_agrees,
        )

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines()


@asynccontextmanager
async def _running(supervisor: Supervisor) -> AsyncIterator[None]:
    """Runs a supervisor until the block ends."""
    ready = asyncio.Event()
    run = asyncio.ensure_future(supervisor.run(ready_limit=10.0, when_ready=ready.set))
    try:
        await until(lambda: ready.is_set() or run.done(), limit_s=15.0, what="everything to be ready")
        yield
    finally:
        if not run.done() and not supervisor.stopping:
            supervisor.request_stop()
        await run


async def test_everything_starts_at_once_and_stops_in_order(tmp_path: Path) -> None:
    """All processes are there when it is ready, and leave group by group, each told before."""
    stage = _Stage(tmp_path)
    stage.add("last", _SERVE, rank=3)
    stage.add("first", _SERVE, rank=1)
    stage.add("middle", _SERVE, rank=2, kind="sidecar")
    supervisor = stage.supervisor()
    async with _running(supervisor):
        assert sorted(stage.lines()) == ["first here", "last here", "middle here"]
        assert {child.state for child in supervisor.children.values()} == {"serving"}
    assert stage.lines()[3:] == ["first left", "middle left", "last left"]
    assert {child.state for child in supervisor.children.values()} == {"stopped"}
    assert [line for line in stage.said if "before" in line] == [
        "first: before stop",
        "middle: before stop",
        "last: before stop",
    ]


async def test_children_are_in_sessions_of_their_own(tmp_path: Path) -> None:
    """Ctrl-C at the terminal reaches the command alone, which then stops everything in order."""
    stage = _Stage(tmp_path)
    stage.add("service", _SERVE)
    stage.add("sidecar", _SERVE, kind="sidecar")
    supervisor = stage.supervisor()
    async with _running(supervisor):
        for child in supervisor.children.values():
            assert os.getsid(child.pid) == child.pid != os.getsid(0)


async def test_a_killed_child_is_started_again_and_it_is_said(tmp_path: Path) -> None:
    """A process that dies comes back under a new id, and the terminal says how it ended."""
    stage = _Stage(tmp_path)
    stage.add("victim", _SERVE)
    supervisor = stage.supervisor()
    async with _running(supervisor):
        child = supervisor.children["victim"]
        first = child.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: child.state == "serving" and child.pid not in (0, first), what="the restart")
        assert child.restart_count == 1
    assert "victim: killed by SIGKILL; starting it again in 0.0 s" in stage.said
    assert any(line.startswith("victim: serves again after") for line in stage.said)


async def test_nothing_is_started_again_while_the_clock_is_doubtful(tmp_path: Path) -> None:
    """A process would take the wrong time for the right one; it is said, and goes on by itself."""
    stage = _Stage(tmp_path)
    stage.add("victim", _SERVE)
    supervisor = stage.supervisor()
    async with _running(supervisor):
        child = supervisor.children["victim"]
        stage.clock_agrees = False
        first = child.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: any("this machine's clock was set" in line for line in stage.said), what="the wait")
        assert (child.pid, child.state) == (0, "waiting")
        stage.clock_agrees = True
        await until(lambda: child.state == "serving" and child.pid not in (0, first), what="the restart")


async def test_a_start_that_cannot_succeed_stops_everything_with_its_last_words(tmp_path: Path) -> None:
    """Exit code 2 at the first start is final: its line is the failure, and nobody is left running."""
    stage = _Stage(tmp_path)
    stage.add("good", _SERVE)
    stage.add("broken", "import sys; print('heliograph broken: no such file', file=sys.stderr); sys.exit(2)")
    supervisor = stage.supervisor()
    with pytest.raises(CommandFailed, match=r"^broken: no such file$") as caught:
        await supervisor.run(ready_limit=10.0, when_ready=lambda: None)
    assert caught.value.code == USAGE
    assert all(child.pid == 0 for child in supervisor.children.values())


async def test_an_envoy_that_ends_at_its_start_is_final_too(tmp_path: Path) -> None:
    """Envoy has one exit code for everything that is wrong with its file."""
    stage = _Stage(tmp_path)
    stage.add("edge", "import sys; sys.exit('cannot bind')", kind="edge")
    with pytest.raises(CommandFailed, match=r"^edge: cannot bind$"):
        await stage.supervisor().run(ready_limit=10.0, when_ready=lambda: None)


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A missing program fails the start at once."""
    stage = _Stage(tmp_path)
    argv = (str(tmp_path / "nothing"),)
    for kind in ("service", "sidecar"):
        process = Process(f"a-{kind}", kind, "x", argv=argv, log=tmp_path / f"{kind}.log", stop_rank=1)
        stage.processes = [process]
        with pytest.raises(CommandFailed, match=f"^a-{kind}: .*nothing: No such file or directory$"):
            await stage.supervisor().run(ready_limit=10.0, when_ready=lambda: None)


async def test_a_child_that_never_serves_is_given_up(tmp_path: Path) -> None:
    """A process that crashes again and again before it ever served ends the start."""
    stage = _Stage(tmp_path)
    stage.add("crashing", "import sys; print('oh no', file=sys.stderr); sys.exit(1)")
    supervisor = stage.supervisor()
    with pytest.raises(CommandFailed, match=r"^crashing: oh no$"):
        await supervisor.run(ready_limit=10.0, when_ready=lambda: None)
    assert supervisor.children["crashing"].restart_count == 5


async def test_who_is_not_ready_in_time_is_named(tmp_path: Path) -> None:
    """A start that takes too long is ended, with the names of those that were waited for."""
    stage = _Stage(tmp_path)
    stage.add("slow", _SERVE)
    stage.is_ready = lambda process: False
    with pytest.raises(CommandFailed, match=r"not ready within 0\.2 s: slow") as caught:
        await stage.supervisor().run(ready_limit=0.2, when_ready=lambda: None)
    assert caught.value.code == FAILED


async def test_a_child_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    """Stopping is bounded in time whatever a process does."""
    stage = _Stage(tmp_path)
    stage.add("stubborn", _STUBBORN)
    supervisor = stage.supervisor(stop_limit=0.2)
    async with _running(supervisor):
        pid = supervisor.children["stubborn"].pid
    assert not alive(pid)
    assert "stubborn: does not stop within 0.2 s; killed" in stage.said


async def test_a_second_request_kills(tmp_path: Path) -> None:
    """Whoever asks twice does not want to wait."""
    stage = _Stage(tmp_path)
    stage.add("stubborn", _STUBBORN)
    supervisor = stage.supervisor(stop_limit=25.0)
    async with _running(supervisor):
        supervisor.request_stop()
        await until(lambda: "stubborn: before stop" in stage.said)
        supervisor.request_stop()
    assert "stubborn: killed by SIGKILL" in stage.said


async def test_warnings_of_children_are_shown(tmp_path: Path) -> None:
    """What a child logs as a warning reaches the terminal while it runs."""
    stage = _Stage(tmp_path)
    line = '{"level":"warning","event":"lane_slow","lane":"high"}'
    stage.add("loud", f"import sys; print('{line}', flush=True)\n{_SERVE}")
    async with _running(stage.supervisor()):
        await until(lambda: "loud: lane_slow lane=high" in stage.said)


async def test_children_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL at the command leaves no Envoy behind; services ask for the same by their own flag."""
    program = f"""
import asyncio, os, sys
sys.path[:] = {sys.path!r}
from pathlib import Path
from heliograph_cli.plan import Process
from heliograph_cli.supervisor import Supervisor
argv = (sys.executable, "-I", "-S", "-c", {_SERVE!r}, "envoy", {str(tmp_path / "journal")!r})
async def yes(process): return True
async def nothing(process): pass
one = Process("envoy", "sidecar", "x", argv=argv, log=Path({str(tmp_path / "envoy.log")!r}), stop_rank=1)
silent = dict(say=lambda *_: None, changed=lambda: None)
two = Supervisor([one], environ=os.environ, is_ready=yes, before_stop=nothing, **silent)
asyncio.run(two.run(ready_limit=10, when_ready=lambda: print(two.children["envoy"].pid, flush=True)))
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    await until((tmp_path / "journal").exists, what="the child's first words")
    parent.kill()
    await parent.wait()
    await until(lambda: "envoy left" in (tmp_path / "journal").read_text(), what="the child's last words")
    assert child > 0

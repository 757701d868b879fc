"""The frame of a process as a process: flags, signals, exit codes, the parent, the memory."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mesh import process
from mesh.errors import StartError

_ROOT = Path(__file__).resolve().parents[3]
_FRAME = "tests.support.frame"

_PARENT = """
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-m", *sys.argv[1:], f"--die-with-parent={os.getpid()}"])
signal.pause()
"""

Launch = Callable[..., "_Child"]


class _Child:
    """A running frame; its words are read from standard output as they come."""

    def __init__(self, folder: Path, *flags: str, loop: str = "") -> None:
        command = [sys.executable, "-m", _FRAME, "--run-dir", f"{folder}/run", "--data-dir", f"{folder}/data"]
        self.log = folder / "log"
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*command, *flags],
                stdout=subprocess.PIPE,
                stderr=stream,
                cwd=_ROOT,
                env={**os.environ, "HELIOGRAPH_LOOP": loop},
                text=True,
            )

    def word(self) -> str:
        """Waits for the next word; empty when the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, list[str], str]:
        """Waits for the end; returns the exit code, the remaining words and standard error."""
        words, _ = self.process.communicate(timeout=20)
        return self.process.returncode, words.split(), self.log.read_text()


@pytest.fixture
def launch(run_dir: Path) -> Iterator[Launch]:
    """Starts frames and ends those that still run."""
    children: list[_Child] = []

    def start(*flags: str, loop: str = "") -> _Child:
        children.append(_Child(run_dir, *flags, loop=loop))
        return children[-1]

    yield start
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()


def _events(log: str) -> list[str]:
    return [json.loads(line)["event"] for line in log.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["asyncio", ""])
def test_a_signal_drains_and_exits_clean(launch: Launch, number: signal.Signals, loop: str) -> None:
    """Both signals end the process in order, with exit code 0 and nothing but JSON lines logged, on both loops."""
    child = launch(loop=loop)
    assert [child.word(), child.word()] == ["starting", "ready"]
    child.process.send_signal(number)
    code, words, log = child.end()
    assert (code, words) == (0, ["unready", "draining", "stopped"])
    assert _events(log) == ["ready", "stopping", "stopped"]
    if loop:
        assert json.loads(log.splitlines()[0])["loop"].startswith("asyncio")


def test_a_second_signal_exits_at_once(launch: Launch) -> None:
    """Whoever is in a hurry signals twice; the drain is left where it is."""
    child = launch("--fault", "slow_drain", "--drain-limit", "600")
    assert [child.word(), child.word()] == ["starting", "ready"]
    child.process.send_signal(signal.SIGTERM)
    assert [child.word(), child.word()] == ["unready", "draining"]
    child.process.send_signal(signal.SIGINT)
    code, words, _ = child.end()
    assert (code, words) == (128 + signal.SIGINT, [])


def test_a_signal_during_the_start_ends_it(launch: Launch) -> None:
    """A process that waits in its start ends in order as well."""
    child = launch("--fault", "slow_start")
    assert child.word() == "starting"
    child.process.send_signal(signal.SIGTERM)
    code, words, log = child.end()
    assert (code, words) == (0, [])
    assert _events(log) == ["stopping", "stopped"]


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("wire", "heliograph frame: lane_url nats://x: unknown scheme; known are sqlite\n"),
        ("start", "heliograph frame: store: the store is away\n"),
        ("disk", "heliograph frame: store: {data}/absent/file: No such file or directory\n"),
    ],
)
def test_a_failed_start_is_one_line_and_code_2(launch: Launch, run_dir: Path, fault: str, line: str) -> None:
    """What stops a start is told in one line that says where, after the log lines."""
    code, words, log = launch("--fault", fault).end()
    assert code == 2
    assert "ready" not in words
    told = [entry for entry in log.splitlines(keepends=True) if not entry.startswith("{")]
    assert told == [line.format(data=run_dir / "data")]


def test_a_wrong_setting_is_one_line_and_code_2(launch: Launch) -> None:
    """Nothing else is written."""
    code, _, log = launch("--fault", "all").end()
    assert code == 2
    assert log.startswith("heliograph frame: flag --fault: 'all' is wrong: ")
    assert log.count("\n") == 1


@pytest.mark.parametrize("fault", ["loop", "bug"])
def test_a_broken_loop_or_a_bug_is_code_1_with_a_traceback(launch: Launch, fault: str) -> None:
    """A supervisor sees a crash and the log says where it was."""
    code, words, log = launch("--fault", fault).end()
    assert code == 1
    assert "draining" not in words
    lines = [json.loads(line) for line in log.splitlines()]
    (failed,) = [line for line in lines if line["event"] in ("loop_failed", "crashed")]
    assert "KeyError" in failed["exception"]


def test_a_stuck_task_does_not_keep_the_process(launch: Launch) -> None:
    """A loop that ignores its cancellation is named, and the process ends."""
    child = launch("--fault", "stuck", "--drain-limit", "0.2")
    assert [child.word(), child.word()] == ["starting", "ready"]
    child.process.send_signal(signal.SIGTERM)
    code, _, log = child.end()
    assert code == 1
    assert "tasks_stuck" in _events(log)


def test_the_configuration_can_be_checked_and_shown(launch: Launch) -> None:
    """Neither starts anything; a wrong setting is found by both."""
    code, words, log = launch("--check-config").end()
    assert (code, log) == (0, "")
    assert " ".join(words) == "heliograph frame: the configuration is valid"
    child = launch("--show-config", "--drain-limit", "3")
    shown, _ = child.process.communicate(timeout=20)
    assert tomllib.loads(shown)["drain_limit"] == 3.0
    assert launch("--check-config", "--drain-limit", "x").end()[0] == 2
    assert launch("--show-config", "--drain-limit", "x").end()[0] == 2


def test_help_names_every_setting(launch: Launch) -> None:
    """Whoever gets a flag wrong is sent to --help and finds it there."""
    child = launch("--help")
    text, _ = child.process.communicate(timeout=20)
    for part in ("--check-config", "--drain-limit", "HELIOGRAPH_FRAME_FAULT", "what goes wrong"):
        assert part in text


def test_the_process_drains_when_its_parent_dies(run_dir: Path) -> None:
    """Killing the parent, which can then tell nobody, still ends the child in order."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _FRAME, "--run-dir", f"{run_dir}/run", "--data-dir", f"{run_dir}/data"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        text=True,
    )
    assert parent.stdout is not None
    assert [parent.stdout.readline(), parent.stdout.readline()] == ["starting\n", "ready\n"]
    parent.kill()
    # The child holds the other end of the pipe: its end is the end of the output.
    words, _ = parent.communicate(timeout=20)
    assert words.split() == ["unready", "draining", "stopped"]


def test_a_process_whose_parent_is_gone_does_not_start(launch: Launch) -> None:
    """A child that comes up after its parent's end would never be stopped by anybody."""
    code, words, log = launch(f"--die-with-parent={os.getppid()}").end()
    assert (code, words) == (2, [])
    assert log.startswith("heliograph frame: flag --die-with-parent: the parent process is gone")


def test_the_processs_own_flags_are_told_apart_from_settings() -> None:
    """Settings stay in their order for the settings' own reader."""
    options = process.read_options(["--direct", "--check-config", "--die-with-parent=12", "--store-url", "x"])
    assert (options.check_config, options.show_config, options.help, options.parent) == (True, False, False, 12)
    assert options.rest == ["--direct", "--store-url", "x"]
    assert process.read_options(["--die-with-parent"]).parent == 0
    assert process.read_options([]).parent is None


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²"])
def test_a_parent_that_is_no_number_is_refused(text: str) -> None:
    """A misspelled process id is not silently "unknown"."""
    with pytest.raises(StartError, match="--die-with-parent"):
        process.read_options([f"--die-with-parent={text}"])


def test_the_fast_loop_is_used_where_it_is_wanted() -> None:
    """Unwanted means the standard loop; wanted means a working loop of the faster kind where it is installed."""
    assert process.loop_factory(False) is None
    factory = process.loop_factory(True)
    if factory is not None:
        with asyncio.Runner(loop_factory=factory) as runner:
            assert runner.run(_module_of_loop()) == "uvloop"


async def _module_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_the_start_is_taken_out_of_later_collections() -> None:
    """What exists at the end of the start is frozen, and collections become rarer."""
    before = gc.get_threshold()
    try:
        process.tune_collector()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[:2] == process.COLLECTOR_THRESHOLDS[:2]
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)

"""The runner of engines on a small one of its own: one start, back after a kill, nothing ended that is not its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.engines import probes
from deploy.engines.choices import Choices
from deploy.engines.failures import EnginesFailed
from deploy.engines.running import FILE, Engines
from deploy.engines.server import alive
from tests.support.wait import until

pytestmark = pytest.mark.engines

# Of Redis above the base, and the range in which this file looks for a free base.
_REDIS = 10
_BASES = range(12_700, 14_700, 100)


class Runner:
    """Engines in a folder of the test's own, of which only Redis is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.port = 0
        for base in _BASES:
            self.engines = Engines(Choices(folder, base), os.environ, self.said.append)
            if not self.engines.taken_ports():
                self.port = base + _REDIS
                return
        raise AssertionError("no free ports")

    def pid(self) -> int:
        (server,) = self.engines.named(["redis"])
        return server.pid() or 0


@pytest.fixture
def runner() -> Iterator[Runner]:
    """A folder and free ports; what still runs is stopped afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hg-engines-"))
    found = Runner(folder)
    try:
        yield found
    finally:
        found.engines.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_second_start_starts_nothing_anew(runner: Runner) -> None:
    """It is the same process, and the file says where it is."""
    found = runner.engines.start(["redis"])
    pid = runner.pid()
    assert runner.engines.start(["redis"]) == found
    assert runner.pid() == pid != 0
    assert json.loads((runner.folder / FILE).read_text()) == {
        "redis": f"redis://127.0.0.1:{runner.port}",
        "replicas": 1,
    }


def test_a_killed_server_comes_back_with_its_data(runner: Runner) -> None:
    """After the kill nothing answers and the port is free; after the restart the data is there."""
    runner.engines.start(["redis"])
    before = runner.pid()
    assert probes.redis_command("127.0.0.1", runner.port, "SET", "a", "kept") == "OK"
    runner.engines.kill("redis")
    assert runner.pid() == 0
    states = {one.name: one.state for one in runner.engines.states()}
    assert states["redis"] == "stopped"
    runner.engines.restart("redis")
    assert runner.pid() not in (0, before)
    assert probes.redis_command("127.0.0.1", runner.port, "GET", "a") == "kept"


def test_after_the_stop_nobody_is_sent_to_it(runner: Runner) -> None:
    """The file with the addresses goes with the last server; to stop again is fine."""
    runner.engines.start(["redis"])
    runner.engines.stop()
    assert not (runner.folder / FILE).exists()
    runner.engines.stop()
    assert runner.said[-1] == "nothing runs"


def test_a_process_that_got_the_pid_since_is_left_alone(runner: Runner) -> None:
    """Its command line is not that of the server."""
    runner.engines.start(["redis"])
    runner.engines.stop()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; input()"], stdin=subprocess.PIPE)
    try:
        (runner.folder / "redis" / "pid").write_text(str(stranger.pid))
        runner.engines.kill("redis")
        runner.engines.stop()
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")


def test_a_taken_port_is_said_before_anything_starts(runner: Runner) -> None:
    """The line names the port and the server that wants it."""
    with socket.create_server(("127.0.0.1", runner.port)), pytest.raises(EnginesFailed) as caught:
        runner.engines.start(["redis", "redis-cluster"])
    (line,) = caught.value.lines
    assert line.startswith(f"port {runner.port} at 127.0.0.1 (redis) is taken")
    assert {one.state for one in runner.engines.states()} == {"stopped"}


def test_a_server_that_cannot_start_stops_those_that_did(runner: Runner) -> None:
    """What the server said last is in the line, and where its log is."""
    folder = runner.folder / "redis"
    folder.mkdir()
    (folder / "data").mkdir()
    (folder / "data" / "appendonlydir").write_text("no folder")
    with pytest.raises(EnginesFailed) as caught:
        runner.engines.start(["redis", "redis-cluster"])
    (line,) = caught.value.lines
    assert line.startswith("redis: ended at once; ")
    assert str(folder / "server.log") in line
    assert {one.state for one in runner.engines.states()} == {"stopped"}


async def test_who_is_told_to_end_stops_what_it_began_to_start(runner: Runner) -> None:
    """A start that gets SIGTERM before its servers answer leaves none of them."""
    folder = runner.folder / "other"
    command = [sys.executable, "-m", "deploy.engines", "--folder", str(folder), "start"]
    command += ["--base-port", str(runner.port - _REDIS), "--only", "redis", "--only", "kafka"]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    await until((folder / "kafka" / "pid").exists, 20.0, "Kafka to be started")
    pid = int((folder / "kafka" / "pid").read_text())
    child.terminate()
    assert await child.wait() == 143
    assert not alive(pid)
    assert not (folder / "redis" / "pid").exists()

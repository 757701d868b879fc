"""Makes the faults of a simulated run and writes them down; what follows from them is not its business."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.faults import history
from tests.faults.history import Recorder
from tests.simulation.replicas import Weak, Weakness
from tests.simulation.script import REPLICAS, Act
from tests.simulation.wiring import Cluster
from tests.simulation.world import Host, Trouble, World

_RESTART_S = (0.1, 5.0)


class Nemesis:
    """Faults of one run.

    Args:
        world: the machines.
        cluster: what runs on them.
        folder: of the stores' files.
        recorder: where faults are written down.
    """

    def __init__(self, world: World, cluster: Cluster, folder: Path, recorder: Recorder) -> None:
        self._world = world
        self._cluster = cluster
        self._folder = folder
        self._recorder = recorder

    async def make(self, act: Act) -> None:
        """Makes the fault that an act says, and returns when it is over."""
        match act.kind:
            case "poison":
                async with self.fault("F-29", act.target, "a record of three bytes was appended"):
                    _poison(self._folder / "data" / "lanes" / f"{act.target}.db", self._world.loop.time())
                    self._recorder.add(history.Poisoned(at=self._world.loop.time(), lane=act.target))
            case "crash":
                host = self._world.hosts.get(act.target)
                if host is not None and host.alive:
                    self._world.crash(host)
            case "crash at":
                self._world.arm(act.target, act.count)
            case "cut":
                evidence = f"nothing passed for {act.seconds:g} s"
                async with self.fault("F-58", f"{act.target}~{act.other}", evidence):
                    self._world.cut(act.target, act.other, act.seconds)
                    await asyncio.sleep(act.seconds)
            case "reset":
                async with self.fault("F-57", f"{act.target}~{act.other}", "connections reset"):
                    self._cluster.network.reset(act.target, act.other)
            case "trouble":
                await (self._weaken(act) if act.target in REPLICAS else self._trouble(act))
            case _:
                assert act.kind == "flush", f"{act.kind} is no fault"
                async with self.fault("F-11", "request log", "flushed"):
                    _flush(self._folder / "data" / "requests.db")

    def heal(self) -> None:
        """Ends whatever goes on; what is held arrives."""
        self._world.heal()
        self._cluster.ring.heal()
        self._cluster.network.late = False

    async def _trouble(self, act: Act) -> None:
        kind: Any = act.how
        async with self.fault("F-47", f"{act.target} {act.how}", f"for {act.seconds:g} s"):
            self._world.troubles[act.target] = Trouble(kind, act.delay, act.share)
            await asyncio.sleep(act.seconds)
            self._world.troubles.pop(act.target, None)

    async def _weaken(self, act: Act) -> None:
        """One replica does something wrong; where it dies, it may come back without its last changes."""
        number = REPLICAS.index(act.target)
        async with self.fault("F-50", f"{act.target} {act.how}", f"for {act.seconds:g} s"):
            if act.how == "forgets":
                self._cluster.ring.forget(number, act.delay)
            kind: Weakness = "lagging" if act.how == "lagging" else "deaf" if act.how == "deaf" else "down"
            self._cluster.ring.weaken(number, Weak(kind, act.delay, act.share))
            await asyncio.sleep(act.seconds)
            self._cluster.ring.heal(number)

    async def restart(self, host: Host) -> None:
        """Starts the next process in the place of a dead one, after a while."""
        async with self.fault("F-61", host.name, "process gone"):
            pause = self._world.random.uniform(*_RESTART_S)
            await asyncio.sleep(pause)
            await self._cluster.serving(self._cluster.start(host.name))

    @contextlib.asynccontextmanager
    async def fault(self, row: str, target: str, evidence: str) -> AsyncIterator[None]:
        """Writes a fault down that lasts as long as the context."""
        operation = f"{row}-{target}-{self._world.loop.time():.6f}"
        self._recorder.add(
            history.FaultBegan(
                at=self._world.loop.time(),
                operation=operation,
                fault=row,
                target=target,
                evidence=evidence,
                device=target.startswith("device:"),
            )
        )
        try:
            yield
        finally:
            self._recorder.add(history.FaultEnded(at=self._world.loop.time(), operation=operation))


def _poison(path: Path, now: float) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("insert into records(append_time, key, value) values (?, ?, ?)", (now, b"", b"\xff\xff\xff"))


def _flush(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (table,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
            connection.execute(f"delete from {table}")

"""Makes the faults of a simulated run and writes them down; what follows from them is not its business."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.faults import history
from tests.faults.history import Recorder
from tests.simulation.replicas import Weak, Weakness
from tests.simulation.script import REPLICAS, Act
from tests.simulation.wiring import Cluster
from tests.simulation.world import WALL_BASE_S, Host, Trouble, World

_RESTART_S = (0.1, 5.0)
_ALL = 1_000_000
_LOOK_S = 0.5
# The row of the catalogue that the death of a process is.
_DEATHS = {
    "ingest": "F-04",
    "fanout": "F-21",
    "prefs": "F-36",
    "presence": "F-41",
    "delivery": "F-63",
    "gw-sim": "F-61",
}


class Evidence:
    """What was counted while a fault was there; what was counted as nothing is none."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def count(self, what: str, number: int) -> None:
        """Adds so many of something."""
        if number:
            self._found.append(f"{number} {what}")

    def __str__(self) -> str:
        """Says it; empty: nothing shows that the fault happened."""
        return "; ".join(self._found)


class Nemesis:
    """Faults of one run.

    Attributes:
        rows: how many faults of each row of the catalogue have shown evidence.

    Args:
        world: the machines.
        cluster: what runs on them.
        folder: of the stores' files.
        recorder: where faults are written down.
        rounds: seconds in which every session has had a slow round.
    """

    def __init__(self, world: World, cluster: Cluster, folder: Path, recorder: Recorder, rounds: float) -> None:
        self._world = world
        self._round = rounds
        self.rows: Counter[str] = Counter()
        self._cluster = cluster
        self._folder = folder
        self._recorder = recorder

    async def make(self, act: Act) -> None:
        """Makes the fault that an act says, and returns when it is over."""
        match act.kind:
            case "poison":
                await self._poison(act.target)
            case "crash":
                host = self._world.hosts.get(act.target)
                if host is not None and host.alive:
                    self._world.crash(host)
            case "crash at":
                self._world.arm(act.target, act.count)
            case "cut":
                await self._cut(act)
            case "reset":
                async with self.fault(*_link(act, "F-57")) as evidence:
                    evidence.count("connections reset", self._cluster.network.reset(act.target, act.other))
            case "trouble":
                await (self._weaken(act) if act.target in REPLICAS else self._trouble(act))
            case "forget" if act.target == "presence":
                await self._forget_sessions(act.count)
            case _:
                assert act.kind in ("flush", "forget"), f"{act.kind} is no fault"
                row, most = ("F-11", _ALL) if act.kind == "flush" else ("F-12", act.count)
                async with self.fault(row, "requests.db") as evidence:
                    evidence.count("requests forgotten", _forget(self._folder / "data" / "requests.db", most))

    def heal(self) -> None:
        """Ends whatever goes on; what is held arrives."""
        self._world.heal()
        self._cluster.ring.heal()
        self._cluster.network.late = False

    async def _poison(self, lane: str) -> None:
        async with self.fault("F-29", lane) as evidence:
            # By the wall clock: whatever is older than a week is trimmed.
            _poison(self._folder / "data" / "lanes" / f"{lane}.db", WALL_BASE_S + self._world.loop.time())
            self._recorder.add(history.Poisoned(at=self._world.loop.time(), lane=lane))
            evidence.count("record of three bytes appended", 1)

    async def _forget_sessions(self, count: int) -> None:
        async with self.fault("F-42", "presence") as evidence:
            host = self._world.hosts["presence"]
            # With its process it loses everything, and knows it.
            if not host.alive or host.name not in self._cluster.network.servers:
                return
            store = self._cluster.presence
            lost = store.forget(count)
            evidence.count("entries of devices forgotten", lost.count)
            # Whoever had one is put back by a round, or with a new session; later than that is too late.
            began = self._world.loop.time()
            while not store.has_back(lost) and self._world.loop.time() < began + self._round:
                await asyncio.sleep(_LOOK_S)
                # A new process begins with nothing, and all nodes are told.
                if store is not self._cluster.presence:
                    return
            took = self._world.loop.time() - began if store.has_back(lost) else None
            self._recorder.add(history.Settled(at=self._world.loop.time(), seconds=took, limit=self._round))

    async def _cut(self, act: Act) -> None:
        pair = frozenset({act.target, act.other})
        async with self.fault(*_link(act, "F-58")) as evidence:
            before = self._world.held[pair]
            self._world.cut(act.target, act.other, act.seconds)
            await asyncio.sleep(act.seconds)
            evidence.count(f"messages held in {act.seconds:g} s", self._world.held[pair] - before)

    async def _trouble(self, act: Act) -> None:
        kind: Any = act.how
        async with self.fault(_row_of(act), f"{act.target} {act.how}") as evidence:
            before = self._world.hit[act.target]
            self._world.troubles[act.target] = Trouble(kind, act.delay, act.share)
            await asyncio.sleep(act.seconds)
            self._world.troubles.pop(act.target, None)
            evidence.count("transactions hit", self._world.hit[act.target] - before)

    async def _weaken(self, act: Act) -> None:
        """One replica does something wrong; where it dies, it may come back without its last changes."""
        number = REPLICAS.index(act.target)
        replica = self._cluster.ring.replicas[number]
        row = "F-53" if act.how == "forgets" else "F-50"
        async with self.fault(row, f"{act.target} {act.how}") as evidence:
            if act.how == "forgets":
                evidence.count("changes forgotten", self._cluster.ring.forget(number, act.delay))
            before = replica.hit
            kind: Weakness = "lagging" if act.how == "lagging" else "deaf" if act.how == "deaf" else "down"
            self._cluster.ring.weaken(number, Weak(kind, act.delay, act.share))
            await asyncio.sleep(act.seconds)
            self._cluster.ring.heal(number)
            evidence.count("changes and questions hit", replica.hit - before)

    async def restart(self, host: Host) -> None:
        """Starts the next process in the place of a dead one, after a while."""
        async with self.fault(_DEATHS[host.kind], host.name, crash=True) as evidence:
            pause = self._world.random.uniform(*_RESTART_S)
            await asyncio.sleep(pause)
            heir = self._cluster.start(host.name)
            evidence.count(f"process gone for {pause:.1f} s", 1)
            await self._cluster.serving(heir)

    @contextlib.asynccontextmanager
    async def fault(self, row: str, target: str, *, crash: bool = False) -> AsyncIterator[Evidence]:
        """Writes a fault down that lasts as long as the context; what is counted inside shows that it happened.

        Args:
            row: of the catalogue, or a word.
            target: what it is made to.
            crash: a process dies, and nothing else: the judge knows how soon that must be over.
        """
        operation = f"{row}-{target}-{self._world.loop.time():.6f}"
        self._recorder.add(
            history.FaultBegan(
                at=self._world.loop.time(),
                operation=operation,
                fault=row,
                target=target,
                device=target.startswith("device:"),
                crash=crash,
            )
        )
        evidence = Evidence()
        try:
            yield evidence
        finally:
            self.rows.update([row] if str(evidence) else [])
            self._recorder.add(
                history.FaultEnded(at=self._world.loop.time(), operation=operation, evidence=str(evidence))
            )


def _link(act: Act, row: str) -> tuple[str, str]:
    """Returns the row and the target of a fault of a link; between services it is the one that is given."""
    of_device = "F-67" if act.kind == "cut" else "device reset"
    return of_device if act.target.startswith("device:") else row, f"{act.target}~{act.other}"


def _row_of(act: Act) -> str:
    """Returns the row of what a store does."""
    refused = act.how == "refused"
    match act.target:
        case "channel" | "rows" | "events":
            return f"{act.target} {act.how}"
        case "requests.db":
            return "F-10"
        case "positions.db":
            return "F-27"
        case "inbox.db":
            return "F-48" if refused else "F-47"
        case _:
            return "F-13" if refused else "F-15"


def _poison(path: Path, now: float) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("insert into records(append_time, key, value) values (?, ?, ?)", (now, b"", b"\xff\xff\xff"))


def _forget(path: Path, most: int) -> int:
    newest = "select number from request order by number desc limit ?"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(f"delete from request where number in ({newest})", (most,)).rowcount

"""Makes faults on a real cluster and writes down what was observed of each; it does not wait for what follows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.faults import history
from tests.faults.actors import now
from tests.faults.history import Recorder
from tests.faults.proxy import HEALTHY, Proxy, Toxics
from tests.support.cluster import Cluster
from tests.support.shapes import name_of


class Nemesis:
    """Faults of one run, by the rows of the catalogue."""

    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def fault(self, row: str, target: str) -> AsyncIterator[list[str]]:
        """Writes a fault down that is made inside; append to the list what is observed."""
        operation = f"fault-{next(self._numbers)}"
        evidence: list[str] = []
        self._recorder.add(history.FaultBegan(at=now(), operation=operation, fault=row, target=target))
        try:
            yield evidence
        finally:
            self._recorder.add(history.FaultEnded(at=now(), operation=operation, evidence="; ".join(evidence)))

    async def kill(self, row: str, victim: str) -> None:
        """Kills a process (SIGKILL) and waits until the next one serves."""
        name = name_of(self._cluster, victim)
        async with self.fault(row, name) as evidence:
            before = await self._cluster.kill(name)
            after = await self._cluster.wait_restarted(before)
            evidence.append(f"pid {before.pid} gone, {after.pid} serves, restarts {after.restart_count}")

    async def freeze(self, row: str, victim: str, seconds: float) -> None:
        """Stops a process (SIGSTOP) for a while; it goes on where it was, and knows nothing of the time between."""
        name = name_of(self._cluster, victim)
        async with self.fault(row, name) as evidence:
            pid = self._cluster.send(name, signal.SIGSTOP).pid
            try:
                # How long it is stopped is the fault itself.
                await asyncio.sleep(seconds)
                evidence.append(f"pid {pid} was in state {_state_of(pid)} for {seconds:g} s")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    async def end(self, row: str, victim: str) -> None:
        """Ends a process in order (SIGTERM) and waits until the next one serves."""
        name = name_of(self._cluster, victim)
        async with self.fault(row, name) as evidence:
            before = self._cluster.send(name, signal.SIGTERM)
            after = await self._cluster.wait_restarted(before, 40.0)
            evidence.append(f"pid {before.pid} ended, {after.pid} serves")

    async def poison(self, row: str, target: str, proxy: Proxy, toxics: Toxics, seconds: float) -> None:
        """Makes a link bad for a while."""
        async with self.fault(row, target) as evidence:
            proxy.apply(toxics)
            try:
                await asyncio.sleep(seconds)
                evidence.append(str(proxy.evidence))
            finally:
                proxy.apply(HEALTHY)

    async def reset(self, row: str, target: str, proxy: Proxy) -> None:
        """Resets every connection of a link."""
        async with self.fault(row, target) as evidence:
            count = proxy.reset_all()
            if count:
                evidence.append(f"{count} connections reset")


def _state_of(pid: int) -> str:
    """Returns the letter of a process's state, "T" for a stopped one."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"

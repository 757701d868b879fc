"""Makes faults on a real cluster and writes down what was observed of each; it does not wait for what follows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from mesh.lanes import Record
from tests.faults import history
from tests.faults.actors import now
from tests.faults.history import Recorder
from tests.faults.proxy import HEALTHY, Proxy, Toxics
from tests.support import damage
from tests.support.cluster import Cluster
from tests.support.shapes import name_of
from tests.support.wait import until

_EVIDENCE_LIMIT_S = 10.0
_UNREADABLE = b"\xff\xff\xff"


class Nemesis:
    """Faults of one run, by the rows of the catalogue."""

    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def fault(
        self, row: str, target: str, *, device: bool = False, crash: bool = False
    ) -> AsyncIterator[list[str]]:
        """Writes a fault down that is made inside; append to the list what is observed.

        Args:
            row: of the catalogue.
            target: what it is made to.
            device: it is on a device's own way.
            crash: a process dies, and nothing else: the judge knows how soon that must be over.
        """
        operation = f"fault-{next(self._numbers)}"
        evidence: list[str] = []
        began = history.FaultBegan(at=now(), operation=operation, fault=row, target=target, device=device, crash=crash)
        self._recorder.add(began)
        try:
            yield evidence
        finally:
            self._recorder.add(history.FaultEnded(at=now(), operation=operation, evidence="; ".join(evidence)))

    async def kill(self, row: str, victim: str) -> None:
        """Kills a process (SIGKILL) and waits until the next one serves."""
        name = name_of(self._cluster, victim)
        async with self.fault(row, name, crash=True) as evidence:
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

    async def poison(
        self, row: str, target: str, proxies: Sequence[Proxy], toxics: Toxics, seconds: float, *, device: bool = False
    ) -> None:
        """Makes links bad for so long at least, and until that has shown; it ends in full, however it is left."""
        async with self.poisoned(row, target, proxies, toxics, device=device):
            # How long it is bad is the fault itself.
            await asyncio.sleep(seconds)

    @asynccontextmanager
    async def poisoned(
        self, row: str, target: str, proxies: Sequence[Proxy], toxics: Toxics, *, device: bool = False
    ) -> AsyncIterator[None]:
        """Makes links bad while the context is open, and until that has shown; other faults may be made inside."""
        async with self.fault(row, target, device=device) as evidence:
            for proxy in proxies:
                proxy.apply(toxics)
            try:
                yield
                with contextlib.suppress(AssertionError):
                    await until(lambda: any(_bites(proxy, toxics) for proxy in proxies), _EVIDENCE_LIMIT_S, "evidence")
                evidence += [text for proxy in proxies if (text := str(proxy.evidence)) and _bites(proxy, toxics)]
            finally:
                for proxy in proxies:
                    proxy.apply(HEALTHY)
                    if toxics.silent:
                        # A stream that lacks bytes is over: networks do not go on behind a gap.
                        proxy.reset_all()

    @asynccontextmanager
    async def limited(self, row: str, victim: str, kind: int, most: int) -> AsyncIterator[list[str]]:
        """Lowers a limit of a process while the context is open; append to the list what it did to it.

        Args:
            row: of the catalogue.
            victim: the process.
            kind: which limit, such as `resource.RLIMIT_FSIZE`.
            most: its value.
        """
        name = name_of(self._cluster, victim)
        async with self.fault(row, name) as evidence:
            pid = self._cluster.process(name).pid
            before = resource.prlimit(pid, kind)
            resource.prlimit(pid, kind, (most, before[1]))
            try:
                yield evidence
            finally:
                # It may be gone: then its successor has limits of its own.
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(pid, kind, before)

    async def spoil(self, lane: str) -> None:
        """Puts a record that nobody can read into a lane of events."""
        async with self.fault("F-29", lane) as evidence:
            await damage.append(self._cluster, lane, Record(b"", _UNREADABLE))
            self._recorder.add(history.Poisoned(at=now(), lane=lane))
            evidence.append(f"record of {len(_UNREADABLE)} bytes appended")

    async def reset(self, row: str, target: str, proxies: Sequence[Proxy], *, device: bool = False) -> None:
        """Resets every connection of links."""
        async with self.fault(row, target, device=device) as evidence:
            count = sum(proxy.reset_all() for proxy in proxies)
            if count:
                evidence.append(f"{count} connections reset")


def _bites(proxy: Proxy, toxics: Toxics) -> bool:
    """Tells whether the toxics did what they are for, not only that bytes went through."""
    seen = proxy.evidence
    if toxics.silent:
        return seen.swallowed > 0
    if toxics.cut_after is not None or toxics.refuse:
        return seen.resets + seen.refused > 0
    if toxics.latency or toxics.bandwidth:
        return seen.delayed > 0
    return seen.bytes > 0 or bool(toxics.held and seen.connections + proxy.open_connections)


def _state_of(pid: int) -> str:
    """Returns the letter of a process's state, "T" for a stopped one."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"

"""A whole Heliograph in this process and its one event loop: each service as its own `main` wires it, none a process.

They speak over their sockets as they do without a mesh, so that whoever comes from outside notices no difference. It
has no processes to send signals to, and no logs of its own. Must not wire anything itself.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from heliograph_cli import record
from heliograph_cli.folders import deploy_file
from heliograph_cli.plan import Choices, Plan, Process, plan_direct
from heliograph_cli.record import ProcessRecord, UpRecord
from mesh.app import App
from mesh.envoy.certs import ensure_token_key
from mesh.settings import ServiceSettings, load
from tests.support.cluster import Cluster
from tests.support.wait import until

_TRUST_DOMAIN = "heliograph.local"
_LIMIT_S = 20.0


class _Running(msgspec.Struct, frozen=True):
    process: Process
    app: App
    task: asyncio.Task[None]


class LoopCluster(Cluster):
    """A cluster whose services run in this loop; arguments as for `Cluster`, of its flags only `--producers`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # Any: see `Cluster`
        super().__init__(*arguments, **named)
        # Stores are embedded always: whoever looks for them at engines looks in vain.
        self.on_engines = False
        self._services: dict[str, _Running] = {}
        self._replaced = Counter[str]()
        self._plan: Plan

    async def start(self) -> None:
        """Starts every service and returns when all are ready."""
        place = self.place
        place.make()
        ensure_token_key(place.certs)
        flags = dict(zip(self._arguments[::2], self._arguments[1::2], strict=True))
        choices = Choices(
            direct=True,
            gateways=self._gateways,
            host="loop",
            base_port=self.base_port,
            trust_domain=_TRUST_DOMAIN,
            trace=self._trace,
            categories=deploy_file("categories.toml"),
            producers=Path(flags["--producers"]) if flags else deploy_file("producers.example.toml"),
        )
        plan = self._plan = plan_direct(choices, place)
        try:
            # One after the other: gRPC's servers of one process find their numbers by what is new at their start.
            for process in plan.processes:
                await self._begin(process)
        except BaseException:
            await self.stop()
            raise
        self._write_down()

    async def stop(self) -> int:
        """Drains everything, all at once: nobody is left here whom an order would spare.

        Raises:
            AssertionError: one does not end in time.
        """
        ending, self._services = self._services, {}
        for one in ending.values():
            one.app.request_stop("the test is over")
        await asyncio.gather(*(_ended(one) for one in ending.values()))
        return 0

    async def replace(self, name: str) -> None:
        """Drains one service and starts another one in its place, which serves when this returns."""
        async with self.without(name):
            pass
        self._replaced[name] += 1
        self._write_down()

    @asynccontextmanager
    async def without(self, name: str) -> AsyncIterator[None]:
        """Drains one service, and starts another one in its place when the context ends."""
        before = self._services.pop(name)
        before.app.request_stop("another one comes")
        await _ended(before)
        try:
            yield
        finally:
            await self._begin(before.process)

    def send(self, name: str, number: signal.Signals) -> ProcessRecord:
        """Refuses: the only process there is runs the tests."""
        raise AssertionError(f"{name} is no process, and cannot be sent {number.name}")

    async def _begin(self, process: Process) -> None:
        package = f"svc_{process.service}"
        flags = process.argv[process.argv.index(package) + 1 :]
        settings = load(_settings_of(package), flags, self._environ)
        app = App(name=process.service, settings=settings)
        importlib.import_module(f"{package}.main").wire(app, settings)
        task = asyncio.create_task(app.run())
        await until(lambda: app.started.is_set() or task.done(), _LIMIT_S, f"{process.name} to be ready")
        if task.done():
            task.result()
        self._services[process.name] = _Running(process, app, task)

    def _write_down(self) -> None:
        place, plan = self.place, self._plan
        up = UpRecord(
            pid=os.getpid(),
            state="serving",
            direct=True,
            start_time=time.time(),
            run_dir=str(place.run),
            trust_domain=_TRUST_DOMAIN,
            edge=plan.edge,
            live_urls=plan.live_urls,
            inbound=plan.inbound,
            producer_host=plan.producer_host,
            processes={process.name: _record_of(process, self._replaced[process.name]) for process in plan.processes},
        )
        record.write(place.record, up)


async def _ended(one: _Running) -> None:
    try:
        async with asyncio.timeout(_LIMIT_S):
            await one.task
    except TimeoutError:
        raise AssertionError(f"{one.process.name} has not stopped within {_LIMIT_S:g} s") from None


def _settings_of(package: str) -> type[Any]:  # Any: each service has a model of its own
    found = [
        value
        for value in vars(importlib.import_module(f"{package}.settings")).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value is not ServiceSettings
    ]
    (model,) = found
    return model


def _record_of(process: Process, restart_count: int) -> ProcessRecord:
    return ProcessRecord(
        name=process.name,
        kind=process.kind,
        service=process.service,
        pid=os.getpid(),
        state="serving",
        restart_count=restart_count,
        argv=process.argv,
        log=str(process.log),
    )

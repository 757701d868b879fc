"""A whole Heliograph as processes, for scenarios: `heliograph up` with folders and ports of its own.

In the shape `processes` services speak directly, in the shape `mesh` through Envoys with TLS; the same scenario runs
in both, and with STORES=engines on the real engines. The shape `loop` has no processes, see `one_loop.py`.
Must not reach into a service: scenarios see what producers, recipients and operators see, and send signals.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal

import heliograph_cli
from heliograph.delivery.v1 import inbox_service_pb2, inbox_service_pb2_grpc
from heliograph_cli import record
from heliograph_cli.connection import Actor, Connection, Reach, connect, sign
from heliograph_cli.engines import read_engines, service_urls
from heliograph_cli.folders import Folders, folders
from heliograph_cli.record import ProcessRecord, UpRecord
from heliograph_client import Publisher, Subscriber, Transport, Update
from tests.support import engines
from tests.support.ports import free_base_port
from tests.support.wait import until

Shape = Literal["loop", "processes", "mesh"]

TENANT = "acme"
PRODUCER = "demo"
START_LIMIT_S = 25.0
# Topics, keyspace and schema are made first, which takes three nodes their time, and drivers are loaded.
START_LIMIT_ON_ENGINES_S = 100.0
STOP_LIMIT_S = 20.0

_WRAPPER = str(Path(heliograph_cli.__file__).with_name("child.py"))


class Cluster:
    """One `heliograph up`; use it as an async context manager.

    Args:
        folder: a folder of the test's own for state; a short one, see the fixture `run_dir`.
        shape: without or with Envoys; what is asked of the way from outside is the same in `loop` and `processes`.
        gateways: number of gateway nodes.
        trace: log the path of every event.
        environ: settings of services, such as `HELIOGRAPH_GATEWAY_SESSION_AGE`.
        arguments: further flags of `heliograph up`.
        stores: other places of engines than the shared ones, as in an engines.json; they count on engines only.
        program: the module that is run as the command.
    """

    def __init__(
        self,
        folder: Path,
        *,
        shape: Shape,
        gateways: int = 2,
        trace: bool = False,
        environ: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        stores: Mapping[str, str | int] | None = None,
        program: str = "heliograph_cli",
    ) -> None:
        self.shape = shape
        self.place: Folders = folders(folder / "state", str(folder))
        self.base_port = free_base_port()
        self.on_engines = on_engines(os.environ)
        # Names of its own: clusters that follow one another share the engines and nothing else.
        self.name = f"t{uuid.uuid4().hex[:12]}"
        self._gateways = gateways
        self._trace = trace
        self._arguments = arguments
        self._stores = stores or {}
        self._program = program
        # XDG_RUNTIME_DIR: the sockets lie in the test's folder and go with it.
        self._environ = {**os.environ, **(environ or {}), "XDG_RUNTIME_DIR": str(folder)}
        self._output = folder / "up.out"
        self._up: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Cluster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Starts everything and returns when it serves.

        Raises:
            AssertionError: it does not; the text has what `up` said.
        """
        limit = START_LIMIT_ON_ENGINES_S if self.on_engines else START_LIMIT_S
        up = await self.launch()
        try:
            await until(lambda: up.returncode is not None or self._serves(up.pid), limit, "everything to serve")
        except AssertionError:
            up.kill()
            await up.wait()
            raise AssertionError(f"not ready within {limit:g} s:\n{self.output()}") from None
        assert up.returncode is None, f"heliograph up ended with {up.returncode}:\n{self.output()}"

    async def launch(self) -> asyncio.subprocess.Process:
        """Starts `heliograph up` and returns its process at once."""
        flags = ["--state-dir", str(self.place.state), "--base-port", str(self.base_port)]
        flags += ["--gateways", str(self._gateways), *self._arguments]
        flags += ["--direct"] if self.shape == "processes" else []
        flags += ["--trace"] if self._trace else []
        if self.on_engines:
            flags += ["--engines", str(self._engines_file()), "--name", self.name, "--create"]
        command = [sys.executable, "-m", self._program, "up", *flags]
        with self._output.open("ab") as output:
            # The wrapper ends it with the test run, however that ends.
            self._up = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _WRAPPER, str(os.getpid())),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environ,
                start_new_session=True,
            )
        return self._up

    async def stop(self) -> int:
        """Stops everything in order and returns the exit code of `heliograph up`; stopped already is fine.

        Raises:
            AssertionError: it does not stop in time; it is killed.
        """
        up = self._up
        if up is None:
            return 0
        if up.returncode is None:
            up.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                return await up.wait()
        except TimeoutError:
            up.kill()
            await up.wait()
            raise AssertionError(f"not stopped within {STOP_LIMIT_S:g} s:\n{self.output()}") from None

    async def end_abruptly(self) -> None:
        """Kills `heliograph up` itself; its children end on their own."""
        assert self._up is not None
        self._up.kill()
        await self._up.wait()

    @property
    def urls(self) -> Mapping[str, Mapping[str, str]]:
        """The settings of each service by which it finds its stores at the engines."""
        return service_urls(read_engines(self._engines_file()), self.name)

    def output(self) -> str:
        """Returns what `heliograph up` has said so far."""
        return self._output.read_text(encoding="utf-8") if self._output.exists() else ""

    # ---------------------------------------------------------------- processes

    @property
    def running(self) -> UpRecord:
        """What runs now, as `up.json` says."""
        found = record.read(self.place.record)
        assert found is not None, "nothing was started yet"
        return found

    def process(self, name: str) -> ProcessRecord:
        """Returns one process by its name, such as "delivery" or `node(0)`."""
        return self.running.processes[name]

    @property
    def nodes(self) -> list[str]:
        """The ids of the gateway nodes, which are the names of their processes."""
        return [name for name, one in self.running.processes.items() if _is_node(one)]

    def node(self, index: int) -> str:
        """Returns the id of a gateway node."""
        return self.nodes[index]

    def send(self, name: str, number: signal.Signals) -> ProcessRecord:
        """Sends a signal to a process and returns the process as it was."""
        one = self.process(name)
        assert one.pid, f"{name} does not run"
        os.kill(one.pid, number)
        return one

    async def kill(self, name: str) -> ProcessRecord:
        """Kills a process with SIGKILL, waits until that was noticed, and returns it as it was."""
        one = self.send(name, signal.SIGKILL)
        await until(lambda: self.process(name).pid != one.pid, 10.0, f"the end of {name} to be noticed")
        return one

    async def wait_restarted(self, before: ProcessRecord, limit_s: float = 20.0) -> ProcessRecord:
        """Waits until a process that was there before serves again, and returns it as it is now."""

        def again() -> bool:
            now = self.process(before.name)
            return now.state == "serving" and now.pid not in (0, before.pid)

        await until(again, limit_s, f"{before.name} to serve again")
        return self.process(before.name)

    # ---------------------------------------------------------------- callers

    @property
    def reach(self) -> Reach:
        """How the command's own code finds this cluster."""
        return Reach(state_dir=self.place.state)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Opens channels to call any method as a producer, a recipient or an operator."""
        async with connect(self.reach, self.place) as connection:
            yield connection

    def token(self, recipient: str, *, role: str = "recipient", tenant: str = TENANT, lifetime: float = 600.0) -> str:
        """Returns a token."""
        return sign(self.place, Actor(role, recipient, tenant), lifetime)

    @asynccontextmanager
    async def publisher(self, producer: str = PRODUCER, tenant: str = TENANT) -> AsyncIterator[Publisher]:
        """Opens a publisher of the SDK: through the edge with a certificate, or at ingest's socket."""
        async with self.connection() as connection, connection.publisher(Actor("producer", producer, tenant)) as one:
            yield one

    @asynccontextmanager
    async def subscriber(
        self,
        recipient: str,
        *,
        device_id: str = "device",
        tenant: str = TENANT,
        node: str = "",
        auto_ack: bool = True,
        remember: bool = False,
        on_update: Callable[[Update], None] | None = None,
        transport: Transport = "websocket",
    ) -> AsyncIterator[Subscriber]:
        """Opens a subscriber of the SDK: through the edge, or at a gateway node in the shape `processes`."""
        async with self.connection() as connection:
            actor = Actor("recipient", recipient, tenant)
            subscriber = connection.subscriber(
                actor,
                device_id,
                node=node,
                remember=remember,
                auto_ack=auto_ack,
                on_update=on_update,
                transport=transport,
            )
            async with subscriber:
                yield subscriber

    async def publish(self, *recipients: str, title: str = "Hello", category: str = "general") -> str:
        """Publishes one event as the development producer, and returns its id."""
        async with self.publisher() as publisher:
            return (await publisher.publish(category=category, to=recipients, title=title)).event_id

    async def inbox(self, recipient: str) -> list[inbox_service_pb2.InboxItem]:
        """Returns a recipient's list, newest first."""
        async with self.connection() as connection:
            answer: inbox_service_pb2.ListInboxResponse = await connection.call(
                "delivery",
                lambda channel: inbox_service_pb2_grpc.InboxServiceStub(channel).ListInbox,
                inbox_service_pb2.ListInboxRequest(page_size=200),
                Actor("recipient", recipient, TENANT),
            )
        return list(answer.items)

    async def run(self, *words: str) -> tuple[int, str, str]:
        """Runs `heliograph` with this cluster's state folder; returns exit code, output and errors."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "heliograph_cli", *words, "--state-dir", str(self.place.state)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environ,
        )
        try:
            async with asyncio.timeout(20.0):
                output, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return process.returncode or 0, output.decode(), errors.decode()

    def _engines_file(self) -> Path:
        """Writes down where the engines are, with as many copies as they can keep."""
        path = self.place.state.parent / "engines.json"
        found = engines.urls()
        copies = found["kafka"].count(",") + 1
        path.write_text(json.dumps({**found, "replicas": copies, **self._stores}), encoding="utf-8")
        return path

    def _serves(self, pid: int) -> bool:
        found = record.read(self.place.record)
        return found is not None and found.pid == pid and found.state == "serving"


def on_engines(environ: Mapping[str, str]) -> bool:
    """Tells whether stores are at the engines: STORES is "engines"; without it they are embedded."""
    asked = environ.get("STORES", "") or "embedded"
    assert asked in ("embedded", "engines"), f"STORES={asked}: must be embedded or engines"
    return asked == "engines"


def _is_node(one: ProcessRecord) -> bool:
    return one.kind == "service" and one.service == "gateway"

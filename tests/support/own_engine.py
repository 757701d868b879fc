"""An engine server of a test's own, on a port of its own: to be killed, stilled, set up wrongly and started again.

It must not touch what all tests share, and not know which engine it is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from deploy.engines import jars
from deploy.engines.choices import INNER_OFFSET, OFFSETS, Choices, EngineName, cache_folder
from deploy.engines.machine import Java, look
from deploy.engines.server import Server
from tests.support.ports import free_port

_LIMIT_S = 60.0

Value = TypeVar("Value")

# Makes the servers of an engine: from the choices, the folder of what was fetched and the Java to run.
Servers = Callable[[Choices, Path, Java | None], Sequence[Server]]
# Writes a server's settings, with more beside ours.
Write = Callable[[Choices, Server, Mapping[str, Value]], None]


class OwnEngine(Generic[Value]):
    """One server; it does not run yet.

    Args:
        engine: its name, which is the scheme of its URLs.
        folder: for its files.
        wanted: the jars it runs from.
        servers: makes it.
        write: writes its settings.
    """

    def __init__(
        self, engine: EngineName, folder: Path, wanted: jars.Jars, servers: Servers, write: Write[Value]
    ) -> None:
        self.folder = folder
        self.port = free_port(INNER_OFFSET)
        self._engine = engine
        self._settings: Mapping[str, Value] = {}
        choices = Choices(folder, self.port - OFFSETS[engine], quick=True)
        cache, java = cache_folder(os.environ), look(os.environ, folder).java
        if java is None or not jars.is_fetched(cache, wanted):
            pytest.fail(f"{engine} was not fetched, or there is no Java for it: run `make engines` once")
        (server,) = servers(choices, cache, java)

        def prepare() -> None:
            server.prepare()
            write(choices, server, self._settings)

        def answers() -> bool:
            # It listens last, and behind a guarded listener only that is seen.
            if not self._settings:
                return server.answers()
            with socket.create_connection(("127.0.0.1", self.port), 1.0):
                return True

        self._server = dataclasses.replace(server, prepare=prepare, answers=answers)

    def url(self, name: str, *, client: str = "", **options: str) -> str:
        """The URL of a name at it, one copy of everything."""
        words = "&".join(f"{option}={value}" for option, value in ({"replicas": "1"} | options).items())
        return f"{client or self._engine}://127.0.0.1:{self.port}/{name}?{words}"

    async def start(self, settings: Mapping[str, Value] | None = None) -> None:
        """Starts it on the data that is there, and waits until it answers.

        Args:
            settings: those beside ours; None: as before.
        """
        if settings is not None:
            self._settings = settings
        await asyncio.to_thread(self._server.start, threading.Event(), _LIMIT_S)

    async def set_up(self, **settings: Value) -> None:
        """Sees to it that it runs with these settings and no others beside ours."""
        if self._server.pid() is not None:
            if settings == self._settings:
                return
            await self.kill()
        await self.start(settings)

    async def kill(self) -> None:
        """Ends it with SIGKILL; returns when its ports are free."""
        self.wake()
        await asyncio.to_thread(self._server.kill)

    def still(self) -> None:
        """Stops it in its tracks: connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Lets it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self._server.pid()) is not None:
            os.kill(pid, number)


@asynccontextmanager
async def own_engine(
    engine: EngineName, wanted: jars.Jars, servers: Servers, write: Write[Value]
) -> AsyncIterator[OwnEngine[Value]]:
    """Makes a server that does not run yet; kills it at the end and removes its folder. See `OwnEngine`."""
    folder = Path(tempfile.mkdtemp(prefix=f"hg-{engine}-"))
    own = OwnEngine(engine, folder, wanted, servers, write)
    try:
        yield own
    finally:
        await own.kill()
        shutil.rmtree(folder, ignore_errors=True)

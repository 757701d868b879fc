"""A Cassandra node of a test's own, on a port of its own: to be killed, stilled and set up wrongly.

It takes some seconds to start, so one serves a module. It must not touch the node that all tests share.
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.engines import cassandra, jars
from deploy.engines.choices import INNER_OFFSET, OFFSETS, Choices, cache_folder
from deploy.engines.machine import look
from deploy.engines.server import Server

_LIMIT_S = 60.0


def _free_port() -> int:
    """A port that is free together with the one for other nodes."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + INNER_OFFSET))
            except OSError:
                continue
            return port


class CassandraNode:
    """One node; `cassandra_node` makes it and takes it away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._settings: dict[str, cassandra.Yaml] = {}
        self._server = self._made({})

    def url(self, keyspace: str, *, client: str = "cassandra", **options: str) -> str:
        """The URL of a keyspace, one copy of each row."""
        words = "&".join(f"{name}={value}" for name, value in ({"replicas": "1"} | options).items())
        return f"{client}://127.0.0.1:{self.port}/{keyspace}?{words}"

    async def start(self) -> None:
        """Starts it on the data that is there, set up as before, and waits until it takes questions."""
        await asyncio.to_thread(self._server.start, threading.Event(), _LIMIT_S)

    async def set_up(self, **settings: cassandra.Yaml) -> None:
        """Sees to it that it runs with these settings of cassandra.yaml and no others than ours beside them."""
        if self._server.pid() is not None:
            if settings == self._settings:
                return
            await self.kill()
        self._settings = settings
        self._server = self._made(settings)
        await self.start()

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

    def _made(self, settings: dict[str, cassandra.Yaml]) -> Server:
        choices = Choices(self.folder, self.port - OFFSETS["cassandra"], quick=True)
        cache, java = cache_folder(os.environ), look(os.environ, self.folder).java
        if java is None or not jars.is_fetched(cache, cassandra.JARS):
            pytest.fail("Cassandra was not fetched: run `make engines` once")
        (server,) = cassandra.servers(choices, cache, java)

        def prepare() -> None:
            server.prepare()
            merged = {**cassandra.settings(choices, 1, server.folder), **settings}
            (server.folder / "cassandra.yaml").write_text(cassandra.as_yaml(merged), encoding="utf-8")

        return dataclasses.replace(server, prepare=prepare, answers=self._listens)

    def _listens(self) -> bool:
        # It does so last, and a question would need a password where one is wanted.
        with socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True


@asynccontextmanager
async def cassandra_node() -> AsyncIterator[CassandraNode]:
    """Makes a node that does not run yet; kills it at the end and removes its folder."""
    folder = Path(tempfile.mkdtemp(prefix="hg-cassandra-"))
    node = CassandraNode(folder)
    try:
        yield node
    finally:
        await node.kill()
        shutil.rmtree(folder, ignore_errors=True)

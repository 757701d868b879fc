"""A Kafka broker of a test's own, on a port of its own: to be killed, stilled and started again.

It must not touch the broker that all tests share.
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
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.engines import jars, kafka
from deploy.engines.choices import INNER_OFFSET, OFFSETS, Choices, cache_folder
from deploy.engines.machine import look
from deploy.engines.server import Server

_LIMIT_S = 60.0


def free_port() -> int:
    """Returns a port that is free together with the controller's."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + INNER_OFFSET))
            except OSError:
                continue
            return port


class KafkaBroker:
    """One broker; `kafka_broker` makes it and takes it away.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._settings: dict[str, str] = {}
        choices = Choices(folder, self.port - OFFSETS["kafka"], quick=True)
        cache, java = cache_folder(os.environ), look(os.environ, folder).java
        if java is None or not jars.is_fetched(cache, kafka.JARS):
            pytest.fail("a Kafka broker needs Java 17 and its jars: run `make engines`")
        server: Server = kafka.servers(choices, cache, java)[0]

        def prepare() -> None:
            server.prepare()
            path = server.folder / "server.properties"
            path.write_text(kafka.as_properties({**kafka.settings(choices, 1, server.folder), **self._settings}))

        def answers() -> bool:
            # Behind a guarded listener only an open port is seen.
            if not self._settings:
                return server.answers()
            with socket.create_connection(("127.0.0.1", self.port), 1.0):
                return True

        self._server = dataclasses.replace(server, prepare=prepare, answers=answers)

    def url(self, prefix: str, **options: str) -> str:
        """The URL of a prefix of topics, one copy of each record."""
        words = "&".join(f"{name}={value}" for name, value in ({"replicas": "1"} | options).items())
        return f"kafka://127.0.0.1:{self.port}/{prefix}?{words}"

    async def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Starts it on the data that is there, with these settings beside ours, and waits until it answers."""
        self._settings = dict(settings or {})
        await asyncio.to_thread(self._server.start, threading.Event(), _LIMIT_S)

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
async def kafka_broker(*, started: bool = True) -> AsyncIterator[KafkaBroker]:
    """A broker without topics, running unless it is to be started later."""
    folder = Path(tempfile.mkdtemp(prefix="hg-kafka-"))
    broker = KafkaBroker(folder)
    try:
        if started:
            await broker.start()
        yield broker
    finally:
        await broker.kill()
        shutil.rmtree(folder, ignore_errors=True)

"""A Kafka broker of a test's own, on a port of its own: to be killed, stilled and started again.

It must not touch the broker that all tests share.
"""

from __future__ import annotations

import asyncio
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

from deploy.engines import jars, kafka
from deploy.engines.choices import INNER_OFFSET, OFFSETS, Choices, cache_folder
from deploy.engines.machine import look
from deploy.engines.server import Server

_LIMIT_S = 60.0


def _free_port() -> int:
    """A port that is free together with the controller's."""
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
    """One broker; `kafka_broker` makes it and takes it away."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        choices = Choices(folder, self.port - OFFSETS["kafka"], quick=True)
        cache, java = cache_folder(os.environ), look(os.environ, folder).java
        if java is None or not jars.is_fetched(cache, kafka.JARS):
            pytest.fail("a Kafka broker needs Java 17 and its jars: run `make engines`")
        self._server: Server = kafka.servers(choices, cache, java)[0]

    def url(self, prefix: str, *, partitions: int = 4) -> str:
        """The URL of a prefix of topics."""
        return f"kafka://127.0.0.1:{self.port}/{prefix}?partitions={partitions}&replicas=1"

    async def start(self) -> None:
        """Starts it on the data that is there, and waits until it answers."""
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
async def kafka_broker() -> AsyncIterator[KafkaBroker]:
    """A running broker without topics."""
    folder = Path(tempfile.mkdtemp(prefix="hg-kafka-"))
    broker = KafkaBroker(folder)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.kill()
        shutil.rmtree(folder, ignore_errors=True)

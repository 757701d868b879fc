"""A Kafka broker of a test's own: to be killed, stilled and started again.

It must not touch the broker that all tests share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from deploy.engines import kafka
from deploy.engines.choices import Choices
from deploy.engines.server import Server
from tests.support.own_engine import OwnEngine, own_engine

KafkaBroker = OwnEngine[str]


def _write(choices: Choices, server: Server, more: Mapping[str, str]) -> None:
    text = kafka.as_properties({**kafka.settings(choices, 1, server.folder), **more})
    (server.folder / "server.properties").write_text(text, encoding="utf-8")


@asynccontextmanager
async def kafka_broker(*, started: bool = True) -> AsyncIterator[KafkaBroker]:
    """A broker without topics, running unless it is to be started later."""
    async with own_engine("kafka", kafka.JARS, kafka.servers, _write) as broker:
        if started:
            await broker.start()
        yield broker

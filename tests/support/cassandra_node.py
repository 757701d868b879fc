"""A Cassandra node of a test's own: to be killed, stilled and set up wrongly.

It takes some seconds to start, so one serves a module. It must not touch the node that all tests share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from deploy.engines import cassandra
from deploy.engines.choices import Choices
from deploy.engines.server import Server
from tests.support.own_engine import OwnEngine, own_engine

CassandraNode = OwnEngine[cassandra.Yaml]


def _write(choices: Choices, server: Server, more: Mapping[str, cassandra.Yaml]) -> None:
    text = cassandra.as_yaml({**cassandra.settings(choices, 1, server.folder), **more})
    (server.folder / "cassandra.yaml").write_text(text, encoding="utf-8")


@asynccontextmanager
async def cassandra_node() -> AsyncIterator[CassandraNode]:
    """Makes a node that does not run yet; kills it at the end and removes its folder."""
    async with own_engine("cassandra", cassandra.JARS, cassandra.servers, _write) as node:
        yield node

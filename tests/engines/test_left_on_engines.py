"""What tests left on engines that live on is found by its name and removed; nothing else is."""

from __future__ import annotations

import re
import uuid

import aiokafka.admin
import pytest

from mesh import postgres
from mesh.cassandra_driver import open_driver
from mesh.kafka import parse_cluster
from tests.support import left_on_engines
from tests.support.cassandra import keyspace_url
from tests.support.engines import urls

pytestmark = pytest.mark.engines


@pytest.fixture
def name() -> str:
    """Of this test alone: others' must stay while they run."""
    return f"hgtest_left_{uuid.uuid4().hex}"


async def test_topics_go(name: str) -> None:
    """The topics of one lane, and no other."""
    cluster = parse_cluster("tests", f"{urls()['kafka'].rstrip('/')}/none?replicas=1")
    admin = aiokafka.admin.AIOKafkaAdminClient(**cluster.connection())
    await admin.start()
    try:
        await admin.create_topics([aiokafka.admin.NewTopic(f"{name}.high", 1, 1)])
    finally:
        await admin.close()
    wanted = re.compile(rf"{name}\..+")
    assert await left_on_engines.remove_topics(wanted) == [f"{name}.high"]


async def test_keyspaces_go(name: str) -> None:
    """One keyspace, and none at the second time."""
    session = await open_driver(keyspace_url("none"), keyspace=None, timeout=10.0)
    try:
        await session.run(
            f"create keyspace {name} with replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
    finally:
        await session.close()
    wanted = re.compile(name)
    assert await left_on_engines.remove_keyspaces(wanted) == [name]
    assert await left_on_engines.remove_keyspaces(wanted) == []


async def test_schemas_go(name: str) -> None:
    """One schema with what is in it, and none at the second time."""
    session = await postgres.connect(postgres.parse_place("tests", f"{urls()['postgresql']}?schema=none"))
    try:
        await session.run(f"create schema {name}; create table {name}.one (id int)")
    finally:
        await session.close()
    wanted = re.compile(name)
    assert await left_on_engines.remove_schemas(wanted) == [name]
    assert await left_on_engines.remove_schemas(wanted) == []


def test_only_a_tests_names_are_meant() -> None:
    """What a person may have named stays, however short or odd."""
    tests = ["t0123456789ab", "t0123456789ab.high", "t_" + "a" * 32, "test-" + "0" * 32 + ".bulk", "hgtest_17_0"]
    others = ["heliograph", "heliograph.high", "t", "test", "t0123456789a", "tea.high", "test-lanes.high", "system"]
    assert left_on_engines.left([*others, *tests]) == sorted(tests)

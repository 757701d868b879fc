"""A Kafka that lets in only who has its certificate checked and a password: what goes through, and what is told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.clock import SystemClock
from mesh.envoy.pki import Authority, Names, create_authority, issue, pem
from mesh.errors import StartError
from mesh.kafka import parse_cluster
from mesh.lanes import LaneUnavailable, Record, lane_stores
from mesh.lanes.kafka import KafkaLaneWriter
from mesh.lanes.kafka_reader import KafkaLaneReader
from mesh.stores import StoreAdmin, require_all
from tests.support.kafka_broker import KafkaBroker, kafka_broker
from tests.support.ports import free_port
from tests.support.wait import until

# A broker takes some seconds to start, on a busy machine more.
pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]

LANE = "normal"
PREFIX = "guarded"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture
async def broker() -> AsyncIterator[KafkaBroker]:
    """A broker of the test's own, which does not run yet."""
    async with kafka_broker(started=False) as made:
        yield made


def guard(broker: KafkaBroker, authority: Authority, lifetime: float) -> dict[str, str]:
    """Settings of a listener with TLS and passwords."""
    leaf = issue(authority, Names("kafka", addresses=("127.0.0.1",)), time.time(), lifetime)
    store = broker.folder / "keystore.pem"
    store.write_bytes(leaf.key + leaf.certificate)
    outer, inner = f"PLAINTEXT://127.0.0.1:{broker.port}", f"INNER://127.0.0.1:{free_port()}"
    return {
        "listeners": f"{outer},{inner},CONTROLLER://127.0.0.1:{broker.port + 1}",
        "advertised.listeners": f"{outer},{inner}",
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        # A broker does not start with a certificate that it would not let in itself.
        "inter.broker.listener.name": "INNER",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": (f'{_LOGIN} user_heliograph="open sesame";'),
    }


def admin_of(url: str) -> StoreAdmin:
    """The upkeep of one lane."""
    (admin,) = lane_stores(url, [LANE], reads=True)
    return admin


async def refused(url: str) -> str:
    """Why a start is refused, in one line that shows no password."""
    with pytest.raises(StartError) as caught:
        await require_all([admin_of(url)])
    text = str(caught.value)
    assert "\n" not in text
    assert "sesame" not in text
    return text


async def test_what_is_guarded_is_told_and_the_right_ones_get_in(broker: KafkaBroker, tmp_path: Path) -> None:
    """An expired certificate, a strange root, no TLS and a wrong password are a line each; the right ones get in."""
    authority, stranger = (create_authority(name, time.time(), 3600) for name in ("ours", "stranger"))
    for name, content in (
        ("ours", pem(authority.certificate)),
        ("theirs", pem(stranger.certificate)),
        ("right", b"heliograph:open sesame\n"),
        ("wrong", b"heliograph:open barley\n"),
    ):
        (tmp_path / name).write_bytes(content)

    def url(ca: str, credentials: str) -> str:
        files = {"ca": ca, "credentials": credentials}
        return broker.url(PREFIX, sasl="PLAIN", **{key: str(tmp_path / name) for key, name in files.items() if name})

    await broker.start(guard(broker, authority, -60))
    assert "certificate has expired" in await refused(url("ours", "right"))
    await broker.kill()
    await broker.start(guard(broker, authority, 3600))
    assert "certificate verify failed" in await refused(url("theirs", "right"))
    assert "closed" in await refused(url("", "right"))

    async def serves() -> bool:
        # Right after a start it does not know its own users yet.
        try:
            await admin_of(url("ours", "right")).check()
        except StartError:
            return False
        return True

    await until(serves, 60.0, "the broker lets the right one in")
    assert "uthentication" in await refused(url("ours", "wrong"))
    good = url("ours", "right")
    await admin_of(good).create(dry_run=False)
    await require_all([admin_of(good)])
    cluster = parse_cluster("lanes_url", good)
    writer = KafkaLaneWriter(LANE, cluster=cluster, clock=SystemClock())
    reader = KafkaLaneReader(LANE, cluster=cluster, clock=SystemClock())
    await writer.open()
    await reader.open()
    await writer.append([Record(b"k", b"v")])
    (record,) = await reader.read(10, 20.0)
    await reader.commit(record.position)
    assert record.value == b"v"
    await reader.close()
    await writer.close()
    unwelcome = KafkaLaneWriter(LANE, cluster=parse_cluster("lanes_url", url("ours", "wrong")), clock=SystemClock())
    with pytest.raises(LaneUnavailable):
        await unwelcome.open()

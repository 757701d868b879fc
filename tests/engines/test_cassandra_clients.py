"""What each client of Cassandra bears: a node that is gone, one that is still, certificates that are wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from deploy.engines.cassandra import Yaml
from mesh.cassandra import REQUEST_TIMEOUT, Session, StoreUnavailable, open_session, parse
from mesh.clock import SystemClock
from mesh.dependencies import Dependencies
from mesh.envoy import pki
from mesh.errors import StartError
from mesh.telemetry import Telemetry
from svc_delivery.store.cassandra_store import CassandraStore, inbox_admin
from svc_delivery.store.sqlite import Limits
from tests.support.cassandra_node import CassandraNode, cassandra_node
from tests.support.wait import until

# A node takes some seconds to start, on a busy machine more.
pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]

CLIENTS = ("cassandra", "cassandra+acsylla")
DAY = 86_400.0
PASSWORD = "changeit"
ASK = "select release_version from system.local"


@pytest.fixture(params=CLIENTS, ids=["cassandra", "acsylla"])
def client(request: pytest.FixtureRequest) -> str:
    """The scheme of each client."""
    scheme: str = request.param
    return scheme


@pytest.fixture(scope="module")
async def node() -> AsyncIterator[CassandraNode]:
    """A node of this module's own; each test sets it up."""
    async with cassandra_node() as made:
        yield made


async def refused(url: str) -> str:
    """Why a session is not opened, in one line that begins with the URL."""
    with pytest.raises(StartError) as caught:
        await open_session(parse("tests", url))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{url}: ")
    return text


async def answers(session: Session) -> bool:
    """Whether the session reaches a node now."""
    try:
        return len(await session.execute(ASK)) == 1
    except StoreUnavailable:
        return False


# ---------------------------------------------------------------- gone, still


async def test_health_tells_that_the_store_is_gone(node: CassandraNode, client: str) -> None:
    """Killed: it is named as gone; started again: it is back, with nobody having done anything."""
    await node.set_up()
    url = node.url("health", client=client)
    await inbox_admin(url).create(dry_run=False)
    store = CassandraStore(url, limits=Limits(), clock=SystemClock())
    await store.open()
    told: list[tuple[str, bool]] = []
    watch = Dependencies(
        telemetry=Telemetry("delivery"), log=structlog.get_logger(), monotonic=time.monotonic, interval=0.1
    )
    watch.watch("store", url, store)
    watch.on_change(lambda name, here: told.append((name, here)))
    looking = asyncio.ensure_future(watch.run())
    try:
        await until(lambda: told == [("store", True)], 5.0, "it is there")
        await node.kill()
        await until(lambda: watch.gone() == ["store"], 5.0, "the loss is told")
        await node.start()
        await until(lambda: watch.gone() == [], 15.0, "it is back")
        assert [here for _, here in told] == [True, False, True]
        assert list(await store.inbox.heads(["acme/alice"])) == [0]
    finally:
        looking.cancel()
        await store.close()


async def test_a_node_that_stands_still_bounds_calls(node: CassandraNode, client: str) -> None:
    """By the caller's deadline, else by the request's; a start is refused in time; then everything goes on."""
    await node.set_up()
    url = node.url("system", client=client)
    session = await open_session(parse("tests", url))
    assert await answers(session)
    node.still()
    try:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.execute(ASK), 0.3)
        assert time.monotonic() - began < 1.0
        # More than may be in flight: those that wait for a turn are told in time as well.
        began = time.monotonic()
        outcomes = await asyncio.gather(*[session.execute(ASK) for _ in range(300)], return_exceptions=True)
        assert time.monotonic() - began < REQUEST_TIMEOUT + 1.0
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        began = time.monotonic()
        assert "cannot be reached" in await refused(url)
        assert time.monotonic() - began < 15.0
    finally:
        node.wake()
    await until(lambda: answers(session), 10.0, "it answers again")
    await session.close()


# ---------------------------------------------------------------- TLS


class Certificates:
    """A root and what it issues, as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = pki.create_authority("engines", time.time() - 9 * DAY, 90 * DAY)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(pki.pem(self._root.certificate))
        self.foreign = folder / "foreign.pem"
        self.foreign.write_bytes(pki.pem(pki.create_authority("engines", time.time(), DAY).certificate))

    def of_node(self, name: str, *, address: str = "127.0.0.1", issued: float = 0.0) -> Yaml:
        """The node's setting, with a certificate for an address, a day long, from so many seconds ago."""
        leaf = pki.issue(self._root, pki.Names("node", addresses=(address,)), time.time() - issued, DAY)
        certificate, key = x509.load_pem_x509_certificate(leaf.certificate), load_pem_private_key(leaf.key, None)
        path = self._folder / f"{name}.p12"
        encryption = BestAvailableEncryption(PASSWORD.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"node",
                key,  # type: ignore[arg-type]  # the root's keys are of a kind that PKCS 12 takes
                certificate,
                [self._root.certificate],
                encryption,
            )
        )
        return {"enabled": True, "keystore": str(path), "keystore_password": PASSWORD, "store_type": "PKCS12"}


async def test_tls_is_spoken_to_the_right_node_only(node: CassandraNode, tmp_path: Path) -> None:
    """A foreign root, no TLS at all, a certificate for another address, an expired one: one line each.

    A session that was open goes on by itself once the certificate is right again. All clients at once: each
    certificate is a start of the node.
    """
    certificates = Certificates(tmp_path)
    urls = [node.url("system", client=client, ca=str(certificates.ca)) for client in CLIENTS]
    await node.set_up(client_encryption_options=certificates.of_node("right"))
    sessions = [await open_session(parse("tests", url)) for url in urls]
    for client, session in zip(CLIENTS, sessions, strict=True):
        assert await answers(session)
        assert "cannot be reached" in await refused(node.url("system", client=client))
        assert "certificate" in await refused(node.url("system", client=client, ca=str(certificates.foreign)))
    await node.set_up(client_encryption_options=certificates.of_node("other", address="127.0.0.9"))
    for url in urls:
        assert "match" in await refused(url)
    await node.set_up(client_encryption_options=certificates.of_node("expired", issued=3 * DAY))
    for url, session in zip(urls, sessions, strict=True):
        assert "certificate has expired" in await refused(url)
        assert not await answers(session)
        # It is told by the connection, or by the next try to make one.
        await until(lambda session=session: not session.connected, 15.0, "the session knows")  # type: ignore[misc] # a default's type is not inferred
    await node.set_up(client_encryption_options=certificates.of_node("renewed"))
    for session in sessions:
        await until(partial(answers, session), 15.0, "the session goes on")
        await session.close()

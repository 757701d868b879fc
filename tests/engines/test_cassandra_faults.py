"""What delivery bears of its Cassandra: a node that is killed under load, and nodes that are set up wrongly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from mesh.cassandra import REQUEST_TIMEOUT, open_session, parse
from mesh.cassandra_admin import KeyspaceAdmin
from mesh.cassandra_migrations import load_migrations
from mesh.clock import Stamper, SystemClock
from mesh.errors import StartError, Unavailable
from mesh.ids import derive_id
from mesh.stores import require
from svc_delivery.ports import Inbox, RowKey, RowsRefused, RowWrite
from svc_delivery.store.cassandra import CassandraInbox
from svc_delivery.store.sqlite import Limits
from tests.support.cassandra_node import CassandraNode, cassandra_node
from tests.support.wait import until

# A node takes some seconds to start, on a busy machine more.
pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]

CLIENTS = [pytest.param("cassandra"), pytest.param("cassandra+acsylla", id="acsylla")]
WRITERS = 32


@pytest.fixture(scope="module")
async def node() -> AsyncIterator[CassandraNode]:
    """A node of this module's own; each test sets it up."""
    async with cassandra_node() as made:
        yield made


def admin(url: str) -> KeyspaceAdmin:
    """The upkeep of a keyspace of delivery."""
    return KeyspaceAdmin("inboxes", parse("tests", url), load_migrations("svc_delivery.store", "cassandra_migrations"))


async def refused(url: str) -> str:
    """Why a start is refused, in one line."""
    with pytest.raises(StartError) as caught:
        await require(admin(url))
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Writing:
    """Writers that write one row after the other and remember which were answered."""

    def __init__(self, inbox: Inbox, name: str) -> None:
        self._inbox = inbox
        self._name = name
        self._stamper = Stamper(SystemClock())
        self._ended = False
        self.acked: list[RowKey] = []
        self.failures: list[float] = []
        self.last_ack = 0.0

    async def run(self) -> None:
        """Writes until it is ended."""
        await asyncio.gather(*[self._write(number) for number in range(WRITERS)])

    def end(self) -> None:
        """No more rows."""
        self._ended = True

    async def _write(self, number: int) -> None:
        count = 0
        while not self._ended:
            count += 1
            key = RowKey(
                f"acme/{self._name}-{number}",
                derive_id(int(time.time() * 1000), [b"%d/%d" % (number, count)], count % 5 == 0),
            )
            row = RowWrite(key.recipient_key, key.notification_id, 1, "general", b"x" * 200)
            began = time.monotonic()
            try:
                await self._inbox.write([row], stamp=self._stamper.next())
            except (Unavailable, RowsRefused):
                self.failures.append(time.monotonic() - began)
                # With nobody there a failure takes no time; the loop must go on for others.
                await self._rest(began + 0.05)
            else:
                self.acked.append(key)
                self.last_ack = time.monotonic()

    async def _rest(self, end: float) -> None:
        await until(lambda: self._ended or time.monotonic() > end, 1.0)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_killed_node_costs_nothing_that_was_acked(node: CassandraNode, client: str) -> None:
    """Under load: calls fail soon, the process finds the node again by itself, every acked row is there."""
    await node.set_up()
    url = node.url("kills", client=client)
    await admin(url).create(dry_run=False)
    session = await open_session(parse("tests", url))
    inbox = CassandraInbox(session, limits=Limits())
    await inbox.load()
    writing = Writing(inbox, client.partition("+")[2] or "driver")
    task = asyncio.ensure_future(writing.run())
    try:
        await until(lambda: len(writing.acked) > 2_000, 30.0, "rows are acked")
        await node.kill()
        await until(lambda: len(writing.failures) > WRITERS, 6 * REQUEST_TIMEOUT, "calls fail")
        await until(lambda: not session.connected, 20.0, "the loss is noticed")
        await node.start()
        answered, before = time.monotonic(), len(writing.acked)
        await until(lambda: len(writing.acked) > before + 200, 20.0, "rows are acked again")
        assert time.monotonic() - answered < 15.0
        assert session.connected
    finally:
        writing.end()
        await task
    assert max(writing.failures) < REQUEST_TIMEOUT + 2.0
    await all_there(inbox, writing.acked)
    await session.close()


async def all_there(inbox: Inbox, keys: Sequence[RowKey]) -> None:
    """Each row can be read."""
    for start in range(0, len(keys), 1_000):
        part = keys[start : start + 1_000]
        found = await inbox.states(part)
        assert [key for key, state in zip(part, found, strict=True) if state is None] == []


async def test_a_node_that_answers_before_it_syncs_is_refused(node: CassandraNode) -> None:
    """Alone, it would lose the last rows it had answered; the setting is named."""
    url = node.url("synced")
    await node.set_up(commitlog_sync="periodic", commitlog_sync_period="10000ms")
    await admin(url).create(dry_run=False)
    assert "commitlog_sync: periodic on 127.0.0.1" in await refused(url)


async def test_a_wrong_password_is_one_line(node: CassandraNode, tmp_path: Path) -> None:
    """It names the option; the password is nowhere in it."""
    await node.set_up(authenticator="PasswordAuthenticator", authorizer="CassandraAuthorizer")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("cassandra:cassandra\n", encoding="utf-8")
    wrong.write_text("cassandra:guessed-7\n", encoding="utf-8")
    await until(lambda: _connects(node.url("nobody_made_this", credentials=str(right))), 20.0, "there are roles")
    text = await refused(node.url("nobody_made_this", credentials=str(wrong)))
    assert "credentials are refused" in text
    assert "guessed-7" not in text
    assert "credentials" in await refused(node.url("nobody_made_this"))


async def _connects(url: str) -> bool:
    try:
        await require(admin(url))
    except StartError as error:
        return "keyspace nobody_made_this: missing" in str(error)
    return True

"""What producers and clients see when Redis is killed, stands still or forgets: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heliograph_cli import health
from mesh.app import App
from mesh.clock import ManualClock, SystemClock
from mesh.settings import load
from svc_ingest.store import open_store
from svc_presence.main import wire
from svc_presence.settings import PresenceSettings
from svc_presence.store import open_store as open_presence
from tests.support.nodes import Node
from tests.support.publishing import NOW, Ingest, open_lanes, publish_request, request_id
from tests.support.redis_servers import RedisServer, redis_server
from tests.support.sessions import id_of
from tests.support.wait import until

pytestmark = pytest.mark.engines

ALICE = "acme/alice"
LEASE = 2.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """A server of the test's own."""
    async with redis_server(tmp_path) as running:
        yield running


def url_of(server: RedisServer) -> str:
    """Its URL."""
    return f"redis://127.0.0.1:{server.port}/0?prefix=own"


@asynccontextmanager
async def ingest_on(server: RedisServer, folder: Path) -> AsyncIterator[Ingest]:
    """An ingest with its log in Redis and its lanes in a folder."""
    log = open_store(url_of(server), folder)
    await log.open()
    clock = ManualClock(NOW)
    async with open_lanes(folder, clock) as lanes:
        yield Ingest(log=log, lanes=lanes, clock=clock, folder=folder)
    await log.close()


class Presence:
    """The presence service on Redis, as its process runs it, and a look into what it keeps."""

    def __init__(self, run_dir: Path, server: RedisServer) -> None:
        self.socket = run_dir / "presence.sock"
        arguments = [f"--run-dir={run_dir}", f"--data-dir={run_dir}/data", "--direct", f"--lease={LEASE}"]
        settings = load(PresenceSettings, [*arguments, f"--store-url={url_of(server)}"], {})
        self.app = App(name="presence", settings=settings)
        wire(self.app, settings)
        self._store = open_presence(url_of(server), lease=LEASE, clock=SystemClock())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Presence]:
        """Runs it."""
        task = asyncio.create_task(self.app.run())
        await until(lambda: self.app.started.is_set() or task.done(), 10.0, "presence has started")
        await self._store.open()
        try:
            yield self
        finally:
            await self._store.close()
            self.app.request_stop("the test is over")
            await task

    async def knows(self, recipient_key: str = ALICE) -> bool:
        """Says whether a recipient has a session that counts."""
        (found,) = await self._store.look_up([recipient_key], SystemClock().monotonic())
        return bool(found)

    async def state(self) -> tuple[bool, list[str]]:
        """What health says: ready, and what is missing."""
        return await health.serves(self.socket, direct=True), await health.missing(self.socket, direct=True)


@asynccontextmanager
async def node_beside(presence: Presence, run_dir: Path, folder: Path) -> AsyncIterator[Node]:
    """A gateway node that renews its lease at a test's pace."""
    node = Node(run_dir, folder)
    flags = (f"--lease={LEASE}", "--lease-renewal=0.3", "--peer-timeout=0.5")
    async with presence.running(), node.running(*flags, with_presence=False):
        yield node


# ---------------------------------------------------------------- publishing


async def test_a_flushed_log_costs_a_second_record_and_no_second_id(server: RedisServer, run_dir: Path) -> None:
    """The repeat is accepted again under the same id: the inbox absorbs it."""
    async with ingest_on(server, run_dir) as ingest:
        request = publish_request(id_=request_id())
        first = await ingest.publish(request)
        assert (await ingest.publish(request)).replayed
        await server.ask(("FLUSHALL",))
        again = await ingest.publish(request)
        assert (again.event_id, again.replayed) == (first.event_id, False)
        one, two = await ingest.lane()
        assert one.envelope.notification == two.envelope.notification
        assert (await ingest.publish(request)).replayed


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_publishing_goes_on_without_the_log(server: RedisServer, run_dir: Path, fault: str) -> None:
    """A killed log, and one that does not answer, cost no event; when it is back, repeats are known again."""
    async with ingest_on(server, run_dir) as ingest:
        known = await ingest.publish(publish_request(id_=request_id(1)))
        if fault == "killed":
            server.kill()
        else:
            server.freeze()
        answers = await asyncio.gather(*[ingest.publish(publish_request(id_=request_id(n))) for n in range(2, 12)])
        assert ingest.metric("skipped_requests_total", step="begin") == 10
        if fault == "killed":
            await server.start()
        else:
            server.thaw()
        await ingest.settle()
        assert [one.envelope.event_id for one in await ingest.lane()] == [
            known.event_id,
            *(one.event_id for one in answers),
        ]
        later = await ingest.publish(publish_request(id_=request_id(20)))
        assert (await ingest.publish(publish_request(id_=request_id(20)))).event_id == later.event_id
        if fault == "frozen":
            assert (await ingest.publish(publish_request(id_=request_id(1)))).replayed


# ---------------------------------------------------------------- sessions


async def test_a_flush_is_repaired_by_the_nodes(server: RedisServer, run_dir: Path, tmp_path: Path) -> None:
    """The session stays open, is asserted at the next renewal, and gets what it missed by a replay."""
    presence = Presence(run_dir, server)
    async with node_beside(presence, run_dir, tmp_path) as node, node.device() as device:
        await until(presence.knows, 5.0, "the session is known")
        replays = len(node.inbox.replays)
        await server.ask(("FLUSHALL",))
        assert not await presence.knows()
        node.inbox.of(ALICE).write(id_of(1), 1, SystemClock().wall())
        await until(presence.knows, 5.0, "the session is known again")
        await device.has(id_of(1))
        assert len(node.inbox.replays) > replays
        assert device.closed is None


async def test_a_killed_redis_disconnects_nobody(server: RedisServer, run_dir: Path, tmp_path: Path) -> None:
    """Health names what is gone, readiness stays, and everything is back without a restart."""
    presence = Presence(run_dir, server)
    async with node_beside(presence, run_dir, tmp_path) as node, node.device() as device:
        await until(presence.knows, 5.0, "the session is known")

        async def says(*missing: str) -> bool:
            return await presence.state() == (True, list(missing))

        await until(says, 5.0, "health says that all is well")
        server.kill()
        await until(lambda: says("store"), 10.0, "health names the store")
        await server.start()
        await until(says, 10.0, "health says that all is well again")
        await until(presence.knows, 10.0, "the session is known again")
        node.inbox.of(ALICE).write(id_of(1), 1, SystemClock().wall())
        assert device.closed is None
        registry = presence.app.telemetry.registry
        assert registry.get_sample_value("heliograph_presence_dependency_up", {"dependency": "store"}) == 1.0

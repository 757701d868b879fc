"""svc_prefs on PostgreSQL as operators meet it: made by a command, refused without, and well again by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.prefs.v1 import prefs_service_pb2_grpc as stubs
from heliograph_cli import stores
from heliograph_cli.stores import Line, Target, all_well, collect
from mesh import status
from mesh.app import App
from mesh.errors import Unavailable
from svc_prefs.main import wire
from svc_prefs.settings import PrefsSettings
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.starts import DEPLOY, run_to_end, service_words
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(90)]

AS_FANOUT = (("x-heliograph-caller", "svc/fanout"),)


@pytest.fixture
async def server() -> AsyncIterator[PostgresServer]:
    """A server of the test's own, running, without any schema of ours."""
    async with postgres_server() as made:
        await made.make()
        await made.start()
        yield made


def targets(url: str) -> list[Target | Line]:
    """What `heliograph stores --service prefs` looks after."""
    return collect(["prefs"], {"prefs": ["--store-url", url]})


def said(lines: list[Line]) -> list[tuple[str, str]]:
    """The state and the text of each line."""
    return [(line.state, line.text) for line in lines]


@asynccontextmanager
async def prefs(url: str, run_dir: Path, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    """The service, ready, and a channel to it."""
    settings = PrefsSettings(
        run_dir=run_dir, data_dir=tmp_path, direct=True, store_url=url, categories_file=DEPLOY / "categories.toml"
    )
    app = App(name="prefs", settings=settings)
    wire(app, settings)
    running = asyncio.ensure_future(app.run())
    await until(lambda: app.started.is_set() or running.done(), 10, "prefs is ready")
    try:
        async with grpc.aio.insecure_channel(f"unix:{run_dir}/prefs.sock") as channel:
            yield channel
    finally:
        app.request_stop("test")
        await running


async def resolve(channel: grpc.aio.Channel) -> int:
    """Asks for somebody's wishes as fanout does; returns the number of items answered."""
    item = pb.ResolveItem(category="general", recipient_ids=["alice"])
    request = pb.BatchResolveRequest(tenant_id="acme", items=[item])
    try:
        answer = await stubs.PrefsServiceStub(channel).BatchResolve(request, timeout=10, metadata=AS_FANOUT)
    except grpc.aio.AioRpcError as error:
        raise status.from_call(error) from None
    return len(answer.items)


async def health(channel: grpc.aio.Channel, name: str) -> int:
    """What the service says of itself or of what it needs."""
    stub: Any = health_pb2_grpc.HealthStub(channel)  # Any: its methods are in no stub file
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5, metadata=AS_FANOUT)
    return int(answer.status)


async def test_a_start_is_refused_until_the_command_made_what_is_missing(
    server: PostgresServer, run_dir: Path, tmp_path: Path
) -> None:
    """Exit code 2 and one line that names the command; after it the service starts as it is."""
    url = server.url("wishes")
    words = service_words("prefs", run_dir, "--store-url", url)
    ended = await run_to_end("svc_prefs", *words)
    assert ended.code == 2
    place = f"preferences and subscriptions at {url}"
    line = f"heliograph prefs: {place}: database wishes: is not there; make it with `heliograph stores create`"
    assert ended.complaints == (line,)
    made = ["database wishes", "schema heliograph", "migration 0001_wishes of prefs in schema heliograph"]
    found = targets(url)
    assert said(await stores.check(found)) == [("missing", "database wishes: is not there")]
    assert said(await stores.create(found, dry_run=True)) == [("planned", one) for one in made]
    lines = await stores.create(found, dry_run=False)
    assert said(lines)[:3] == [("done", one) for one in made]
    assert {line.state for line in lines[3:]} == {"ok"}
    assert await stores.migrate(found, dry_run=False) == lines[3:]
    async with prefs(url, run_dir, tmp_path) as channel:
        assert await resolve(channel) == 1


async def test_the_service_tells_that_its_store_is_gone_and_is_well_again_by_itself(
    server: PostgresServer, run_dir: Path, tmp_path: Path
) -> None:
    """Calls say that they may be repeated, health names the dependency, and nobody restarts anything."""
    url = server.url(schema="wishes")
    assert all_well(await stores.create(targets(url), dry_run=False))
    async with prefs(url, run_dir, tmp_path) as channel:
        serving = health_pb2.HealthCheckResponse.SERVING

        async def is_there() -> bool:
            return await health(channel, "dependency/store") == serving

        async def is_gone() -> bool:
            return not await is_there()

        assert await resolve(channel) == 1
        await until(is_there, 5, "health says that the store is there")
        await server.kill()
        with pytest.raises(Unavailable) as caught:
            await resolve(channel)
        assert caught.value.reason == "STORE_UNAVAILABLE"
        await until(is_gone, 10, "health says that the store is gone")
        # The process itself is well: it is not to be restarted for this.
        assert await health(channel, "") == serving
        await server.start()
        await until(is_there, 10, "health says that the store is back")
        assert await resolve(channel) == 1

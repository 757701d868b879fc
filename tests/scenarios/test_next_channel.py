"""The channel behind live in a whole Heliograph: without a session it is used at once, without an ack later."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from heliograph.presence.v1 import presence_service_pb2 as presence_pb
from heliograph.presence.v1 import presence_service_pb2_grpc as presence_grpc
from heliograph_cli.connection import OPERATOR, Actor
from heliograph_client import AckLevel
from mesh.channel import Channels, call
from tests.support.channelled import ADDRESSES, MODULE, SILENT, VARIABLE, WITHOUT_ADDRESS, Call, calls
from tests.support.cluster import TENANT, Cluster
from tests.support.shapes import BOTH, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

# Seconds that a device has to say that somebody saw it.
_ACK_WINDOW = 10.0
# Seconds that a channel has to answer.
_CALL_LIMIT = 10.0


class _Site(msgspec.Struct, frozen=True):
    cluster: Cluster
    folder: Path

    def sent(self, event_id: str) -> Mapping[str, Sequence[Call]]:
        """Returns the channel's calls for an event, by recipient."""
        found: dict[str, list[Call]] = {}
        for one in calls(self.folder):
            if one.notification_id == event_id:
                found.setdefault(one.recipient_key.partition("/")[2], []).append(one)
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=BOTH)
async def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[_Site]:
    """A cluster whose delivery has one more channel."""
    folder = tmp_path_factory.mktemp("channel")
    settings = {VARIABLE.removeprefix("HELIOGRAPH_"): str(folder)}
    async with running(request.param, settings=settings, program=MODULE) as cluster:
        yield _Site(cluster, folder)


@asynccontextmanager
async def _as_service(cluster: Cluster, service: str, process: str) -> AsyncIterator[Channels]:
    """Opens the channels that a process of the cluster has to its peers."""
    direct = cluster.shape == "processes"
    channels = Channels(service=service, process=process, run_dir=Path(cluster.running.run_dir), direct=direct)
    try:
        yield channels
    finally:
        await channels.close()


async def _claim(cluster: Cluster, recipient: str, node_id: str) -> None:
    """Has presence name a session of this recipient at a node, which knows of none."""
    async with cluster.connection() as connection:
        listed: presence_pb.ListNodesResponse = await connection.call(
            "presence",
            lambda channel: presence_grpc.PresenceServiceStub(channel).ListNodes,
            presence_pb.ListNodesRequest(),
            Actor("operator", OPERATOR),
        )
    (node,) = [one for one in listed.nodes if one.node_id == node_id]
    key = f"{TENANT}/{recipient}"
    entry = presence_pb.SessionEntry(recipient_key=key, device_id="gone", connect_number=1, node_id=node_id)
    report = presence_pb.ReportSessionsRequest(node_id=node_id, epoch=node.epoch, joined=[entry])
    async with _as_service(cluster, "gateway", node_id) as channels:
        stub = presence_grpc.PresenceServiceStub(channels.unary("presence"))
        await call(stub.ReportSessions, report, timeout=10.0, metadata=channels.metadata())
    async with _as_service(cluster, "delivery", "delivery") as channels:
        stub = presence_grpc.PresenceServiceStub(channels.unary("presence"))
        asked = presence_pb.BatchGetPresenceRequest(recipient_keys=[key])
        found = await call(stub.BatchGetPresence, asked, timeout=10.0, metadata=channels.metadata())
    assert [list(group.node_ids) for group in found.groups] == [[node_id]]


async def test_who_has_no_session_is_reached_at_once(site: _Site) -> None:
    """Also who has none on the node where presence believed one; the ack window is not waited for."""
    await _claim(site.cluster, "ghost", site.cluster.node(1))
    began = time.time()
    event_id = await site.cluster.publish("away", "ghost")
    await until(lambda: len(site.sent(event_id)) == 2, 30.0, "both to be reached")
    for recipient, made in site.sent(event_id).items():
        assert len(made) == 1, recipient
        assert made[0].time - began < _ACK_WINDOW, recipient


async def test_who_does_not_ack_is_reached_after_the_window(site: _Site) -> None:
    """Delivery dies meanwhile: the attempt is made still, under one id; who has seen it is left alone."""
    cluster = site.cluster
    async with contextlib.AsyncExitStack() as stack:
        silent, shown = [
            await stack.enter_async_context(cluster.subscriber(recipient, auto_ack=False))
            for recipient in ("silent", "shown")
        ]
        await until(lambda: silent.connected and shown.connected, 10.0, "both to be connected")
        began = time.time()
        event_id = await cluster.publish("silent", "shown")
        shown.ack(await anext(shown), AckLevel.FOREGROUND)
        assert (await anext(silent)).id == event_id
        await shown.settle()
        await cluster.wait_restarted(await cluster.kill("delivery"))
        await until(lambda: "silent" in site.sent(event_id), 60.0, "the one that did not ack to be reached")
    assert set(site.sent(event_id)) == {"silent"}
    made = site.sent(event_id)["silent"]
    assert len({one.attempt_id for one in made}) == 1
    assert made[0].time - began >= _ACK_WINDOW


async def test_what_the_channel_refuses_is_put_aside_and_comes_back(site: _Site) -> None:
    """A dead letter that names the channel; redriven, once there is an address, it is sent and leaves the list."""
    event_id = await site.cluster.publish(WITHOUT_ADDRESS)
    listed = ""

    async def buried() -> bool:
        nonlocal listed
        _, listed, _ = await site.cluster.run("dead-letters", "list")
        return event_id in listed

    await until(buried, 30.0, "the dead letter")
    (line,) = [line.split() for line in listed.splitlines() if event_id in line]
    assert line[-5:-2] == ["tries-exhausted", f"{TENANT}/{WITHOUT_ADDRESS}", "100"]
    (site.folder / ADDRESSES).touch()
    code, _, errors = await site.cluster.run("dead-letters", "redrive", line[-1])
    assert code == 0, errors
    await until(lambda: len(site.sent(event_id)[WITHOUT_ADDRESS]) == 2, 30.0, "the channel to be asked again")
    _, listed, _ = await site.cluster.run("dead-letters", "list")
    assert event_id not in listed


async def test_a_channel_that_does_not_answer_is_no_matter_to_the_others(site: _Site) -> None:
    """While it keeps calls waiting, what is published is live and in the inboxes, also of those it was to reach."""
    cluster, silent = site.cluster, site.folder / SILENT
    async with cluster.subscriber("reader") as reader:
        await until(lambda: reader.connected, 10.0, "the reader to be connected")
        silent.touch()
        try:
            called = await cluster.publish("unreached")
            await until(lambda: "unreached" in site.sent(called), 30.0, "the channel to be called")
            published = [await cluster.publish("reader", "unreached") for _ in range(5)]
            assert sorted([(await anext(reader)).id for _ in published]) == sorted(published)
            await reader.settle()
            stored = [item.notification.notification_id for item in await cluster.inbox("unreached")]
            assert stored == sorted([called, *published], reverse=True)
            # It was asked once, and its answer is still waited for.
            (asked,) = site.sent(called)["unreached"]
            assert time.time() - asked.time < _CALL_LIMIT
        finally:
            silent.unlink()

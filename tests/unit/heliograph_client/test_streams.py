"""The subscriber over gRPC, and what it says about topics, against a real gateway node."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, Hello
from heliograph.type.v1.notification_pb2 import MarkKind
from heliograph_client import (
    Aborted,
    AckLevel,
    DeadlineExceeded,
    Disconnected,
    FailedPrecondition,
    InvalidArgument,
    Limits,
    PermissionDenied,
    Subscriber,
    Transport,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Update,
)
from heliograph_client.closing import is_final_status, stream_end
from heliograph_client.streams import StreamAddress, StreamWire, open_stream
from heliograph_client.wires import WireClosed
from mesh.errors import Failure
from tests.support.device import mark_of
from tests.support.nodes import Node, delivery_of
from tests.support.sessions import id_of
from tests.support.wait import until

ALICE = "acme/alice"
BOTH = pytest.mark.parametrize("transport", ["grpc", "websocket"])


@pytest.fixture
def node(run_dir: Path, tmp_path: Path) -> Node:
    """A node that does not run yet."""
    return Node(run_dir, tmp_path)


def _subscriber(node: Node, transport: Transport = "grpc", **options: Any) -> Subscriber:
    # Any: the subscriber refuses what it does not know.
    options = {"token": node.token, "limits": Limits(retry_base=0.05), **options}
    return Subscriber(node.target if transport == "grpc" else node.url, transport=transport, device_id="app", **options)


async def _next_titles(subscriber: Subscriber, count: int) -> list[str]:
    async with asyncio.timeout(10):
        return [(await anext(subscriber)).title for _ in range(count)]


# ---------------------------------------------------------------- a session


async def test_a_live_notification_is_shown_and_acked(node: Node) -> None:
    """As over WebSocket: replay, live frame, ack, confirmation."""
    node.inbox.of(ALICE).write(id_of(1), 1, time.time())
    async with node.running(), node.link() as link, _subscriber(node) as subscriber:
        assert await _next_titles(subscriber, 1) == [""]
        await link.result(link.offer(delivery_of(id_of(2), ALICE, title="Deployed")))
        assert await _next_titles(subscriber, 1) == ["Deployed"]
        await subscriber.settle()
        ids = {ref.notification_id for mark in link.marks for ref in mark.refs}
        assert ids == {id_of(1), id_of(2)}
        assert {mark.device_id for mark in link.marks} == {"app"}


async def test_it_comes_back_after_a_node_has_ended(node: Node) -> None:
    """Told to go away it waits and connects again; what came meanwhile is shown, what it has is not shown twice."""
    inbox, updates = node.inbox.of(ALICE), list[Update]()
    inbox.write(id_of(1), 1, time.time())
    async with _subscriber(node, on_update=updates.append) as subscriber:
        async with node.running():
            await _next_titles(subscriber, 1)
        inbox.write(id_of(2), 1, time.time())
        async with node.running(), asyncio.timeout(10):
            assert (await anext(subscriber)).id == id_of(2)
            assert subscriber.stats.shown == 2
    assert any(isinstance(update, Disconnected) for update in updates)


async def test_an_application_that_takes_nothing_holds_the_server_up(node: Node) -> None:
    """Nothing more is read then; later everything comes, from the inbox."""
    inbox, count = node.inbox.of(ALICE), 0
    async with node.running(), node.link() as link, _subscriber(node, queue_limit=2) as subscriber:
        await until(lambda: subscriber.stats.checkpoints == 1, 10.0, "the session is live")
        kinds: list[int] = []
        while pb.REFUSAL_KIND_BEHIND not in kinds and count < 100:
            count += 1
            inbox.write(id_of(count), 1, time.time())
            result = await link.result(link.offer(delivery_of(id_of(count), ALICE, title="x" * 15_000)))
            kinds = [one.kind for one in result.refusals]
        assert pb.REFUSAL_KIND_BEHIND in kinds
        async with asyncio.timeout(10):
            shown = {(await anext(subscriber)).id for _ in range(count)}
        assert shown == {id_of(number) for number in range(1, count + 1)}


async def test_what_was_said_before_closing_still_leaves(node: Node) -> None:
    """The last ack is written, and the session ends in order."""
    node.inbox.of(ALICE).write(id_of(1), 1, time.time())
    async with node.running(), node.link() as link:
        async with _subscriber(node, auto_ack=False) as subscriber:
            async with asyncio.timeout(10):
                notification = await anext(subscriber)
            subscriber.ack(notification, AckLevel.SEEN)
        await until(lambda: len(link.marks) == 1, 5.0, "the ack has arrived")


# ---------------------------------------------------------------- the end


async def test_the_same_device_elsewhere_ends_the_iteration(node: Node) -> None:
    """It does not connect again."""
    async with node.running(), _subscriber(node) as older:
        await until(lambda: older.connected, 10.0, "it is connected")
        async with _subscriber(node, "websocket"):
            with pytest.raises(Aborted) as raised:
                await _next_titles(older, 1)
            assert raised.value.reason == "SUPERSEDED"


async def test_an_end_under_a_sender_keeps_its_code(node: Node) -> None:
    """Fifty streams, each ended for nonsense while more of it is being sent: the client hears that it is final."""
    nonsense = ConnectRequest(mark=mark_of(MarkKind.MARK_KIND_READ, id_of(99)))

    async def until_closed(step: Callable[[], Awaitable[object]]) -> None:
        with contextlib.suppress(WireClosed):
            while True:
                await step()

    async with node.running():
        for number in range(50):
            token = node.token(f"app-{number}")
            wire = await open_stream(StreamAddress(target=node.target), token, "")
            assert isinstance(wire, StreamWire)
            await wire.send(ConnectRequest(hello=Hello(token=token, device_id="app")))
            await asyncio.gather(until_closed(partial(wire.send, nonsense)), until_closed(wire.receive))
            assert wire.end() == (4503, "FRAME_INVALID")
            await wire.dispose()


@pytest.mark.parametrize(("lifetime", "reason"), [(600.0, "TOKEN_INVALID"), (-60.0, "TOKEN_EXPIRED")])
async def test_a_fixed_token_that_does_not_do_ends_the_iteration(node: Node, lifetime: float, reason: str) -> None:
    """A forged one, and one whose time is over."""
    token = node.token(lifetime=lifetime)
    token = token if lifetime < 0 else token[:-8] + "AAAAAAAA"
    async with node.running(), _subscriber(node, token=token) as subscriber:
        with pytest.raises(Unauthenticated) as raised:
            await _next_titles(subscriber, 1)
        assert raised.value.reason == reason


async def test_nobody_at_the_address_is_waited_for(node: Node) -> None:
    """It tries again until somebody is there."""
    updates: list[Update] = []
    async with _subscriber(node, on_update=updates.append) as subscriber:
        await until(lambda: len(updates) >= 2, 10.0, "two tries have failed")
        async with node.running():
            await until(lambda: subscriber.connected, 10.0, "it is connected")


@pytest.mark.parametrize(
    ("failure", "final", "code"),
    [
        (Unavailable("", reason="DRAINING", metadata={"close_code": "4001"}), False, 4001),
        (Unavailable("", reason="SLOW_CONSUMER", metadata={"close_code": "4002"}), False, 4002),
        (Aborted("", reason="SUPERSEDED", metadata={"close_code": "4500"}), True, 4500),
        (Unavailable("connection reset", reason=""), False, 1006),
        (Unauthenticated("", reason="TOKEN_INVALID"), True, 4501),
        (Unauthenticated("", reason="TOKEN_EXPIRED"), False, 4501),
        (PermissionDenied("", reason=""), True, 4502),
        (InvalidArgument("", reason=""), True, 4503),
        (Unimplemented("", reason=""), True, 4504),
        (DeadlineExceeded("", reason=""), False, 1006),
    ],
)
def test_a_status_says_whether_to_come_back(failure: Failure, final: bool, code: int) -> None:
    """By the code that the gateway names, else by the category."""
    assert is_final_status(failure) is final
    assert stream_end(failure)[0] == code


# ---------------------------------------------------------------- topics


@BOTH
async def test_a_subscription_is_durable_when_it_returns(node: Node, transport: Transport) -> None:
    """Over both transports; changes keep their order."""
    async with node.running(with_topics=True), _subscriber(node, transport) as subscriber:
        await subscriber.subscribe("deploys", "team/blue")
        assert node.topics.topics["acme", "alice"] == {"deploys", "team/blue"}
        await asyncio.gather(
            *(change("deploys") for change in (subscriber.unsubscribe, subscriber.subscribe, subscriber.unsubscribe))
        )
        assert node.topics.topics["acme", "alice"] == {"team/blue"}
        assert node.topics.most == 1


async def test_a_malformed_topic_is_raised(node: Node) -> None:
    """With the server's words; the session goes on."""
    async with node.running(with_topics=True), _subscriber(node) as subscriber:
        with pytest.raises(InvalidArgument) as raised:
            await subscriber.subscribe("not a topic")
        assert raised.value.violations[0].field == "subscribe.topic_ids[0]"
        await subscriber.subscribe("deploys")
        assert subscriber.stats.connections == 1


async def test_a_subscription_survives_an_absent_prefs_and_a_broken_connection(node: Node) -> None:
    """It is said again until it is confirmed, or its caller has waited long enough."""
    async with _subscriber(node) as subscriber:
        async with node.running("--peer-timeout=0.3"):
            await until(lambda: subscriber.connected, 10.0, "it is connected")
            with pytest.raises(DeadlineExceeded):
                await subscriber.subscribe("given-up", limit=0.5)
            waiting = asyncio.create_task(subscriber.subscribe("deploys", limit=30.0))
            await until(lambda: subscriber.stats.frames_refused >= 2, 10.0, "it was refused")
        async with node.running(with_topics=True):
            await waiting
        assert "deploys" in node.topics.topics["acme", "alice"]


async def test_a_closed_subscriber_leaves_nobody_waiting(node: Node) -> None:
    """Whoever waits is told, and nobody can begin to wait."""
    subscriber = _subscriber(node)
    with pytest.raises(FailedPrecondition):
        await subscriber.subscribe("deploys")
    async with subscriber:
        waiting = asyncio.create_task(subscriber.subscribe("deploys", limit=30.0))
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(FailedPrecondition):
        await subscriber.subscribe("deploys")

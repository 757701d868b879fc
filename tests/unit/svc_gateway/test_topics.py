"""Changes of topics: from a device's frame to prefs and back, on a running node with a real far end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mesh.errors import Internal, InvalidArgument, Unavailable
from tests.support.device import Device, Form
from tests.support.nodes import Node
from tests.support.wait import until


@pytest.fixture
def node(run_dir: Path, tmp_path: Path) -> Node:
    """A node that does not run yet."""
    return Node(run_dir, tmp_path)


async def _refusals(device: Device, count: int) -> list[str]:
    await until(lambda: len(device.refusals) >= count, 10.0, f"{count} frames are refused")
    return device.refusals


@pytest.mark.parametrize("form", ["json", "proto", "grpc"])
async def test_a_subscription_is_confirmed_when_it_is_durable(node: Node, form: Form) -> None:
    """Under the session's own recipient and tenant; ending what is not there is no error."""
    async with node.running(with_topics=True), node.device(form=form) as device:
        node.topics.open.clear()
        number = await device.subscribe("deploys", "team/blue")
        await until(lambda: node.topics.said == ["+deploys,team/blue"], 5.0, "prefs was asked")
        assert device.confirmed < number
        node.topics.open.set()
        await device.has_confirmed(number)
        assert node.topics.topics["acme", "alice"] == {"deploys", "team/blue"}
        await device.has_confirmed(await device.unsubscribe("deploys", "never-there"))
        assert node.topics.topics["acme", "alice"] == {"team/blue"}


async def test_changes_of_one_session_are_made_in_their_order(node: Node) -> None:
    """One at a time, while those of another session go beside them."""
    async with node.running(with_topics=True), node.device() as alice, node.device("bob") as bob:
        node.topics.open.clear()
        for _ in range(2):
            await alice.subscribe("deploys")
            await alice.unsubscribe("deploys")
        await bob.subscribe("deploys")
        await until(lambda: node.topics.running == 2, 5.0, "both sessions have a change under way")
        assert sorted(node.topics.said) == ["+deploys", "+deploys"]
        # The fifth finds no room.
        await alice.subscribe("one-too-many")
        assert await _refusals(alice, 1) == ["OVERLOADED"]
        node.topics.open.set()
        await alice.has_confirmed(5)
        await bob.has_confirmed(2)
        assert node.topics.topics["acme", "alice"] == set()
        assert node.topics.topics["acme", "bob"] == {"deploys"}
        assert node.topics.most == 2


async def test_without_prefs_a_change_is_refused_with_a_delay(node: Node) -> None:
    """The session goes on; when prefs is back the same frame is confirmed."""
    async with node.running("--peer-timeout=0.5"), node.device() as device:
        await device.subscribe("deploys")
        assert await _refusals(device, 1) == ["PEER_UNAVAILABLE"]
        refusal = next(frame.refused.refusal for frame in device.frames if frame.HasField("refused"))
        assert refusal.retry_delay.seconds == 1
        async with node.topics.serving(node.run_dir):

            async def again() -> bool:
                number = await device.subscribe("deploys")
                with_more = len(device.refusals) + 1
                await until(lambda: device.confirmed >= number or len(device.refusals) >= with_more, 5.0, "answered")
                return device.confirmed >= number and node.topics.topics["acme", "alice"] == {"deploys"}

            await until(again, 10.0, "it is confirmed")


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (InvalidArgument("more than 1,000 subscriptions", reason="FIELD_INVALID"), "FIELD_INVALID"),
        (Unavailable("disk full", reason="STORE_UNAVAILABLE", retry_delay=3.0), "STORE_UNAVAILABLE"),
        (Internal("a bug", reason="INTERNAL"), "INTERNAL"),
    ],
)
async def test_what_prefs_refuses_the_client_is_told(node: Node, failure: Exception, reason: str) -> None:
    """With the reason that prefs gave; a neighbour's change is confirmed."""
    async with node.running(with_topics=True), node.device() as device, node.device("bob") as neighbour:
        assert isinstance(failure, InvalidArgument | Unavailable | Internal)
        node.topics.refused = failure
        await device.subscribe("deploys")
        assert await _refusals(device, 1) == [reason]
        node.topics.refused = None
        await neighbour.has_confirmed(await neighbour.subscribe("deploys"))
        assert "deploys" not in node.topics.topics["acme", "alice"]


async def test_calls_at_once_and_changes_that_wait_are_bounded_for_the_node(node: Node) -> None:
    """However many sessions change topics, prefs is asked by so many calls; who finds no room is told so."""
    flags = ("--topic-limit=2", "--topic-queue-limit=3")
    async with (
        node.running(*flags, with_topics=True),
        node.device("a") as first,
        node.device("b") as second,
        node.device("c") as third,
        node.device("d") as fourth,
    ):
        node.topics.open.clear()
        numbers = [await device.subscribe("deploys") for device in (first, second, third)]
        await until(lambda: node.topics.running == 2, 5.0, "two calls are under way")
        await fourth.subscribe("deploys")
        assert await _refusals(fourth, 1) == ["OVERLOADED"]
        node.topics.open.set()
        await asyncio.gather(*(one.has_confirmed(n) for one, n in zip((first, second, third), numbers, strict=True)))
        assert node.topics.most == 2


async def test_what_a_session_leaves_behind_is_dropped(node: Node) -> None:
    """It was never confirmed; the queue is empty, and others find room."""
    async with node.running("--topic-limit=1", with_topics=True):
        node.topics.open.clear()
        async with node.device() as device:
            for number in range(4):
                await device.subscribe(f"t{number}")
            await until(lambda: node.topics.running == 1, 5.0, "the first is under way")
            await device.ping()
            await until(lambda: any(frame.HasField("pong") for frame in device.frames), 5.0, "all four were read")
        await until(lambda: node.gauge("sessions_count") == 0, 5.0, "the session is gone")
        node.topics.open.set()
        async with node.device("bob") as other:
            await other.has_confirmed(await other.subscribe("deploys"))
        assert node.topics.said == ["+t0", "+deploys"]

"""The command at a Heliograph in one loop: wishes are changed by it, and a session over gRPC listens."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.prefs.v1 import topic_service_pb2 as topics_pb
from heliograph.prefs.v1 import topic_service_pb2_grpc as topics_grpc
from tests.support.publishing import publish_request
from tests.support.shapes import LOOP
from tests.support.site import Site
from tests.support.wait import until

# As processes and through the mesh the command is used in `test_up.py`.
pytestmark = pytest.mark.parametrize("site", [LOOP], indirect=True, scope="session")


async def test_wishes_are_changed_by_the_command(site: Site) -> None:
    """Subscriptions and mutes are set, shown and taken back; what may not be muted is refused by name."""
    run = site.cluster.run
    async with site.undisturbed():
        code, output, _ = await run("topics", "subscribe", "wendy", "repo/heliograph", "news")
        assert (code, [line.split()[0] for line in output.splitlines()]) == (0, ["TOPIC", "news", "repo/heliograph"])
        assert (await run("topics", "unsubscribe", "wendy", "news", "other"))[0] == 0
        _, output, _ = await run("topics", "list", "wendy")
        assert [line.split()[0] for line in output.splitlines()] == ["TOPIC", "repo/heliograph"]
        _, output, _ = await run("prefs", "mute", "wendy", "--topic", "repo/heliograph", "--for", "2h")
        assert ["any", "repo/heliograph"] in [line.split()[:2] for line in output.splitlines()]
        code, _, errors = await run("prefs", "mute", "wendy", "--category", "security")
        assert (code, "'security' is mandatory" in errors) == (3, True)
        _, output, _ = await run("prefs", "unmute", "wendy", "--topic", "repo/heliograph")
        assert "MUTED" not in output


async def _is_subscribed(site: Site, who: str, topic_id: str) -> None:
    """Waits for a subscription."""
    request, caller = topics_pb.ListSubscriptionsRequest(), site.bearer("recipient", who)

    async def is_listed() -> bool:
        answer = await site.call(
            "prefs", lambda door: topics_grpc.TopicServiceStub(door).ListSubscriptions, request, caller
        )
        return [one.topic_id for one in answer.subscriptions] == [topic_id]

    await until(is_listed, 15.0, f"{who} is subscribed")


@pytest.mark.parametrize("transport", ["websocket", "grpc"])
async def test_listening_goes_over_either_transport(site: Site, transport: str) -> None:
    """It subscribes first, prints what comes, reads it, and what it has read is no longer unread."""
    who, topic = f"listener-{transport}", f"heard/{transport}"
    async with site.undisturbed(stored=2):
        await site.publish(publish_request("By name", to=[who]))
        words = ("--transport", transport, "--topic", topic, "--count", "2", "--read", "--anew")
        listening = asyncio.create_task(site.cluster.run("listen", who, *words))
        try:
            await _is_subscribed(site, who, topic)
            await site.publish(publish_request("By topic", to=[], topics=[topic]))
            code, heard, said = await listening
        finally:
            listening.cancel()
        assert (code, said) == (0, "connected\n")
        assert ["By name" in heard, "By topic" in heard, len(heard.splitlines())] == [True, True, 2]
        assert [await site.cluster.run("unread", who)] == [(0, "0\n", "")]

"""More sessions than a node takes: who is too many hears so with a delay, and those who are there do not notice."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from tests.support.cluster import Shape
from tests.support.device import Device, connected
from tests.support.shapes import EVERY, running
from tests.support.site import Site
from tests.support.wait import until

LIMIT, TOO_MANY = 5, 20


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shape", EVERY)
async def test_a_session_too_many_is_told_when_to_come_back(shape: Shape) -> None:
    """Twenty more of one recipient are sent away; a neighbour gets its events, and a place that is free is given."""
    async with running(shape, gateways=1, settings={"GATEWAY_SESSION_LIMIT": str(LIMIT)}) as cluster:
        site = Site(cluster, ())

        async def greeted(stack: AsyncExitStack, recipient: str, name: str) -> Device:
            device = await stack.enter_async_context(connected(site.live_url, context=site.tls()))
            await device.hello(cluster.token(recipient), name)
            return device

        async with AsyncExitStack() as stack:
            neighbour = await greeted(stack, "neighbour", "phone")
            await neighbour.ready()
            async with AsyncExitStack() as crowd:
                inside = [await greeted(crowd, "mallory", f"in-{n}") for n in range(LIMIT - 1)]
                for device in inside:
                    await device.ready()
                for number in range(TOO_MANY):
                    async with AsyncExitStack() as refused:
                        device = await greeted(refused, "mallory", f"out-{number}")
                        assert await device.is_closed() == 4004
                        (away,) = device.farewells
                        assert (away.reason, away.reconnect) == ("OVERLOADED", True)
                        assert away.HasField("reconnect_delay")
                first = await cluster.publish("neighbour")
                await neighbour.has(first)
                assert [device.closed for device in inside] == [None] * len(inside)

            async def let_in() -> bool:
                async with AsyncExitStack() as trying:
                    device = await greeted(trying, "carol", "phone")
                    await until(lambda: bool(device.checkpoints) or device.closed is not None, 10.0, "an answer")
                    return device.closed is None

            await until(let_in, 10.0, "a place is free again")
            second = await cluster.publish("neighbour")
            await neighbour.has(second)
            assert (neighbour.ids, neighbour.closed) == ([first, second], None)

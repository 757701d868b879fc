"""More clients at once than a node takes: those that wait are told for how long, come back then, and all get in."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from heliograph_client import Disconnected, Subscriber, Transport, Update
from mesh.errors import Failure, Unavailable
from tests.support.apps import Apps
from tests.support.device import Device
from tests.support.raw_socket import Reply, opening, plain
from tests.support.shapes import EVERY, running
from tests.support.stream_device import StreamDevice
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

# Of each node; nobody is told to wait longer than the limit, which is dithered by a fifth.
_BURST, _LONGEST_S = 4, 2.0
_SETTINGS = {"GATEWAY_OPEN_RATE": "8", "GATEWAY_OPEN_BURST": str(_BURST), "GATEWAY_OPEN_DELAY_LIMIT": f"{_LONGEST_S:g}"}
_AT_ONCE = 40
_SCREENS = 12
_OVERLOADED = 4004


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=EVERY)
async def apps(request: pytest.FixtureRequest) -> AsyncIterator[Apps]:
    """A cluster whose nodes take few at once."""
    async with running(request.param, settings=_SETTINGS) as cluster:
        yield Apps(cluster)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def neighbour(apps: Apps) -> AsyncIterator[Device]:
    """A session that was there before the storms."""
    async with apps.device("neighbour") as device:
        await device.ready()
        yield device


async def _hears(apps: Apps, neighbour: Device) -> None:
    """Checks that the neighbour does not notice: it gets what comes, once, over the session that it had."""
    event_id = await apps.cluster.publish("neighbour")
    await neighbour.has(event_id)
    assert (neighbour.ids.count(event_id), neighbour.closed) == (1, None)


def _is_a_turn(delay: float) -> bool:
    return 0.0 < delay <= 1.2 * _LONGEST_S


# ---------------------------------------------------------------- what they are told


async def test_a_websocket_that_has_to_wait_is_told_until_when(apps: Apps, neighbour: Device) -> None:
    """503 with Retry-After, and a body that says it to the millisecond; the turns lie apart."""

    async def ask() -> Reply:
        async with plain(apps.url(), apps.context) as socket:
            return await socket.request(opening())

    replies = await asyncio.gather(*(ask() for _ in range(_AT_ONCE)))
    await _hears(apps, neighbour)
    assert {reply.status for reply in replies} <= {101, 503}
    delays = []
    for reply in replies:
        if reply.status == 503:
            refusal = json.loads(reply.body)
            assert (refusal["code"], refusal["reason"]) == (Unavailable.code, "OVERLOADED")
            delays.append(float(refusal["retryDelay"].removesuffix("s")))
            assert reply.headers["retry-after"] == str(math.ceil(delays[-1]))
    assert all(map(_is_a_turn, delays)), delays
    assert len(set(delays)) > len(delays) // 2


async def test_a_stream_that_has_to_wait_is_told_until_when(apps: Apps, neighbour: Device) -> None:
    """UNAVAILABLE with the delay among its details, before anything is read of the stream."""

    async def ask(number: int) -> Failure | None:
        async with apps.device("crowd", device_id=f"stream-{number}", form="grpc") as device:
            assert isinstance(device, StreamDevice)
            await until(lambda: bool(device.checkpoints) or device.closed is not None, 15.0, "an answer has come")
            return device.pipe.failure

    failures = [failure for failure in await asyncio.gather(*map(ask, range(_AT_ONCE))) if failure is not None]
    await _hears(apps, neighbour)
    assert failures
    for failure in failures:
        assert isinstance(failure, Unavailable)
        assert (failure.reason, failure.metadata["close_code"]) == ("OVERLOADED", str(_OVERLOADED))
        assert failure.retry_delay is not None
        assert _is_a_turn(failure.retry_delay)


# ---------------------------------------------------------------- and what becomes of them


class _Screen:
    """A client of the SDK, and for how long it was told to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.subscriber: Subscriber

    def heard(self, update: Update) -> None:
        if isinstance(update, Disconnected):
            self.waits.append(update.retry_delay)


async def test_a_crowd_comes_back_at_its_turns_and_is_in_at_the_end(apps: Apps, neighbour: Device) -> None:
    """Over both transports, more than fit at once: none gives up, and an event for all of them reaches all of them."""
    transports: tuple[Transport, ...] = ("websocket", "grpc")
    screens: list[_Screen] = []
    async with AsyncExitStack() as stack:
        for number in range(2 * _SCREENS):
            screen = _Screen()
            screen.subscriber = await stack.enter_async_context(
                apps.cluster.subscriber(
                    f"r{number}",
                    node=apps.cluster.node(number // 2 % 2) if apps.cluster.shape == "processes" else "",
                    on_update=screen.heard,
                    transport=transports[number % 2],
                )
            )
            screens.append(screen)
        await until(lambda: all(one.subscriber.connected for one in screens), 40.0, "everybody is in")
        assert any(one.waits for one in screens), "nobody had to wait"
        event_id = await apps.cluster.publish(*(f"r{number}" for number in range(2 * _SCREENS)))
        async with asyncio.timeout(20.0):
            shown = [(await anext(one.subscriber)).id for one in screens]
        assert shown == [event_id] * len(screens)
        await _hears(apps, neighbour)

"""Many at once: sockets that say nothing, readers that do not read, calls that are given up, a device of two.

What a crowd costs is its own: the neighbour's frames come, once each, over sessions that stay open.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import grpc.aio

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb2
from heliograph.delivery.v1 import inbox_service_pb2_grpc as inbox_grpc
from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb2
from heliograph.prefs.v1 import prefs_service_pb2_grpc as prefs_grpc
from svc_gateway import wire
from tests.support.connections import masked
from tests.support.device import Device, connected
from tests.support.large_events import FILLING, fill_sockets
from tests.support.publishing import publish_request
from tests.support.raw_socket import End, opened, opening, plain
from tests.support.site import IN_EVERY_SHAPE, Site

SILENT = 60
FROZEN = 24
_LIMIT_S = 20.0


# ---------------------------------------------------------------- silence


async def test_a_crowd_that_says_nothing_is_let_go(site: Site) -> None:
    """Nearly two hundred sockets without a byte, with half a request, or without hello: all end, and soon."""
    async with AsyncExitStack() as crowd:
        mute = [await crowd.enter_async_context(plain(site.live_url, None)) for _ in range(SILENT)]
        half = [await crowd.enter_async_context(plain(site.live_url, site.tls())) for _ in range(SILENT)]
        for one in half:
            await one.send(opening()[:40])
        waiting = [await crowd.enter_async_context(opened(site.live_url, site.tls())) for _ in range(SILENT)]
        async with site.undisturbed():
            pass
        ends = await asyncio.gather(*(one.end() for one in waiting))
        await asyncio.gather(*(one.is_gone() for one in (*mute, *half)))
        async with site.undisturbed():
            pass
    assert set(ends) == {End(4002, "SLOW_CONSUMER")}


# ---------------------------------------------------------------- compression


async def test_compression_is_not_agreed_to(site: Site) -> None:
    """Whoever offers it gets a session without, and a compressed frame ends the session."""
    offer = "permessage-deflate; client_max_window_bits; server_no_context_takeover"
    async with site.undisturbed(), plain(site.live_url, site.tls()) as raw:
        reply = await raw.request(opening(sec_websocket_extensions=offer))
        assert reply.status == 101
        assert "sec-websocket-extensions" not in reply.headers
        await raw.send(masked(wire.TEXT | 0x40, b"\x00" * 1_024))
        assert (await raw.end()).code == 1002


# ---------------------------------------------------------------- frozen readers


@asynccontextmanager
async def _frozen(site: Site, recipient: str) -> AsyncIterator[list[Device]]:
    """Devices of a recipient that have a session and read no more."""
    async with AsyncExitStack() as stack:
        devices = []
        for index in range(FROZEN):
            device = await stack.enter_async_context(connected(site.live_url, context=site.tls(), narrow=True))
            # Who reads nothing does not hear that the peer says goodbye either.
            stack.callback(device.cut)
            await device.hello(site.cluster.token(recipient), f"frozen-{index}")
            await device.ready()
            device.stop_reading()
            devices.append(device)
        yield devices


@IN_EVERY_SHAPE
async def test_readers_that_do_not_read_hold_up_nobody(site: Site) -> None:
    """Two dozen of one recipient; beside them another device of it, and the neighbour, get everything at once."""
    recipient = "frost"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_frozen(site, recipient))
        healthy = await stack.enter_async_context(connected(site.live_url, context=site.tls()))
        await healthy.hello(site.cluster.token(recipient), "healthy")
        await healthy.ready()
        async with site.undisturbed(stored=FILLING), site.cluster.publisher() as publisher:
            ids = await fill_sockets(publisher, [recipient], healthy)
            assert sorted(healthy.ids) == sorted(ids)
            assert healthy.closed is None


# ---------------------------------------------------------------- cancelled calls

CALLS: Final = 400


async def test_no_answer_reaches_another_caller_when_calls_are_given_up(site: Site) -> None:
    """Hundreds of calls of several recipients on one connection, a part of them cancelled at any moment."""
    chance = random.Random(31)
    recipients = ["alice", "bob", "carol", "heidi"]
    wrong: list[str] = []
    answered = 0

    async def ask(recipient: str) -> None:
        nonlocal answered
        credentials = site.bearer("recipient", recipient)
        reading: grpc.aio.UnaryUnaryCall[prefs_pb2.GetPreferencesRequest, prefs_pb2.GetPreferencesResponse]
        reading = prefs_grpc.PrefsServiceStub(site.door("prefs")).GetPreferences(
            prefs_pb2.GetPreferencesRequest(), timeout=_LIMIT_S, metadata=credentials
        )
        listing = inbox_grpc.InboxServiceStub(site.door("delivery")).ListInbox(
            inbox_pb2.ListInboxRequest(), timeout=_LIMIT_S, metadata=credentials
        )
        owner, items = (await reading).preferences.recipient_id, (await listing).items
        if owner != recipient:
            wrong.append(f"{recipient} got the preferences of {owner}")
        seen = {item.notification.notification_id for item in items} & set(site.gifts)
        if seen != (set(site.gifts) if recipient == "alice" else set()):
            wrong.append(f"{recipient} got {len(seen)} of alice's")
        answered += 1

    async with site.undisturbed():
        waiting: list[asyncio.Task[None]] = []
        for _ in range(CALLS):
            waiting.append(asyncio.create_task(ask(chance.choice(recipients))))
            for _turn in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if len(waiting) >= 16:
                given_up = chance.sample(waiting, 8)
                for one in given_up:
                    one.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                waiting.clear()
        await asyncio.gather(*waiting)
    assert wrong == []
    assert CALLS // 4 < answered < CALLS, "some calls were given up, and many were not"


# ---------------------------------------------------------------- one device, two recipients


async def test_a_device_id_of_two_recipients_is_two_devices(site: Site) -> None:
    """Neither ends the other's session, takes its place, or hears what is the other's."""
    async with (
        connected(site.live_url, context=site.tls()) as olga,
        connected(site.live_url, context=site.tls()) as paul,
    ):
        for device, recipient in ((olga, "olga"), (paul, "paul")):
            await device.hello(site.cluster.token(recipient), "shared-device")
            await device.ready()
        async with site.undisturbed(stored=2):
            requests = [publish_request(recipient, to=[recipient]) for recipient in ("olga", "paul")]
            first, second = (result.accepted.event_id for result in (await site.batch(requests)).results)
            await olga.has(first)
            await paul.has(second)
        assert (olga.ids, paul.ids) == ([first], [second])
        assert (olga.closed, paul.closed) == (None, None)
        assert olga.refusals == paul.refusals == []

"""What may wait in all the sockets of a node together is bounded: sessions that do not read pay for it, nobody else."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import pytest

from tests.support.apps import Apps
from tests.support.cluster import Shape
from tests.support.device import Device
from tests.support.large_events import fill_sockets
from tests.support.shapes import EVERY, running
from tests.support.site import Site
from tests.support.wait import until

pytestmark = pytest.mark.timeout(60)

# The least there is; a session that does not read may have more than that by a page of its replay.
_CAP, _SLOW = 65_536, 4
_TOO_SLOW = 4002


def _is_over(device: Device, ids: list[str]) -> bool:
    return device.closed is not None or set(ids) <= set(device.ids)


@pytest.mark.parametrize("shape", EVERY)
async def test_sessions_that_do_not_read_share_what_a_node_keeps_and_a_neighbour_has_all(shape: Shape) -> None:
    """Those that keep too much waiting are closed, and have the rest when they are back; the neighbour has all live."""
    settings = {"GATEWAY_BACKLOG_BYTES": str(_CAP)}
    async with running(shape, gateways=1, settings=settings) as cluster, AsyncExitStack() as open_:
        apps, node, names = Apps(cluster), cluster.node(0), [f"slow-{number}" for number in range(_SLOW)]
        site = Site(cluster, ())
        slow = [await open_.enter_async_context(apps.device(name, narrow=True)) for name in names]
        neighbour = await open_.enter_async_context(apps.device("neighbour"))
        for device in (*slow, neighbour):
            await device.ready()
        for device in slow:
            device.stop_reading()
        async with cluster.publisher() as publisher:
            ids = await fill_sockets(publisher, [*names, "neighbour"], neighbour)

        async def is_bounded() -> bool:
            closed = await site.metric(node, "heliograph_gateway_closes_total", code=str(_TOO_SLOW))
            waiting = await site.metric(node, "heliograph_gateway_backlog_bytes")
            return closed > 0 and waiting <= _CAP

        await until(is_bounded, 25.0, "somebody to be closed, and no more than the cap to wait")
        assert sorted(neighbour.ids) == sorted(ids)
        assert {notify.state for notify in neighbour.notifies} == {0}
        assert neighbour.closed is None
        for device in slow:
            device.go_on_reading()
        for device in slow:
            await until(partial(_is_over, device, ids), 15.0, "a session to be closed, or to have everything")
        # What was written before the end was not read: the transport is broken off under it.
        assert any(device.closed is not None for device in slow)
        for name, device in zip(names, slow, strict=True):
            if device.closed is not None:
                async with apps.device(name) as back:
                    await back.has(*ids)

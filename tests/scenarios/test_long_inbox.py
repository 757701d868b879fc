"""A recipient with tens of thousands of notifications, put straight into the store, beside a healthy neighbour."""

from __future__ import annotations

import time

from tests.support.cluster import TENANT
from tests.support.device import connected
from tests.support.long_inbox import fill_running
from tests.support.site import Site
from tests.support.stored import row_count
from tests.support.wait import until

HOARDER = "hoarder"
KEPT = 2 * 150
# Each look removes a thousand of a class at most.
LIMIT_S = 40.0


async def test_a_very_long_inbox_is_trimmed_and_disturbs_nobody(site: Site) -> None:
    """Its device gets the newest hundred of each class and is through, as does a list; looks bring it to its bound.

    Meanwhile the neighbour gets everything of its own, over sessions that stay open.
    """
    cluster = site.cluster
    newest = await fill_running(cluster, TENANT, HOARDER, round(time.time() * 1000))
    async with site.undisturbed(), connected(site.live_url, context=site.tls()) as device:
        await device.hello(cluster.token(HOARDER), "device")
        replayed = await device.ready()
        assert (sorted(device.ids), replayed.item_count) == (sorted(newest), len(newest))
        listed = [item.notification.notification_id for item in (await site.inbox(HOARDER)).items]
        assert listed == sorted(newest, reverse=True)

        async def is_trimmed() -> bool:
            await site.inbox(HOARDER, page_size=1)
            return await row_count(cluster, TENANT, HOARDER) <= KEPT

        await until(is_trimmed, LIMIT_S, "looks have trimmed the inbox")
        assert await row_count(cluster, TENANT, HOARDER) == KEPT
        assert device.closed is None

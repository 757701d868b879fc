"""A row that the store refuses for a while rides the retry lane with its bytes, and is written when it can be."""

from __future__ import annotations

from bench.demo_letters import CATEGORY
from mesh.errors import NotFound
from tests.support import damage
from tests.support.apps import Apps
from tests.support.explaining import asked, explained
from tests.support.publishing import publish_request
from tests.support.site import IN_EVERY_SHAPE, Site
from tests.support.wait import until

pytestmark = IN_EVERY_SHAPE

# The first delay of the schedule, where it cannot be made shorter, and a busy machine.
_LIMIT_S = 25.0


async def _waits(site: Site, event_id: str, who: str) -> bool:
    """Whether the row is still to be written, as Explain says."""
    try:
        answer = await asked(site.cluster, event_id, who)
    except NotFound:
        return False
    return not answer.state and any("the row is written again then" in step.detail for step in answer.steps)


async def test_a_row_that_is_refused_is_written_by_a_later_try(site: Site) -> None:
    """Nobody has to do anything for it: list and session have it once. Whoever else it was for had it at once."""
    cluster, apps, who = site.cluster, Apps(site.cluster), "written-late"
    store = damage.refusing_store(cluster, who)
    async with site.undisturbed(stored=1), apps.device(who) as phone, apps.device("beside") as beside:
        await phone.ready()
        await beside.ready()
        with store.refusing():
            request = publish_request("An invoice", to=[who, "beside"], category=CATEGORY, body="with all of its words")
            event_id = (await site.publish(request)).event_id
            await beside.has(event_id)
            await until(lambda: _waits(site, event_id, who), _LIMIT_S, "the row waits for another try")
            assert (await site.inbox(who)).items == []

        async def is_written() -> bool:
            store.hasten(event_id)
            return bool((await site.inbox(who)).items)

        await until(is_written, _LIMIT_S, "the row is written")
        (item,) = (await site.inbox(who)).items
        assert item.notification.content == request.event.content
        await phone.has(event_id)
        assert (phone.ids, beside.ids) == ([event_id], [event_id])
        assert (await explained(cluster, event_id, who)).state

"""A topic of very many subscribers, nobody of them connected: what is published to it delays nobody else."""

from __future__ import annotations

import pytest

from tests.support.crowded_topic import crowd, name
from tests.support.publishing import publish_request
from tests.support.site import IN_EVERY_SHAPE, Site
from tests.support.wait import until

_SUBSCRIBERS, _ON_ENGINES = 20_000, 2_000
_LIMIT_S = 40.0


@IN_EVERY_SHAPE
@pytest.mark.timeout(90)
async def test_an_event_to_a_crowded_topic_is_accepted_and_the_neighbour_is_undisturbed(site: Site) -> None:
    """The answer does not wait for the subscribers; the neighbour's events of every priority come beside theirs."""
    count, topic = _ON_ENGINES if site.cluster.on_engines else _SUBSCRIBERS, f"crowded/{site.cluster.shape}"
    await crowd(site.cluster, topic, count)
    async with site.undisturbed(stored=1):
        request = publish_request("To everybody", to=[], topics=[topic])
        event_id = (await site.publish(request)).event_id
    # From first to last: slices are read in the order of names.
    for number in (0, count // 2, count - 1):

        async def has_it(number: int = number) -> bool:
            items = (await site.inbox(name(number))).items
            return [item.notification.notification_id for item in items] == [event_id]

        await until(has_it, _LIMIT_S, f"{name(number)} has it")
    await site.has_nothing_left()

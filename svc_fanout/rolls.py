"""Reads an audience from prefs, page by page: a page of each topic ahead, and never all of a large one.

Path step 4. It must not decide who gets the event, and keeps nothing of what it gave out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from heliograph.prefs.v1 import topic_service_pb2
from mesh.errors import Failure
from svc_fanout.audience import Members, Merge
from svc_fanout.core import Event
from svc_fanout.ports import Prefs

# (tenant, topic) → its first page
FirstPages = Mapping[tuple[str, str], Sequence[str]]


async def read_page(prefs: Prefs, tenant_id: str, topic_id: str, after: str, page_size: int) -> Sequence[str]:
    """Returns a page of a topic's subscribers; raises what the port raises."""
    request = topic_service_pb2.ListSubscribersRequest(
        tenant_id=tenant_id, topic_id=topic_id, page_size=page_size, after_recipient_id=after
    )
    return (await prefs.list_subscribers(request)).recipient_ids


class Roll:
    """The audience of one event, in the order of recipient ids."""

    def __init__(
        self,
        event: Event,
        *,
        prefs: Prefs,
        group: asyncio.TaskGroup,
        page_size: int,
        after: str = "",
        first_pages: FirstPages | None = None,
    ) -> None:
        """Begins.

        Args:
            event: whose audience.
            prefs: has the subscribers.
            group: owns the pages under way.
            page_size: recipients of a page, and of a part.
            after: only recipients with a larger id.
            first_pages: of topics, read before.
        """
        self._tenant_id = event.envelope.tenant_id
        self._prefs = prefs
        self._group = group
        self._page_size = page_size
        self._merge = Merge(event.recipient_ids, event.topic_ids, event.excluded, after)
        self._coming: dict[str, asyncio.Task[Sequence[str] | Failure]] = {}
        for topic_id in event.topic_ids if first_pages and not after else ():
            page = (first_pages or {}).get((self._tenant_id, topic_id))
            if page is not None:
                self._merge.feed(topic_id, page, ended=len(page) < page_size)

    async def next(self) -> Members | None:
        """Returns the next part, None at the end.

        Raises what the port raises, and Internal for subscribers out of order; the next call tries again.
        """
        wanted = self._merge.wanted()
        for topic_id in wanted:
            self._begin(topic_id)
        for topic_id in wanted:
            page = await self._coming[topic_id]
            del self._coming[topic_id]
            if isinstance(page, Failure):
                raise page
            ended = len(page) < self._page_size
            self._merge.feed(topic_id, page, ended=ended)
            if not ended:
                self._begin(topic_id)
        return self._merge.take(self._page_size)

    def close(self) -> None:
        """Gives up the pages under way."""
        for page in self._coming.values():
            page.cancel()
        self._coming.clear()

    def _begin(self, topic_id: str) -> None:
        if topic_id not in self._coming:
            self._coming[topic_id] = self._group.create_task(self._read(topic_id, self._merge.after(topic_id)))

    async def _read(self, topic_id: str, after: str) -> Sequence[str] | Failure:
        try:
            return await read_page(self._prefs, self._tenant_id, topic_id, after, self._page_size)
        except Failure as failure:
            return failure

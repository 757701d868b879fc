"""The demo's producer: publishes at a steady pace through the edge, most events with the SDK, some over REST.

Sends are scheduled by intended time and do not wait for answers, so a stall makes latencies longer instead of events
fewer. Must not decide what is published.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterable

import httpx2

from bench.demo_events import Draft
from bench.demo_ledger import Ledger, Published
from heliograph_client.publisher import Publisher
from mesh.errors import Failure
from mesh.ids import to_text, uuid7

REST_EVERY = 5
_TRIES = 6
_PAUSE_S = 0.5
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class Producer:
    """Publishes drafts and notes what was answered.

    Attributes:
        refused: why events got no OK.
        sent_count: events that were begun.
    """

    def __init__(self, *, sdk: Publisher, rest: httpx2.AsyncClient, ledger: Ledger) -> None:
        self.refused: list[str] = []
        self.sent_count = 0
        self._sdk = sdk
        self._rest = rest
        self._ledger = ledger

    async def open(self) -> None:
        """Lets an event be judged over both ways, so that connections are open before anything is measured.

        Raises:
            Failure: the SDK's was refused.
            httpx2.HTTPError: that over REST was refused.
        """
        await self._sdk.publish(category="general", to="nobody", title="A first look", validate_only=True)
        event = {"category": "general", "audience": {"recipientIds": ["nobody"]}, "content": {"title": "A first look"}}
        response = await self._rest.post("/v1/events", json={"event": event, "validateOnly": True})
        response.raise_for_status()

    async def run(self, drafts: Iterable[Draft], interval: float) -> None:
        """Publishes one event every so many seconds, then waits for the last answers."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, draft in enumerate(drafts):
                intended = began + number * interval
                await asyncio.sleep(max(0.0, intended - time.monotonic()))
                self.sent_count += 1
                over_rest = number % REST_EVERY == REST_EVERY - 1
                group.create_task(self._over_rest(draft, intended) if over_rest else self._over_sdk(draft, intended))

    async def _over_sdk(self, draft: Draft, intended: float) -> None:
        try:
            receipt = await self._sdk.publish(
                category=draft.category,
                to=draft.recipients,
                topics=draft.topics,
                excluded=draft.excluded,
                title=draft.title,
                body=draft.body,
                link=draft.link,
            )
        except Failure as failure:
            self.refused.append(f"SDK: {type(failure).__name__} {failure.reason}: {failure.message}")
            return
        self._note(receipt.event_id, draft, intended, "SDK")

    async def _over_rest(self, draft: Draft, intended: float) -> None:
        content = {"title": draft.title, "body": draft.body, "link": draft.link}
        audience = {
            "recipientIds": draft.recipients,
            "topicIds": draft.topics,
            "excludedRecipientIds": draft.excluded,
        }
        event = {"category": draft.category, "audience": audience, "content": content}
        # Drawn once: a repeat under the same id is absorbed.
        request_id = to_text(uuid7(time.time_ns() // 1_000_000, os.urandom(10)))
        answer = ""
        for attempt in range(_TRIES):
            await asyncio.sleep(random.random() * _PAUSE_S * attempt)
            try:
                response = await self._rest.post("/v1/events", json={"event": event, "requestId": request_id})
            except httpx2.TransportError as error:
                answer = f"{type(error).__name__} {error}"
                continue
            if response.is_success:
                self._note(str(response.json()["eventId"]), draft, intended, "REST")
                return
            answer = f"{response.status_code} {response.text[:200]}"
            if response.status_code not in _RETRIED:
                break
        self.refused.append(f"REST: {answer}")

    def _note(self, event_id: str, draft: Draft, intended: float, way: str) -> None:
        self._ledger.publish(
            Published(
                event_id,
                draft.category,
                draft.due,
                intended,
                way,
                by_topic=draft.by_topic,
                suppressed=draft.suppressed,
                excluded=draft.excluded,
            )
        )


async def read_inbox(rest: httpx2.AsyncClient, token: str) -> set[str]:
    """Returns the ids that a recipient's inbox lists, page by page over REST."""
    ids: set[str] = set()
    page = ""
    while True:
        response = await rest.get(
            "/v1/inbox",
            params={"pageSize": "200", **({"pageToken": page} if page else {})},
            headers={"authorization": f"Bearer {token}"},
        )
        response.raise_for_status()
        answer = response.json()
        ids |= {str(item["notification"]["notificationId"]) for item in answer.get("items", ())}
        page = str(answer.get("nextPageToken", ""))
        if not page:
            return ids

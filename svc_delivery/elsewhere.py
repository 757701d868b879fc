"""Those whom nobody can reach live: the channel behind it has its turn at once, and not after the ack window.

Path step 6. Who that is, presence says, or each node on which presence saw a session and which finds none. Beside the
follow-up that is durable already, another one that is due now; whichever finds what the other
did takes over from the cells. So nothing here has to last: what is lost, or does not fit, waits for the ack window.

Must not take a step itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from heliograph.delivery.v1 import lane_record_pb2
from heliograph.type.v1 import notification_pb2
from mesh.errors import Failure
from mesh.telemetry import logger
from mesh.times import micros_of
from svc_delivery import records
from svc_delivery.intake import Offer
from svc_delivery.metrics import Metrics
from svc_delivery.ports import FollowUps, RowKey
from svc_delivery.records import Later, Member

# Deliveries that may wait for the store.
_LARGEST_QUEUE: Final = 20_000
# Deliveries of which is known where they were offered: a node answers within milliseconds, contents are 16 KiB at most.
_LARGEST_OFFERED: Final = 5_000


class Elsewhere:
    """What waits to be followed up now."""

    def __init__(self, *, follow_ups: FollowUps, metrics: Metrics, now_us: Callable[[], int]) -> None:
        """Holds on to its parts.

        Args:
            follow_ups: takes the records.
            metrics: counts.
            now_us: the wall clock.
        """
        self._follow_ups = follow_ups
        self._metrics = metrics
        self._now_us = now_us
        self._queue: list[Later] = []
        # (recipient key, notification id) -> its offer, and the nodes that have not said that nobody is there
        self._offered: dict[tuple[str, str], tuple[Offer, set[str]]] = {}
        self._wake = asyncio.Event()
        self._log = logger()

    def add(self, offer: Offer, recipient_keys: Sequence[str]) -> None:
        """Takes recipients of an offer who have no session; where its plan ends with live there is nothing to do."""
        if offer.plan is None or len(self._queue) + len(recipient_keys) > _LARGEST_QUEUE:
            return
        envelope = offer.envelope
        ref = notification_pb2.NotificationRef(notification_id=envelope.notification_id, revision=envelope.revision)
        expire_us = micros_of(envelope.expire_time) if envelope.HasField("expire_time") else None
        for key in recipient_keys:
            follow_up = lane_record_pb2.FollowUp(
                recipient_key=key, ref=ref, step_index=offer.step_index, priority=envelope.priority
            )
            member = Member(follow_up, [offer.plan], RowKey(key, offer.notification_id), expire_us)
            self._queue.append(Later(member, offer.step_index, 0))
        self._wake.set()

    def offered(self, offer: Offer, where: Mapping[str, Sequence[str]]) -> None:
        """Notes on which nodes an offer's recipients have sessions; where its plan ends with live nobody asks later."""
        if offer.plan is None:
            return
        for key in offer.recipient_keys:
            if node_ids := where.get(key):
                self._offered[key, offer.envelope.notification_id] = (offer, set(node_ids))
        while len(self._offered) > _LARGEST_OFFERED:
            del self._offered[next(iter(self._offered))]

    def absent(self, node_id: str, notification_id: str, recipient_keys: Sequence[str]) -> None:
        """Takes a node's word that these recipients have no session there; the last such word is "nobody there"."""
        for key in recipient_keys:
            offer, node_ids = self._offered.get((key, notification_id), (None, set[str]()))
            node_ids.discard(node_id)
            if offer is not None and not node_ids:
                del self._offered[key, notification_id]
                self.add(offer, [key])

    async def run(self) -> None:
        """Hands on what waits, for good."""
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            later, self._queue = self._queue, []
            try:
                await self._follow_ups.finish([], list(records.write({self._now_us(): later})))
            except Failure as failure:
                self._log.warning("next_channel_waits", reason=failure.reason, error=failure.message)
            else:
                self._metrics.follow_ups["nobody_there"].inc(len(later))

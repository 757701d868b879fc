"""Finds out where recipients are, and hands what is new to the links of their gateway nodes.

Path step 6: write, then look; nobody there: the next channel at once. One look-up for everything that waits. One loop,
so inside a priority the order of rows is the order of offers; high overtakes. "Presence does not answer" is not
"absent": it is asked again a few times, then nothing is offered, the follow-up decides, and sessions look for it later.

Must not wait for a node, and must not hold what it cannot hand on: rows are durable, replays and follow-ups bring them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from heliograph.gateway.v1 import gateway_service_pb2
from mesh.errors import Failure
from mesh.telemetry import logger
from svc_delivery.intake import Offer
from svc_delivery.metrics import Metrics
from svc_delivery.ports import Nodes, Presence
from svc_delivery.priorities import ByPriority
from svc_delivery.settled import Settled

# Below what one look-up may ask, so that one offer more always fits.
_LOOK_UP_KEYS = 4_000
_LARGEST_LOOK_UP = 5_000
# Contents are 16 KiB at most; the bound on recipients alone would let a presence that hangs fill memory.
_LARGEST_BYTES = 64 * 1024 * 1024
# A restart of presence or a cut connection is over within seconds; the follow-up would come after ten.
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)


class Offers:
    """The queue in front of the links; implements `ports.ChangeSink` too."""

    def __init__(
        self,
        *,
        presence: Presence,
        nodes: Nodes,
        settled: Settled,
        metrics: Metrics,
        limit: int,
        byte_limit: int = _LARGEST_BYTES,
        nobody_there: Callable[[Offer, Sequence[str]], None] | None = None,
        offered: Callable[[Offer, Mapping[str, Sequence[str]]], None] | None = None,
        pauses: Sequence[float] = _PAUSES,
    ) -> None:
        """Connects the queue.

        Args:
            presence: where recipients are.
            nodes: the links.
            settled: learns who is nowhere.
            metrics: counts.
            limit: recipients that may wait; more are not offered.
            byte_limit: bytes of content that may wait.
            nobody_there: told of recipients of an offer who have no session.
            offered: told, before an offer goes to its nodes, where recipients are.
            pauses: seconds before presence is asked again, one after the other.
        """
        self._presence = presence
        self._nodes = nodes
        self._settled = settled
        self._metrics = metrics
        self._limit = limit
        self._byte_limit = byte_limit
        self._nobody_there = nobody_there
        self._offered = offered
        self._pauses = pauses
        self._log = logger()
        self._offers: ByPriority[Offer] = ByPriority()
        self._changes: deque[gateway_service_pb2.Change] = deque()
        self._waiting = 0
        self._waiting_bytes = 0
        self._wake = asyncio.Event()

    def add(self, offers: Sequence[Offer]) -> None:
        """Queues offers; what does not fit is counted and left to the follow-up."""
        for offer in offers:
            count = len(offer.recipient_keys)
            if self._waiting + count > self._limit or self._waiting_bytes >= self._byte_limit:
                self._metrics.not_offered.inc(count)
                continue
            self._offers.append(offer.envelope.priority, offer)
            self._waiting += count
            self._waiting_bytes += len(offer.envelope.notification)
        self._wake.set()

    def offer(self, changes: Sequence[gateway_service_pb2.Change]) -> None:
        """See `ports.ChangeSink`."""
        for change in changes:
            if self._waiting >= self._limit:
                self._metrics.not_offered.inc()
                continue
            self._changes.append(change)
            self._waiting += 1
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Recipients that wait or are being looked up."""
        return self._waiting

    @property
    def is_crowded(self) -> bool:
        """Whether so much waits that follow-ups should not add to it."""
        return self._waiting > self._limit // 2 or self._waiting_bytes > self._byte_limit // 2

    async def run(self) -> None:
        """Hands on what is queued, for good."""
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            offers, changes, count = self._take()
            keys = {key for offer in offers for key in offer.recipient_keys}
            keys.update(change.recipient_key for change in changes)
            found = await self._find(list(keys))
            if found is None:
                self._metrics.not_offered.inc(len(keys))
                # No follow-up tells a device of what another one of its recipient acks meanwhile, after a replay.
                self._nodes.missed()
            else:
                self._hand_on(offers, changes, found)
            self._waiting -= count

    async def _find(self, keys: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        """Returns where recipients are; None when presence does not answer for good."""
        for pause in (*self._pauses, None):
            try:
                return await self._look_up(keys)
            except Failure as failure:
                self._metrics.presence_failures.inc()
                self._log.warning("presence_not_asked", reason=failure.reason, error=failure.message)
            if pause is not None:
                await asyncio.sleep(pause)
        return None

    def _take(self) -> tuple[list[Offer], list[gateway_service_pb2.Change], int]:
        offers: list[Offer] = []
        changes: list[gateway_service_pb2.Change] = []
        count = 0
        while self._offers and count < _LOOK_UP_KEYS:
            offer = self._offers.pop()
            offers.append(offer)
            count += len(offer.recipient_keys)
            self._waiting_bytes -= len(offer.envelope.notification)
        while self._changes and count < _LOOK_UP_KEYS:
            changes.append(self._changes.popleft())
            count += 1
        return offers, changes, count

    async def _look_up(self, keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if len(keys) <= _LARGEST_LOOK_UP:
            return await self._presence.look_up(keys)
        found: dict[str, Sequence[str]] = {}
        for start in range(0, len(keys), _LARGEST_LOOK_UP):
            found.update(await self._presence.look_up(keys[start : start + _LARGEST_LOOK_UP]))
        return found

    def _hand_on(
        self,
        offers: Sequence[Offer],
        changes: Sequence[gateway_service_pb2.Change],
        found: Mapping[str, Sequence[str]],
    ) -> None:
        absent_count = 0
        for offer in offers:
            by_node: dict[str, list[str]] = {}
            absent: list[str] = []
            for key in offer.recipient_keys:
                node_ids = found.get(key)
                if node_ids is None:
                    self._settled.add((key, offer.notification_id))
                    absent.append(key)
                    continue
                for node_id in node_ids:
                    by_node.setdefault(node_id, []).append(key)
            absent_count += len(absent)
            if absent and self._nobody_there is not None:
                self._nobody_there(offer, absent)
            if self._offered is not None:
                self._offered(offer, found)
            for node_id, keys in by_node.items():
                if not self._nodes.offer(node_id, offer.envelope, keys):
                    self._metrics.not_offered.inc(len(keys))
        for change in changes:
            for node_id in found.get(change.recipient_key, ()):
                if not self._nodes.change(node_id, change):
                    self._metrics.not_offered.inc()
        self._metrics.absent.inc(absent_count)
